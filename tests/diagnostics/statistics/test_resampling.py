"""Student's quantiles, the stratified bootstrap, Wilson's interval and permutations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.diagnostics.statistics.resampling import (
    permutation_p_value,
    permuted_owners,
    scored_owners,
    stratified_spread,
    student_quantile,
    wilson_interval,
)
from ragen2.seeding import stream


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        (1, 12.706),
        (2, 4.3027),
        (3, 3.1824),
        (7, 2.3646),
        (30, 2.0423),
        (120, 1.9799),
        (1e9, 1.9623),
    ],
)
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_quantile(float(freedom)) == pytest.approx(quantile, abs=2e-3)


def test_a_higher_level_reaches_further():
    assert student_quantile(10.0, 0.99) == pytest.approx(3.1693, abs=1e-3)


# --- the stratified mean ---------------------------------------------------------------------------


def test_the_error_of_a_plain_mean_is_the_textbooks():
    values = np.random.default_rng(0).normal(3.0, 2.0, (40, 1))
    spread = stratified_spread(values, np.zeros(40, int), 500, stream(0))
    assert spread.error_M[0] == pytest.approx(values.std(ddof=1) / math.sqrt(40))
    assert spread.freedom_M[0] == pytest.approx(39.0)


def test_differences_between_strata_are_no_error():
    values = np.array([[1.0], [1.0], [9.0], [9.0]])
    spread = stratified_spread(values, np.array([0, 0, 1, 1]), 100, stream(0))
    assert spread.error_M[0] == 0.0


def test_the_error_of_strata_of_different_size_is_summed_by_hand():
    values = np.array([[0.0], [2.0], [10.0], [11.0], [15.0]])
    spread = stratified_spread(values, np.array([0, 0, 1, 1, 1]), 100, stream(0))
    # Each stratum adds size * variance / N squared: 2 * 2 / 25 and 3 * 7 / 25.
    assert spread.error_M[0] == pytest.approx(math.sqrt(4 / 25 + 21 / 25))
    assert spread.freedom_M[0] == pytest.approx(1.0 / (0.16**2 / 1 + 0.84**2 / 2))


def test_a_stratum_of_one_value_is_taken_to_vary_like_the_others():
    values = np.array([[0.0], [2.0], [50.0]])
    spread = stratified_spread(values, np.array([0, 0, 1]), 100, stream(0))
    # Both values of stratum 0 add 2 / 9 each; the third is taken to add as much.
    assert spread.error_M[0] == pytest.approx(math.sqrt(3 * 2 / 9))


def test_strata_of_one_value_each_say_nothing():
    assert stratified_spread(np.eye(3), np.arange(3), 100, stream(0)) is None


def test_ends_are_never_nearer_than_students():
    values = np.random.default_rng(0).normal(size=(12, 5))
    spread = stratified_spread(values, np.zeros(12, int), 300, stream(0))
    assert (np.minimum(spread.low_M, spread.high_M) >= student_quantile(11.0) - 1e-9).all()


def test_the_interval_of_a_skewed_mean_reaches_to_the_side_of_the_tail():
    values = np.random.default_rng(0).exponential(size=(30, 1))
    spread = stratified_spread(values, np.zeros(30, int), 2000, stream(0))
    assert spread.high_M[0] > 1.1 * spread.low_M[0]
    mirrored = stratified_spread(-values, np.zeros(30, int), 2000, stream(0))
    assert mirrored.low_M[0] == pytest.approx(spread.high_M[0])


@given(st.floats(-1e6, 1e6), st.floats(0.1, 100.0))
def test_an_interval_moves_and_stretches_with_its_values(shift, scale):
    values = np.random.default_rng(0).normal(size=(12, 1))
    strata = np.repeat(np.arange(3), 4)
    one = stratified_spread(values, strata, 100, stream(0))
    other = stratified_spread(shift + scale * values, strata, 100, stream(0))
    assert other.error_M == pytest.approx(scale * one.error_M, rel=1e-6)
    assert other.low_M == pytest.approx(one.low_M, rel=1e-4)


def test_the_mean_of_a_normal_sample_is_covered_nineteen_times_in_twenty():
    rng = np.random.default_rng(0)
    hits = 0
    for repetition in range(1000):
        values = rng.normal(size=(10, 1))
        spread = stratified_spread(values, np.zeros(10, int), 100, stream(repetition))
        error, mean = spread.error_M[0], values.mean()
        hits += mean - spread.low_M[0] * error <= 0.0 <= mean + spread.high_M[0] * error
    # The wider of two intervals, so rather above 95% than below.
    assert 940 <= hits <= 985


# --- shares ----------------------------------------------------------------------------------------


def test_wilsons_interval_of_a_plain_share_is_the_textbooks():
    error = math.sqrt(0.3 * 0.7 / 50)
    low, high = wilson_interval(0.3, error, 1.96, fewest=50, most=50)
    assert (low, high) == pytest.approx((0.1910, 0.4375), abs=5e-4)


def test_all_right_counts_as_the_fewest_trials():
    assert wilson_interval(1.0, 0.0, 1.96, fewest=20, most=80) == pytest.approx(
        (20 / (20 + 1.96**2), 1.0)
    )
    assert wilson_interval(0.0, 0.0, 1.96, fewest=20, most=80) == pytest.approx(
        (0.0, 1.96**2 / (20 + 1.96**2))
    )


def test_a_share_is_worth_no_more_than_the_most_trials():
    tiny = wilson_interval(0.5, 1e-9, 1.96, fewest=10, most=40)
    assert tiny == wilson_interval(0.5, 0.5 / math.sqrt(40), 1.96, fewest=10, most=40)


@given(st.just(0.0) | st.floats(1e-9, 1.0), st.floats(0.0, 0.5), st.floats(1.0, 13.0))
def test_wilsons_interval_holds_the_share_and_stays_in_its_range(share, error, quantile):
    low, high = wilson_interval(share, error, quantile, fewest=8, most=64)
    assert 0.0 <= low <= share <= high <= 1.0


# --- permutations ----------------------------------------------------------------------------------


def test_permuted_owners_are_the_same_owners_in_each_stratum():
    owner, strata = np.array([0, 0, 1, 2, 2, 3]), np.array([0, 0, 0, 1, 1, 1])
    owners = permuted_owners(owner, strata, 50, stream(0))
    assert (np.sort(owners[:, :3]) == [0, 0, 1]).all()
    assert (np.sort(owners[:, 3:]) == [2, 2, 3]).all()
    assert len({tuple(row) for row in owners}) > 1


def test_a_trace_is_only_dealt_to_prompts_it_was_scored_under():
    scored = np.array([[True, True, False, False], [False, True, True, True]])
    dealt = np.array([[2, 0], [1, 3]] * 500)
    owners = scored_owners(dealt, scored, stream(0))
    assert scored[np.arange(2), owners].all()
    assert owners[1::2].tolist() == [[1, 3]] * 500
    assert np.bincount(owners[::2, 0], minlength=4)[:2] == pytest.approx([250, 250], abs=60)
    assert np.bincount(owners[::2, 1], minlength=4)[1:] == pytest.approx([167] * 3, abs=60)


@pytest.mark.parametrize(
    ("observed", "null", "p"),
    [
        (5.0, [1.0, 2.0, 3.0], 1 / 4),
        (2.0, [1.0, 2.0, 3.0], 3 / 4),
        (0.0, [1.0, 2.0, 3.0], 1.0),
        (1.0 + 1e-15, [1.0] * 9, 1.0),
    ],
)
def test_a_p_value_counts_the_null_values_at_least_as_large_and_itself(observed, null, p):
    assert permutation_p_value(observed, np.array(null)) == p
