"""Trends: direction, size, date, and how rarely noise passes for one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ragen2.diagnostics.statistics.trends import (
    Noise,
    block_correlation,
    block_means,
    departure,
    level_shift,
    mann_kendall,
    noise_of,
    trend,
)


def correlated(length: int, correlation: float, rng: np.random.Generator) -> np.ndarray:
    values = rng.normal(size=length)
    for step in range(1, length):
        values[step] = correlation * values[step - 1] + math.sqrt(1 - correlation**2) * values[step]
    return values


def test_mann_kendall_is_the_textbook_formula():
    """Five rising values: S = 10, variance 5 * 4 * 15 / 18, and one off for continuity."""
    z = 9 / math.sqrt(50 / 3)
    assert mann_kendall(np.arange(5.0)) == pytest.approx(0.5 * math.erfc(z / math.sqrt(2)))


def test_ties_shrink_the_variance():
    """S = 4 of 1, 1, 2, 2; variance (4 * 3 * 13 - 2 * 2 * 9) / 18 = 20/3."""
    z = 3 / math.sqrt(20 / 3)
    assert mann_kendall(np.array([1.0, 1.0, 2.0, 2.0])) == pytest.approx(
        0.5 * math.erfc(z / math.sqrt(2))
    )


def test_a_constant_series_has_no_trend():
    found = trend([3.0] * 20)
    assert (found.p_rising, found.p_falling, found.change) == (1.0, 1.0, 0.0)


def test_blocks_are_means_of_neighbours():
    assert block_means(np.arange(24.0)).tolist() == [0.5 + 2 * n for n in range(12)]
    assert block_means(np.arange(4.0)).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_fall_is_a_fall_and_its_size_is_that_between_the_thirds():
    found = trend([10.0 - 0.5 * n for n in range(12)])
    assert found.p_falling < 1e-4
    assert found.p_rising == 1.0
    assert (found.start, found.end, found.change) == pytest.approx((9.25, 5.25, -4.0))


def test_five_points_are_too_few():
    assert trend([5.0, 4.0, 3.0, 2.0, 1.0]) is None


def test_correlated_neighbours_widen_the_test():
    """A correlation of 0.6 makes the variance four times as large."""
    z = 9 / math.sqrt(4 * 50 / 3)
    assert mann_kendall(np.arange(5.0), 0.6) == pytest.approx(0.5 * math.erfc(z / math.sqrt(2)))


def test_a_shift_of_level_is_measured_in_errors_of_two_means():
    """Thirds of eight around 0 and 1, noise 1: the error is sqrt(2/8), times two at correlation 0.6."""
    values = np.repeat([0.0, 7.0, 1.0], 8)
    for noise, error in ((Noise(1.0, 0.0), 0.5), (Noise(1.0, 0.6), 1.0)):
        expected = 0.5 * math.erfc(1.0 / error / math.sqrt(2))
        assert level_shift(values, noise) == pytest.approx(expected)
        assert level_shift(-values, noise) == pytest.approx(1.0 - expected)


def test_thirds_of_four_are_too_short_for_a_shift():
    assert level_shift(np.repeat([0.0, 9.0], 6), Noise(0.1, 0.0)) == 1.0


def test_noise_is_told_from_a_course_with_a_jump():
    rng = np.random.default_rng(0)
    course = np.where(np.arange(3000) < 1500, 50.0, 0.0) + 0.01 * np.arange(3000)
    found = noise_of(course + 2.0 * correlated(3000, 0.5, rng))
    assert found.std == pytest.approx(2.0, rel=0.1)
    assert found.correlation == pytest.approx(0.5, abs=0.1)


def test_blocks_are_less_alike_than_neighbours():
    """Against the sums over all pairs of two blocks of three."""
    r, lags = 0.6, np.abs(np.subtract.outer(np.arange(6), np.arange(6)))
    shared = r**lags
    expected = shared[:3, 3:].sum() / shared[:3, :3].sum()
    assert block_correlation(r, 3) == pytest.approx(expected)
    assert block_correlation(r, 1) == pytest.approx(r)
    assert block_correlation(0.0, 4) == 0.0


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_noise_is_rarely_a_trend_even_when_neighbours_are_alike(correlation):
    rng = np.random.default_rng(0)
    found = [trend(correlated(60, correlation, rng)).p_falling for _ in range(300)]
    assert np.mean(np.array(found) <= 0.01) <= 0.05


def test_a_departure_is_dated_where_the_series_leaves_its_start_for_good():
    values = [10.0] * 20 + [6.0] * 20
    values[5] = 2.0
    assert departure(list(range(100, 140)), values, trend(values)) == 120


def test_a_linear_rise_has_left_after_a_third():
    values = [float(n) for n in range(41)]
    assert departure(list(range(41)), values, trend(values)) == pytest.approx(13, abs=2)
