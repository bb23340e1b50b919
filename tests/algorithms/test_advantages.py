"""Group advantages in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.algorithms import group_advantages

rewards = st.lists(st.floats(-100, 100).map(lambda x: round(x, 2)), min_size=1, max_size=16).map(
    np.array
)


def test_scaled_advantages_of_half_successes():
    advantages = group_advantages(np.array([0.0, 1.0, 0.0, 1.0]), scale_by_std=True)
    expected = 0.5 / (np.sqrt(1 / 3) + 1e-6)
    assert advantages == pytest.approx([-expected, expected, -expected, expected])


def test_unscaled_advantages_are_centred_rewards():
    advantages = group_advantages(np.array([0.0, 1.0, 5.0]), scale_by_std=False)
    assert advantages.tolist() == [-2.0, -1.0, 3.0]


def test_one_success_among_many_stands_out():
    group = np.array([1.0] + [0.0] * 15)
    advantages = group_advantages(group, scale_by_std=True)
    assert advantages[0] == pytest.approx(15 / 16 / 0.25, rel=1e-5)
    assert advantages[1:] == pytest.approx(np.full(15, -1 / 16 / 0.25), rel=1e-5)


@pytest.mark.parametrize("scale_by_std", [True, False])
@pytest.mark.parametrize("group", [[3.0], [1.0, 1.0, 1.0], [0.1] * 7])
def test_a_group_that_says_nothing_has_advantage_exactly_zero(group, scale_by_std):
    assert not group_advantages(np.array(group), scale_by_std=scale_by_std).any()


@given(rewards, st.booleans())
def test_advantages_sum_to_zero_and_rank_like_rewards(group, scale_by_std):
    advantages = group_advantages(group, scale_by_std=scale_by_std)
    assert advantages.shape == group.shape
    assert advantages.sum() == pytest.approx(0.0, abs=1e-6)
    assert (np.diff(advantages[np.argsort(group)]) >= -1e-9).all()


@given(rewards, st.floats(-10, 10), st.sampled_from([0.5, 2.0, 10.0]))
def test_scaled_advantages_ignore_level_and_scale_of_rewards(group, shift, scale):
    advantages = group_advantages(group, scale_by_std=True)
    moved = group_advantages(group * scale + shift, scale_by_std=True)
    assert moved == pytest.approx(advantages, abs=2e-3)


@given(rewards)
def test_scaled_advantages_have_unit_spread_or_none(group):
    std = group_advantages(group, scale_by_std=True).std(ddof=1) if len(group) > 1 else 0.0
    assert std == pytest.approx(1.0, abs=1e-3) or std == 0.0
