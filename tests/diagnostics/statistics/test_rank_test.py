"""Spearman's correlation with its interval and p-value, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ragen2.diagnostics.statistics.rank_test import rank_correlation, rank_test


def test_a_perfect_order_of_four_has_two_of_all_orders_as_extreme():
    found = rank_test([1, 2, 3, 4], [10, 20, 30, 40])
    assert found is not None
    assert found.rho == pytest.approx(1.0)
    assert found.p_value == pytest.approx(2 / math.factorial(4))
    assert (found.low, found.high) == (None, None)


def test_the_sign_is_kept():
    found = rank_test(range(8), [-n for n in range(8)])
    assert found is not None
    assert found.rho == pytest.approx(-1.0)
    assert found.low is not None
    assert found.high is not None
    assert found.low == found.rho
    assert -1.0 < found.high < -0.8


def test_the_interval_is_fishers_with_bonett_and_wrights_variance():
    rng = np.random.default_rng(0)
    first = rng.normal(size=40)
    second = first + rng.normal(size=40)
    found = rank_test(first.tolist(), second.tolist())
    assert found is not None
    half = 1.959964 * math.sqrt((1 + found.rho**2 / 2) / 37)
    assert found.low == pytest.approx(math.tanh(math.atanh(found.rho) - half), abs=1e-5)
    assert found.high == pytest.approx(math.tanh(math.atanh(found.rho) + half), abs=1e-5)
    assert found.num == 40


def test_the_p_value_of_many_pairs_is_near_that_of_students_t():
    first = list(range(30))
    second = [(7 * n) % 30 + 0.4 * n for n in first]
    found = rank_test(first, second)
    assert found is not None
    t = found.rho * math.sqrt(28 / (1 - found.rho**2))
    normal = math.erfc(abs(t) / math.sqrt(2.0))
    assert found.p_value == pytest.approx(normal, abs=0.03)


def test_unrelated_pairs_are_significant_as_often_as_they_should():
    rng = np.random.default_rng(1)
    found = [rank_test(rng.random(6).tolist(), rng.random(6).tolist()) for _ in range(200)]
    share = np.mean([one.p_value <= 0.05 for one in found if one])
    assert 0.01 <= share <= 0.10


def test_too_few_pairs_and_constant_values_have_no_correlation():
    assert rank_test([1, 2], [1, 2]) is None
    assert rank_test([1, 1, 1], [1, 2, 3]) is None


def test_rank_correlation_by_hand():
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 90.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    # Ties share their mean rank: 1.5, 1.5, 3, 4 against 1, 2, 3, 4.
    tied = np.corrcoef([1.5, 1.5, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])[0, 1]
    assert rank_correlation([0.0, 0.0, 5.0, 6.0], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(tied)


def test_no_rank_correlation_of_two_points_or_of_a_constant():
    assert rank_correlation([1.0, 2.0], [1.0, 2.0]) is None
    assert rank_correlation([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]) is None
