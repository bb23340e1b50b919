"""The regimes: their corners, their exact boundaries, what low power gives, and how one is explained."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ragen2.diagnostics import Regime, explain_regime, measure, regime
from ragen2.diagnostics.judging.regime import Entropies, name_regime
from ragen2.diagnostics.metrics.grounding import GroundedShare
from tabular_source import TabularSource


def batch(*, grounded: bool, entropy_seq: float) -> dict[str, float]:
    """Eight traces each of eight prompts; own score ``-entropy_seq``, others far below or equal."""
    owner = np.repeat(np.arange(8), 8)
    logp = np.full((64, 8), -entropy_seq - (40.0 if grounded else 0.0))
    logp[np.arange(64), owner] = -entropy_seq
    return measure(logp, np.full(64, 10), owner, resamples=0)


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


@pytest.mark.parametrize(
    ("share", "low", "high", "name"),
    [
        (0.9, 0.3, 1.0, Regime.DIVERSE_GROUNDED),
        (0.6, 0.5, 0.8, Regime.DIVERSE_GROUNDED),
        (0.6, 0.48, 0.8, Regime.PARTIAL),
        (0.6, 0.55, 0.7, Regime.PARTIAL),
        (0.3, 0.1, 0.5, Regime.PARTIAL),
        (0.3, 0.1, 0.48, Regime.WEAK),
        (0.0, 0.0, 0.5, Regime.TEMPLATE_COLLAPSE),
        (0.1, 0.02, 0.25, Regime.TEMPLATE_COLLAPSE),
        (0.12, 0.02, 0.25, Regime.WEAK),
        (0.1, 0.02, 0.26, Regime.WEAK),
        (0.0, 0.0, 0.52, Regime.UNDECIDED),
        (0.5, 0.24, 0.76, Regime.UNDECIDED),
        (1.0, 0.24, 1.0, Regime.UNDECIDED),
        (0.5, 0.26, 0.76, Regime.PARTIAL),
    ],
)
def test_the_interval_of_the_grounded_share_decides(share, low, high, name):
    assert name_regime(GroundedShare(share, low, high), Entropies()) is name


def test_two_effective_traces_per_prompt_are_diverse_and_fewer_are_not():
    all_grounded = GroundedShare(1.0, 0.9, 1.0)
    assert name_regime(all_grounded, Entropies(math.log(2.0))) is Regime.DIVERSE_GROUNDED
    assert name_regime(all_grounded, Entropies(math.log(1.99))) is Regime.COMPRESSED_GROUNDED
    assert name_regime(all_grounded, Entropies()) is Regime.DIVERSE_GROUNDED


def test_one_text_for_everything_is_a_collapse_however_few_traces():
    unknown = GroundedShare(0.0, 0.0, 1.0)
    assert name_regime(unknown, Entropies(0.01, 0.01)) is Regime.LOW_ENTROPY_COLLAPSE
    assert name_regime(unknown, Entropies(0.01, math.log(2.0))) is Regime.UNDECIDED


def test_one_prompt_is_undecided():
    alone = measure(np.full((4, 1), -3.0), np.full(4, 5), np.zeros(4, dtype=int), resamples=0)
    assert regime(alone) is Regime.UNDECIDED
    assert explain_regime(alone) == "undecided: there is one prompt, and nothing to compare it with"


def grounded_source(information: float, prompts: int) -> TabularSource:
    """A source whose I(X;Z) is the first of a rising row that reaches ``information``, in nats."""
    for level in np.arange(0.05, 1.0, 0.05):
        source = TabularSource.make(
            prompts=prompts, vocabulary=4, length=5, groundedness=float(level), seed=5
        )
        if source.mutual_information >= information:
            return source
    raise AssertionError("no level has so much information")


@pytest.mark.parametrize(("prompts", "traces", "nats"), [(4, 4, 0.45), (8, 2, 0.55)])
def test_low_power_is_not_called_collapse(prompts, traces, nats):
    source = grounded_source(nats, prompts)
    named = [
        regime(measure(one.logp_NP, one.length_N, one.owner_N, resamples=0))
        for one in (source.sample(traces, np.random.default_rng(seed)) for seed in range(60))
    ]
    assert sum(name is Regime.TEMPLATE_COLLAPSE for name in named) <= 1
    assert Regime.UNDECIDED in named


def test_four_fifths_of_pure_templates_are_not_healthy():
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(32), 16)
    for _ in range(4):
        logp = np.full((512, 32), -20.0)
        logp[rng.random(512) < 0.2] = -40.0
        is_grounded = logp[:, 0] == -40.0
        logp[is_grounded, owner[is_grounded]] = -10.0
        found = measure(logp, np.full(512, 10), owner, resamples=0)
        assert regime(found) is Regime.WEAK
        assert found["grounded_share_low"] <= 0.2 <= found["grounded_share_high"]


def test_a_verdict_is_explained_with_its_numbers():
    assert explain_regime(batch(grounded=False, entropy_seq=12.0)) == (
        "template collapse: 0% of traces are grounded (95% 0% to 36%); 64 traces of 8 prompts would "
        "have shown 36%; H(Z|X) is 12.0 nats per trace"
    )
