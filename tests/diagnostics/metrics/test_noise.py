"""The split of reward variance into policy and luck."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.diagnostics.metrics.reward import NoiseSplit, mean_split, noise_split


def test_a_split_by_hand():
    # Members' means 1 and 4, so variance between them 4.5; within each member (0, 2) and (3, 5): 2.
    split = noise_split(np.array([[0.0, 2.0], [3.0, 5.0]]))
    assert split == NoiseSplit(policy=4.5 - 2.0 / 2, environment=2.0)
    assert split.total == 5.5
    assert split.environment_ratio == pytest.approx(2.0 / 5.5)


def test_without_luck_all_of_it_is_the_policys():
    rewards = np.array([0.0, 1.0, 1.0, 0.25])
    split = noise_split(np.repeat(rewards[:, None], 3, axis=1))
    assert split.environment == 0.0
    assert split.policy == pytest.approx(rewards.var(ddof=1), abs=1e-15)
    assert split.environment_ratio == 0.0


def test_where_nothing_varies_there_is_no_ratio():
    assert noise_split(np.ones((3, 3))).environment_ratio is None


def test_the_ratio_stays_in_range_when_the_policys_part_is_below_zero():
    assert NoiseSplit(policy=-0.1, environment=0.3).environment_ratio == 1.0
    assert NoiseSplit(policy=-0.3, environment=0.3).environment_ratio == 1.0


@pytest.mark.parametrize("shape", [(2, 2), (4, 3), (3, 8)])
def test_both_parts_are_unbiased_for_small_groups(shape):
    rng = np.random.default_rng(0)
    members, replays = shape
    draws = 20_000
    skill = rng.normal(0.0, 2.0, (draws, members, 1))
    luck = rng.exponential(3.0, (draws, members, replays)) - 3.0
    splits = [noise_split(one) for one in skill + luck]
    policy = np.array([one.policy for one in splits])
    environment = np.array([one.environment for one in splits])
    for values, truth in ((policy, 4.0), (environment, 9.0)):
        assert values.mean() == pytest.approx(truth, abs=4 * values.std() / np.sqrt(draws))


def test_the_batch_is_the_mean_of_its_prompts():
    both = mean_split([NoiseSplit(1.0, 3.0), NoiseSplit(2.0, 0.0)])
    assert both == NoiseSplit(1.5, 1.5)


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (4,)])
def test_too_little_to_split_is_refused(shape):
    with pytest.raises(ValueError, match="at least 2 members x 2 replays"):
        noise_split(np.zeros(shape))
    with pytest.raises(ValueError, match="at least one prompt"):
        mean_split([])
