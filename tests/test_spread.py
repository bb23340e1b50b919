"""Spread of rewards: reference values, and what counts as none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.spread import spread

rewards = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=2, max_size=16)


def test_variance_and_std_are_what_they_are_called():
    group = np.array([0.0, 1.0, 1.0, 0.0])
    assert spread(group, "reward_variance", ddof=1) == pytest.approx(1 / 3)
    assert spread(group, "reward_std", ddof=1) == pytest.approx(np.sqrt(1 / 3))
    assert spread(group, "reward_variance", ddof=0) == pytest.approx(1 / 4)
    assert spread(group, "reward_std", ddof=0) == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("low", "high", "stds"),
    [
        (-1.0, 10.4, [2.85, 3.89, 4.60, 5.10, 5.46, 5.70, 5.84, 5.89]),
        (0.0, 1.0, [0.25, 0.342, 0.403, 0.447, 0.479, 0.5, 0.512, 0.516]),
    ],
)
def test_reference_values_of_sixteen_rollouts_with_one_to_eight_successes(low, high, stds):
    for successes, std in enumerate(stds, 1):
        for count in (successes, 16 - successes):
            group = np.array([high] * count + [low] * (16 - count))
            assert spread(group, "reward_std", ddof=1) == pytest.approx(std, abs=6e-3)


@pytest.mark.parametrize(
    "group",
    [[2.0], [1.0, 1.0, 1.0], [0.1] * 3, [0.1 + 0.2, 0.3], [-0.1 * 3, -0.1 - 0.1 - 0.1], [1e9, 1e9]],
)
def test_a_group_of_one_or_of_equal_rewards_has_no_spread(group):
    assert spread(np.array(group), "reward_variance", ddof=1) == 0.0


@pytest.mark.parametrize("size", [1.0, -1.0, 250.0])
def test_a_difference_of_rounding_is_no_spread_whatever_the_size_of_rewards(size):
    assert spread(size * np.array([1.0, 1.0 + 1e-11]), "reward_variance", ddof=1) == 0.0
    # A trainer in single precision summed the same rewards in another order.
    forth, back = (sum(np.float32([0.1, 0.1, 0.5])[::way], np.float32(0)) for way in (1, -1))
    assert forth != back
    assert spread(size * np.array([forth, back], dtype=np.float64), "reward_std", ddof=1) == 0.0


def test_one_part_in_a_million_is_spread():
    assert spread(np.array([1e6, 1e6 + 1.0]), "reward_variance", ddof=1) == pytest.approx(0.5)


def test_a_small_difference_between_small_rewards_is_spread():
    assert spread(np.array([0.001, 0.002]), "reward_std", ddof=1) == pytest.approx(
        0.000707, abs=1e-6
    )


@given(rewards)
def test_std_is_the_root_of_variance_and_the_order_does_not_matter(group):
    array = np.array(group)
    variance = spread(array, "reward_variance", ddof=1)
    assert spread(array, "reward_std", ddof=1) == pytest.approx(np.sqrt(variance))
    assert spread(array[::-1], "reward_variance", ddof=1) == pytest.approx(variance)
