"""Intervals: Student's for means and paired differences, bootstrap for rank correlations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ragen2.diagnostics.statistics.rank_test import rank_correlation
from ragen2.experiments.intervals import (
    Estimate,
    clustered_spearman,
    mean_estimate,
    paired_estimate,
    share_estimate,
    spearman_estimate,
)


def test_a_mean_has_students_interval():
    # Mean 2, standard error 1 / sqrt(3), t of 2 degrees of freedom 4.302653.
    found = mean_estimate([1.0, 2.0, 3.0])
    assert (found.value, found.num) == (2.0, 3)
    assert found.high - found.value == pytest.approx(4.302653 / math.sqrt(3), rel=1e-4)
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_one_value_has_no_interval_and_none_has_no_mean():
    assert mean_estimate([5.0]) == Estimate(5.0, None, None, 1, "t over seeds")
    assert mean_estimate([]) is None


def test_pairs_are_made_by_seed_and_their_difference_has_the_first_ones_sign():
    found = paired_estimate({0: 3.0, 1: 5.0, 7: 100.0}, {1: 4.0, 0: 1.0, 2: 50.0})
    assert (found.value, found.num) == (1.5, 2)  # 3 - 1 and 5 - 4
    assert found.low < 1.5 < found.high


def test_without_a_shared_seed_there_is_no_difference():
    assert paired_estimate({0: 1.0}, {1: 1.0}) is None


def test_pairing_takes_out_what_a_seed_does_to_both_arms():
    rng = np.random.default_rng(0)
    shared = rng.normal(0.0, 10.0, size=5)
    first = {seed: float(shared[seed] + 1.0 + 0.01 * seed) for seed in range(5)}
    second = {seed: float(shared[seed]) for seed in range(5)}
    found = paired_estimate(first, second)
    assert found.is_above
    assert found.value == pytest.approx(1.02)


def test_a_unit_below_zero_turns_the_ends_around():
    assert Estimate(1.0, 0.5, 2.0, 3, "").times(-2.0) == Estimate(-2.0, -4.0, -1.0, 3, "")


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [
        (0.1, 0.2, True, False),
        (-0.2, -0.1, False, True),
        (-1, 1, False, False),
        (None, None, False, False),
    ],
)
def test_a_side_of_zero_needs_the_whole_interval(low, high, above, below):
    found = Estimate(0.0, low, high, 3, "")
    assert (found.is_above, found.is_below) == (above, below)


def test_a_share_of_all_runs_still_has_an_interval_with_width():
    found = share_estimate([True] * 5)
    assert (found.value, found.high, found.num) == (1.0, 1.0, 5)
    assert found.low == pytest.approx(0.566, abs=0.001)  # Wilson's 5 of 5
    assert share_estimate([]) is None


def test_samples_are_drawn_inside_each_stratum():
    """Each stratum is in perfect order, and so is every sample of it; mixed up they would not be."""
    up = [(float(x), float(x)) for x in range(6)]
    higher = [(x, y + 100.0) for x, y in up]
    found = spearman_estimate([up, higher], "strata")
    assert (found.value, found.low, found.high, found.num) == pytest.approx((1.0, 1.0, 1.0, 12))


def test_a_correlation_that_many_samples_lack_has_no_interval():
    """Only the samples that hold the last pair have anything to rank."""
    found = spearman_estimate([[*((float(x), 0.0) for x in range(9)), (9.0, 1.0)]], "one")
    assert (found.low, found.high, found.num) == (None, None, 10)


def test_all_samples_at_once_are_ranked_as_one_by_one():
    rng = np.random.default_rng(3)
    arms = [
        [(x + rng.normal(), round(rng.normal() + x / 4.0, 0)) for _ in range(2)] for x in range(12)
    ]
    found = clustered_spearman([arms], "arms").total
    slow = []
    for _ in range(1000):
        pairs = [pair for place in rng.integers(12, size=12) for pair in arms[place]]
        slow.append(rank_correlation([x for x, _ in pairs], [y for _, y in pairs]))
    assert (found.low, found.high) == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.06)


def test_a_perfect_order_is_a_correlation_of_one_and_its_reverse_of_minus_one():
    pairs = [(float(i), float(i * i)) for i in range(8)]
    assert spearman_estimate([pairs], "up").value == pytest.approx(1.0)
    assert spearman_estimate([[(x, -y) for x, y in pairs]], "down").value == pytest.approx(-1.0)


def test_strata_are_ranked_each_by_itself():
    """Pooled, the two would correlate by +0.6 or so: the second lies higher in both numbers."""
    down = [(0.0, 3.0), (1.0, 2.0), (2.0, 1.0)]
    higher = [(x + 10.0, y + 10.0) for x, y in down]
    assert spearman_estimate([down, higher], "strata").value == pytest.approx(-1.0)


def test_too_few_pairs_have_no_correlation():
    assert spearman_estimate([[(0.0, 1.0), (1.0, 2.0)]], "few") is None
    assert spearman_estimate([[(0.0, 1.0), (0.0, 2.0), (0.0, 3.0)]], "constant") is None


def test_the_same_numbers_give_the_same_interval():
    rng = np.random.default_rng(1)
    pairs = [(float(x), float(x + rng.normal())) for x in range(12)]
    assert spearman_estimate([pairs], "same") == spearman_estimate([pairs], "same")


def test_few_pairs_in_perfect_order_have_no_interval():
    """Every sample of them is in perfect order too, which would make an interval of no length."""
    pairs = [(float(i), float(i)) for i in range(9)]
    found = spearman_estimate([pairs], "few")
    assert (found.value, found.low, found.high, found.num) == (1.0, None, None, 9)


def test_pairs_that_are_alike_do_not_shorten_an_interval():
    rng = np.random.default_rng(2)
    groups = [[(float(x), float(x + 4.0 * rng.normal()))] for x in range(12)]
    once = clustered_spearman([groups], "groups", "cells").total
    copied = clustered_spearman([[one * 5 for one in groups]], "groups", "cells").total
    assert (copied.num, copied.how) == (12, "bootstrap over cells")
    assert copied.value == pytest.approx(once.value, abs=0.01)
    assert copied.high - copied.low == pytest.approx(once.high - once.low, abs=0.02)


def test_what_arms_share_and_what_their_runs_do_apart_are_told_apart():
    """Arms rise together; inside each of them the runs fall."""
    arms = [[(10.0 * arm + run, 10.0 * arm - run) for run in range(3)] for arm in range(12)]
    found = clustered_spearman([arms], "opposed")
    assert found.total.value > 0.9
    assert found.between.value == 1.0
    assert found.within.value == pytest.approx(-1.0)
    few = clustered_spearman([arms[:9]], "few")
    assert (few.between.value, few.between.low, few.between.num) == (1.0, None, 9)
