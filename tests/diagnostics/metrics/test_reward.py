"""Reward spread of a batch, in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.diagnostics import Evidence, Reward, reward_spread
from ragen2.diagnostics.metrics.reward import (
    effective_number,
    invalid_gain,
    luck_ratio,
    metric_name,
)
from ragen2.types import Group, Message, Prompt, StopReason, Trajectory


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
        | {"reward/luck_ratio": 1.0}  # all of them did the same
    )


def played(turn_of, *members: tuple[str, float, bool]) -> Group:
    """One-turn rollouts of a prompt: action, reward, and whether the reply is valid (else it costs 0.1)."""
    prompt = Prompt("FrozenLake", 7, (Message("user", "task"),))
    turns = [
        turn_of(
            executed=(action,),
            reward=reward,
            problem="" if valid else "no answer",
            penalty=0.0 if valid else -0.1,
        )
        for action, reward, valid in members
    ]
    trajectories = (Trajectory(prompt, 0, (one,), StopReason.DONE, solved=False) for one in turns)
    return Group(prompt, tuple(trajectories))


def test_what_an_invalid_reply_earns_beside_an_honest_one(turn_of):
    costly = played(turn_of, ("Up", 1.0, True), ("", 0.0, False))
    level = played(turn_of, ("Up", -0.1, True), ("", 0.0, False))
    alone = played(turn_of, ("Up", 1.0, True), ("Down", 0.0, True))
    assert invalid_gain([costly, alone]) == pytest.approx(-1.1)
    assert invalid_gain([level]) == pytest.approx(0.0)
    assert invalid_gain([costly, level]) == pytest.approx(-0.55)
    assert invalid_gain([alone]) is None


def test_luck_is_what_the_same_actions_differ_by(turn_of):
    def group(*pairs: tuple[str, float]) -> Group:
        return played(turn_of, *((action, paid, True) for action, paid in pairs))

    assert luck_ratio([group(("Up", 1.0), ("Up", 1.0), ("Down", 0.0))]) == 0.0
    # Within "Up" the variance is 2, over all four it is 4 / 3; the split cannot exceed the whole.
    assert luck_ratio([group(("Up", 0.0), ("Up", 2.0), ("Down", 1.0))]) == 1.0
    # "Up" 0.5 (once repeated), "Down" 0: half of it over the variance of 0, 1, 0, 0.
    mixed = group(("Up", 0.0), ("Up", 1.0), ("Down", 0.0), ("Down", 0.0))
    assert luck_ratio([mixed]) == pytest.approx((0.5 / 2) / 0.25)
    assert luck_ratio([group(("Up", 0.0), ("Down", 1.0))]) is None
    assert luck_ratio([group(("Up", 1.0), ("Up", 1.0))]) is None


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
