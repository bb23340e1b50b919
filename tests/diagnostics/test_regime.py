"""The four regimes, from their numbers and from batches made to lie in each."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ragen2.diagnostics import Regime, measure, regime


def batch(*, grounded: bool, entropy_seq: float) -> dict[str, float]:
    """Eight traces each of four prompts; own score ``-entropy_seq``, others far below or equal."""
    owner = np.repeat(np.arange(4), 8)
    logp = np.full((32, 4), -entropy_seq - (40.0 if grounded else 0.0))
    logp[np.arange(32), owner] = -entropy_seq
    return measure(logp, np.full(32, 10), owner, resamples=200)


@pytest.mark.parametrize(
    ("grounded", "entropy_seq", "name"),
    [
        (True, 12.0, Regime.DIVERSE_GROUNDED),
        (False, 12.0, Regime.TEMPLATE_COLLAPSE),
        (True, 0.1, Regime.COMPRESSED_GROUNDED),
        (False, 0.1, Regime.LOW_ENTROPY_COLLAPSE),
    ],
)
def test_each_corner_of_the_plane_has_its_name(grounded, entropy_seq, name):
    assert regime(batch(grounded=grounded, entropy_seq=entropy_seq)) is name


def metrics(**changes: float) -> dict[str, float]:
    return {
        "retrieval_p_value": 0.005,
        "retrieval_above_chance": 0.5,
        "conditional_entropy_seq": 12.0,
        "num_traces": 64.0,
        "num_prompts": 8.0,
    } | changes


def test_two_effective_reasonings_a_prompt_are_diverse_and_fewer_are_not():
    enough, fewer = math.log(2.0), math.log(1.99)
    assert regime(metrics(conditional_entropy_seq=enough)) is Regime.DIVERSE_GROUNDED
    assert regime(metrics(conditional_entropy_seq=fewer)) is Regime.COMPRESSED_GROUNDED


def test_retrieval_that_chance_could_give_is_not_grounded():
    assert regime(metrics(retrieval_p_value=0.01)) is Regime.DIVERSE_GROUNDED
    assert regime(metrics(retrieval_p_value=0.02)) is Regime.TEMPLATE_COLLAPSE


def test_retrieval_below_chance_is_not_grounded():
    assert regime(metrics(retrieval_above_chance=-0.1)) is Regime.TEMPLATE_COLLAPSE


def test_the_fewest_resamples_allowed_can_still_find_grounding():
    owner = np.repeat(np.arange(4), 8)
    logp = np.where(np.arange(4) == owner[:, None], -12.0, -50.0)
    found = measure(logp, np.full(32, 10), owner, resamples=100)
    assert regime(found) is Regime.DIVERSE_GROUNDED


def test_a_batch_too_small_to_be_significant_is_undecided():
    perfect = {"retrieval_p_value": 0.02, "retrieval_above_chance": 0.5}
    assert regime(metrics(num_traces=8.0, num_prompts=2.0, **perfect)) is Regime.UNDECIDED
    assert regime(metrics(num_traces=10.0, num_prompts=2.0, **perfect)) is Regime.TEMPLATE_COLLAPSE
