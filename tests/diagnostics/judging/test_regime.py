"""The four regimes: their corners, their exact boundaries, and the line that explains a verdict."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ragen2.diagnostics import Regime, explain_regime, measure, regime
from ragen2.diagnostics.judging.regime import (
    Z95,
    diversity_threshold,
    equal_error_point,
    retrieval_threshold,
)


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
    """A grounded, diverse batch of 64 traces; the retrieval interval says a spread of 0.5 a trace."""
    return {
        "mi_p_value": 0.005,
        "retrieval_p_value": 0.005,
        "retrieval_accuracy": 0.8,
        "retrieval_accuracy_low": 0.8 - 0.0625 * Z95,
        "retrieval_accuracy_high": 0.8 + 0.0625 * Z95,
        "retrieval_chance": 0.125,
        "retrieval_above_chance": 0.675,
        "conditional_entropy_seq": 12.0,
        "conditional_entropy_seq_low": 12.0 - 0.25 * Z95,
        "conditional_entropy_seq_high": 12.0 + 0.25 * Z95,
        "num_traces": 64.0,
        "num_prompts": 8.0,
    } | changes


# --- against the null alone ------------------------------------------------------------------------


def test_two_effective_reasonings_a_prompt_are_diverse_and_fewer_are_not():
    enough, fewer = math.log(2.0), math.log(1.99)
    assert regime(metrics(conditional_entropy_seq=enough)) is Regime.DIVERSE_GROUNDED
    assert regime(metrics(conditional_entropy_seq=fewer)) is Regime.COMPRESSED_GROUNDED


@pytest.mark.parametrize("name", ["retrieval_p_value", "mi_p_value"])
def test_retrieval_or_information_that_chance_could_give_is_not_grounded(name):
    assert regime(metrics(**{name: 0.01})) is Regime.DIVERSE_GROUNDED
    assert regime(metrics(**{name: 0.02})) is Regime.TEMPLATE_COLLAPSE


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


# --- between the null and a baseline ---------------------------------------------------------------


def test_the_equal_error_point_is_as_many_spreads_from_both_sides():
    point = equal_error_point(0.0, 1.0, 6.0, 2.0)
    assert point == 2.0
    assert (point - 0.0) / 1.0 == (6.0 - point) / 2.0


def test_retrieval_nearer_to_chance_than_to_the_baseline_is_a_collapse():
    # Chance 1/8 has a spread of sqrt(7)/8 a trace, the baseline 0.8 one of 0.5.
    null, wide = math.sqrt(7.0) / 8.0, 0.5
    threshold = (0.125 * wide + 0.8 * null) / (null + wide)
    assert retrieval_threshold(metrics(), metrics()) == pytest.approx(threshold, rel=1e-6)
    above, below = threshold + 1e-6, threshold - 1e-6
    assert regime(metrics(retrieval_accuracy=above), metrics()) is Regime.DIVERSE_GROUNDED
    assert regime(metrics(retrieval_accuracy=below), metrics()) is Regime.TEMPLATE_COLLAPSE
    assert regime(metrics(retrieval_accuracy=below)) is Regime.DIVERSE_GROUNDED


def test_a_perfect_baseline_does_not_make_every_miss_a_collapse():
    perfect = metrics(
        retrieval_accuracy=1.0, retrieval_accuracy_low=1.0, retrieval_accuracy_high=1.0
    )
    spread = math.sqrt(65.0 / 66.0 * (1.0 / 66.0))
    expected = equal_error_point(0.125, math.sqrt(7.0) / 8.0, 1.0, spread)
    assert retrieval_threshold(metrics(), perfect) == pytest.approx(expected)
    assert expected == pytest.approx((0.125 + 1.0) / 2)  # half way, and no further


def test_a_baseline_of_a_single_prompt_changes_nothing():
    single = metrics(retrieval_accuracy=1.0, retrieval_chance=1.0, num_prompts=1.0)
    assert retrieval_threshold(metrics(), single) is None


def test_a_baseline_at_chance_changes_nothing():
    weak = metrics(retrieval_accuracy=0.125, retrieval_above_chance=0.0)
    assert retrieval_threshold(metrics(), weak) == pytest.approx(0.125)
    assert regime(metrics(retrieval_accuracy=0.3), weak) is Regime.DIVERSE_GROUNDED


def test_a_baseline_does_not_forgive_what_the_null_explains():
    low = metrics(retrieval_p_value=0.5)
    assert regime(low, metrics()) is Regime.TEMPLATE_COLLAPSE


def test_a_baseline_of_other_prompts_is_carried_over_above_chance():
    # 0.8 of 8 prompts is 0.675/0.875 of what is above chance; of 2 prompts that is 0.5 + half of it.
    few = metrics(retrieval_chance=0.5, num_prompts=2.0)
    room = 0.5 / 0.875
    expected = equal_error_point(0.5, 0.5, 0.5 + room * 0.675, room * 0.5)
    assert retrieval_threshold(few, metrics()) == pytest.approx(expected, rel=1e-6)


def test_entropy_nearer_to_one_reasoning_than_to_the_baseline_is_compressed():
    # One reasoning has a spread of log 2, the baseline of 12 nats one of 0.25 * 8 = 2 a trace.
    threshold = 12.0 * math.log(2.0) / (math.log(2.0) + 2.0)
    assert diversity_threshold(metrics()) == pytest.approx(threshold)
    above, below = threshold + 1e-6, threshold - 1e-6
    assert regime(metrics(conditional_entropy_seq=above), metrics()) is Regime.DIVERSE_GROUNDED
    assert regime(metrics(conditional_entropy_seq=below), metrics()) is Regime.COMPRESSED_GROUNDED
    assert regime(metrics(conditional_entropy_seq=below)) is Regime.DIVERSE_GROUNDED


def test_a_baseline_of_equally_likely_traces_lets_half_of_its_entropy_go():
    even = metrics(conditional_entropy_seq_low=12.0, conditional_entropy_seq_high=12.0)
    assert diversity_threshold(even) == pytest.approx(6.0)


def test_a_baseline_without_variety_still_asks_for_two_reasonings():
    assert diversity_threshold(metrics(conditional_entropy_seq=0.5)) == math.log(2.0)


def test_a_baseline_without_intervals_sets_no_entropy_threshold():
    plain = {name: v for name, v in metrics().items() if not name.endswith(("_low", "_high"))}
    assert diversity_threshold(plain) == math.log(2.0)
    assert retrieval_threshold(metrics(), plain) == pytest.approx(0.43, abs=0.01)


# --- in words --------------------------------------------------------------------------------------


def test_a_verdict_is_explained_by_its_numbers():
    assert explain_regime(metrics()) == (
        "diverse grounded: retrieval 0.80 beats chance 0.12 (p 0.005); "
        "H(Z|X) of 12.0 nats per trace is not below 0.7"
    )
    assert explain_regime(metrics(retrieval_p_value=0.5, retrieval_accuracy=0.14)) == (
        "template collapse: retrieval 0.14 with chance 0.12 does not beat its null (p 0.5); "
        "H(Z|X) of 12.0 nats per trace is not below 0.7"
    )
    assert explain_regime(
        metrics(retrieval_accuracy=0.35, conditional_entropy_seq=1.0), metrics()
    ) == (
        "low entropy collapse: retrieval 0.35 is below 0.39, the equal-error point between chance "
        "0.12 and the baseline's 0.80; H(Z|X) of 1.0 nats per trace is below 3.1"
    )
    assert explain_regime(metrics(num_traces=8.0, num_prompts=2.0, mi_p_value=0.02)) == (
        "undecided: 8 traces of 2 prompts are too few, even perfect retrieval could be chance"
    )
