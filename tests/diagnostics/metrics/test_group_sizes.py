"""Dead prompts at other group sizes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from ragen2.diagnostics.metrics.reward import all_alike, forecast_dead, subset_dead


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_smaller_group_is_counted_subset_by_subset(size):
    rewards = np.array([0.0, 0.0, 1.0, 1.0, 1.0, 0.5])
    subsets = list(combinations(rewards.tolist(), size))
    expected = np.mean([len(set(subset)) == 1 for subset in subsets])
    assert subset_dead(rewards, size) == pytest.approx(expected)


def test_at_the_size_played_it_is_what_was_seen():
    rewards = [np.array([0.0, 1.0]), np.array([1.0, 1.0]), np.array([0.0, 0.0])]
    (seen,) = forecast_dead(rewards, [2])
    assert seen.dead_ratio == pytest.approx(2 / 3)
    assert not seen.is_extrapolated


def test_a_subset_larger_than_the_group_is_refused():
    with pytest.raises(ValueError, match="subset of 3"):
        subset_dead(np.zeros(2), 3)


def test_a_known_chance_gives_its_power():
    # 2000 prompts of 40 tries with p = 0.5 leave no doubt about the distribution of p.
    hits = np.random.default_rng(0).binomial(40, 0.5, 2000)
    assert all_alike(hits, np.full(2000, 40), 3) == pytest.approx(0.5**3, abs=0.005)


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.5), (1.0, 1.0), (2.0, 6.0)])
def test_larger_groups_of_binary_rewards_match_the_truth(a, b):
    rng = np.random.default_rng(1)
    chances = rng.beta(a, b, 400)
    rewards = [(rng.random(8) < chance).astype(float) for chance in chances]
    many = rng.beta(a, b, 200_000)
    for found in forecast_dead(rewards, [16, 32]):
        truth = np.mean(many**found.group_size + (1 - many) ** found.group_size)
        assert found.is_extrapolated
        assert found.dead_ratio == pytest.approx(truth, abs=0.05)


def test_a_third_level_only_lowers_the_share():
    rng = np.random.default_rng(2)
    two = [(rng.random(8) < 0.3).astype(float) for _ in range(50)]
    three = [np.where(rng.random(8) < 0.2, -0.1, rewards) for rewards in two]
    (dead_two,), (dead_three,) = forecast_dead(two, [16]), forecast_dead(three, [16])
    assert 0.0 <= dead_three.dead_ratio < dead_two.dead_ratio


def test_dead_prompts_need_not_stay_dead_in_larger_groups():
    (found,) = forecast_dead([np.zeros(4)] * 8, [64])
    assert 0.5 < found.dead_ratio < 1.0


def test_continuous_returns_are_not_extrapolated():
    rewards = list(np.random.default_rng(3).normal(size=(8, 8)))
    assert [found.group_size for found in forecast_dead(rewards, [4, 8, 16])] == [4, 8]
