"""Reward spread of a batch, in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.diagnostics import Evidence, Reward, reward_spread
from ragen2.diagnostics.metrics.reward import effective_number, metric_name


def spread(*groups: list[float]) -> dict[str, float]:
    return reward_spread([np.array(group) for group in groups])


def test_spread_of_a_live_and_a_dead_prompt():
    assert spread([0.0, 1.0], [1.0, 1.0]) == pytest.approx(
        {
            "mean": 0.75,
            "variance": 0.25,
            "std": np.sqrt(0.5) / 2,
            "dead_ratio": 0.5,
            "effective_batch": 2.0,
            "variance_std_over_mean": 1.0,
            "std_std_over_mean": 1.0,
            "effective_prompts": 1.0,
        }
    )


def test_prompts_of_equal_variance_have_ratio_zero():
    assert spread([0.0, 1.0], [2.0, 3.0])["variance_std_over_mean"] == 0.0


def test_the_ratio_does_not_depend_on_the_scale_of_rewards():
    small = spread([0.0, 1.0, 1.0], [0.0, 0.5, 0.0])
    large = spread([0.0, 11.0, 11.0], [0.0, 5.5, 0.0])
    assert small["variance_std_over_mean"] == pytest.approx(large["variance_std_over_mean"])


@pytest.mark.parametrize("groups", [([0.1, 0.1, 0.1],), ([0.1 + 0.2, 0.3],), ([1.0], [0.0])])
def test_without_any_variance_the_ratio_is_left_out(groups):
    found = spread(*groups)
    assert not {"variance_std_over_mean", "std_std_over_mean", "effective_prompts"} & set(found)
    assert found["effective_batch"] == 0.0
    assert (found["variance"], found["std"], found["dead_ratio"]) == (0.0, 0.0, 1.0)


def test_the_ratio_of_variances_is_not_that_of_standard_deviations():
    # Variances 2 and 0.5 (std over mean 0.75 / 1.25), standard deviations sqrt 2 and sqrt 0.5 (1 / 3).
    found = spread([0.0, 2.0], [0.0, 1.0])
    assert found["variance_std_over_mean"] == pytest.approx(0.6)
    assert found["std_std_over_mean"] == pytest.approx(1 / 3)


def test_the_effective_batch_is_the_episodes_of_prompts_with_variance():
    assert spread([0.0, 1.0, 1.0], [1.0] * 5, [0.0, 1.0])["effective_batch"] == 5.0


@pytest.mark.parametrize(
    ("weights", "expected"), [([1.0] * 4, 4.0), ([1.0, 0.0, 0.0], 1.0), ([3.0, 1.0], 1.6)]
)
def test_the_effective_number_of_prompts(weights, expected):
    values = np.array(weights)
    assert effective_number(values) == pytest.approx(expected)
    ratio = values.std() / values.mean()
    assert effective_number(values) == pytest.approx(len(weights) / (1 + ratio**2))


def test_tiny_variances_count_like_large_ones():
    assert effective_number(np.array([3e-200, 1e-200])) == pytest.approx(1.6)


def test_groups_may_differ_in_size():
    found = spread([0.0, 1.0], [0.0, 0.0, 3.0], [5.0])
    assert found["variance"] == pytest.approx((0.5 + 3.0 + 0.0) / 3)
    assert found["mean"] == pytest.approx(9.0 / 6)


def test_the_diagnostic_names_its_numbers(group_of):
    found = Reward().measure(Evidence(1, [group_of([0.0, 1.0]), group_of([1.0, 1.0])]))
    assert found == pytest.approx(
        {f"reward/{name}": value for name, value in spread([0.0, 1.0], [1.0, 1.0]).items()}
    )


def test_several_environments_are_told_apart(group_of):
    lake, bandit = group_of([0.0, 1.0]), group_of([3.0, 3.0, 3.0], env="Bandit")
    found = Reward().measure(Evidence(1, [lake, bandit]))
    assert found["reward/dead_ratio"] == 0.5
    assert (found["reward/frozen_lake/dead_ratio"], found["reward/bandit/dead_ratio"]) == (0.0, 1.0)
    assert (found["reward/frozen_lake/mean"], found["reward/bandit/mean"]) == (0.5, 3.0)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("FrozenLake", "frozen_lake"), ("SearchQA", "search_qa"), ("2048 big!", "env_2048_big")],
)
def test_an_environments_name_in_metrics(kind, name):
    assert metric_name(kind) == name
