"""Replays: planted prompts are labelled, luck is split off, and nothing else moves."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from planted import TRUTH, PlantedCountdown, PlantedLake, plant, play_planted

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.diagnostics import Contrasts, Evidence, Label, Triage, noise_split
from ragen2.diagnostics.metrics.reward import mean_split
from ragen2.envs import Bandit, FrozenLake
from ragen2.envs.frozen_lake import Lake, LakeEpisode
from ragen2.rollout import Rollout, Task, play
from ragen2.seeding import stream
from ragen2.trainer.batch import (
    EnvReplayer,
    play_expert,
    play_random,
    replay_actions,
    replayed_returns,
)


def labelled(env, *, replays: int) -> tuple[float, Counter[str]]:
    """Share of flat planted prompts with the right label, and how many of each plant were flat."""
    groups = play_planted(env, prompts=120, group_size=8)
    found = Triage(replays=replays).judge(Evidence(1, groups, replayer=EnvReplayer(env)))
    rows = [
        (plant(group.prompt.seed), one.label)
        for group, one in zip(groups, found, strict=True)
        if plant(group.prompt.seed) in TRUTH and one.label is not Label.LIVE
    ]
    right = np.mean([label is TRUTH[kind] for kind, label in rows])
    return float(right), Counter(kind for kind, _ in rows)


@pytest.mark.parametrize(
    "env",
    [PlantedLake(slip=0.0), PlantedLake(slip=0.1), PlantedCountdown()],
    ids=["lake", "slippery lake", "countdown"],
)
def test_planted_prompts_are_labelled_with_the_environment(env):
    right, counts = labelled(env, replays=4)
    assert right >= 0.95
    assert all(counts[kind] >= 8 for kind in TRUTH), counts


@pytest.mark.parametrize("env", [PlantedLake(slip=0.0), PlantedCountdown()], ids=lambda e: e.kind)
def test_rollouts_alone_label_most_planted_prompts(env):
    right, _ = labelled(env, replays=0)
    assert right >= 0.85


def test_a_replay_under_the_same_luck_is_the_same_play():
    env = FrozenLake(slip=0.5)
    groups = play_planted(PlantedLake(slip=0.5), prompts=6, group_size=4)
    (group,) = [one for one in groups if plant(one.prompt.seed) == "live"]
    for trajectory in group.trajectories:
        actions = [action for turn in trajectory.turns for action in turn.executed]
        again = replay_actions(env, group.prompt.seed, trajectory.luck, actions)
        assert again.reward == trajectory.reward
        assert again.solved == trajectory.solved
        assert again.outcome == trajectory.turns[-1].observation
        assert again.actions == tuple(actions)


def test_a_replay_stops_at_the_end_and_at_the_last_action_allowed():
    env = FrozenLake(slip=0.0, max_actions=3)
    played = replay_actions(env, 5, 0, ["Up"] * 9)
    assert len(played.actions) <= 3
    best = play_expert(env.model_copy(update={"max_actions": 20}), 5, 0)
    assert (best.reward, best.solved) == (1.0, True)
    more = replay_actions(env.model_copy(update={"max_actions": 20}), 5, 0, [*best.actions, "Up"])
    assert more.actions == best.actions


def test_random_play_is_named_by_seed_and_luck():
    env = FrozenLake()
    assert play_random(env, 3, 4) == play_random(env, 3, 4)
    assert len({play_random(env, 3, luck).actions for luck in range(8)}) > 4


def bandit_group(env: Bandit, seed: int, choices: list[int]):
    """A group whose member i takes arm ``choices[i]``: 0 steady, 1 risky."""
    risky = env.start(seed, 0).risky
    names = env.start(seed, 0).names
    steady = next(name for name in names if name != risky)
    order = iter([risky if choice else steady for choice in choices])
    policy = ScriptedPolicy(lambda prompt, rng: f"so</think><answer>{next(order)}</answer>")
    tasks = [[Task(seed, luck) for luck in range(len(choices))]]
    return play(env, policy, tasks, Rollout(prompts=1, group_size=len(choices)), key=("b",))[0]


def test_the_noise_of_a_bandit_is_what_its_odds_say():
    # Risky pays 1 with chance 0.25: variance 3/16, mean 0.25. Steady pays 0.1. Two members each.
    env = Bandit()
    splits = [
        noise_split(replayed_returns(env, bandit_group(env, 100_000 + seed, [0, 0, 1, 1]), 4))
        for seed in range(800)
    ]
    environment = np.array([one.environment for one in splits])
    policy = np.array([one.policy for one in splits])
    truth_environment = 0.5 * 0.25 * 0.75
    truth_policy = np.var([0.1, 0.1, 0.25, 0.25], ddof=1)
    for values, truth in ((environment, truth_environment), (policy, truth_policy)):
        assert values.mean() == pytest.approx(truth, abs=4 * values.std() / np.sqrt(len(values)))
    assert mean_split(splits).total == pytest.approx(environment.mean() + policy.mean())


def test_the_noise_of_one_slippery_step_is_exact():
    # Down reaches the goal unless it slips to a side: chance 1 - slip, variance slip (1 - slip).
    slip = 0.3
    env = FrozenLake(slip=slip, max_actions=1)
    lake = Lake(3, frozenset(), (0, 1), (1, 1))

    def reward(luck: int) -> float:
        return LakeEpisode(env, lake, stream("slips", luck)).step("Down").reward

    draws = np.array([[reward(4 * prompt + r) for r in range(4)] for prompt in range(2000)])
    values = np.array([noise_split(pair).environment for pair in draws.reshape(-1, 2, 4)])
    assert values.mean() == pytest.approx(
        slip * (1 - slip), abs=4 * values.std() / np.sqrt(len(values))
    )


@pytest.mark.parametrize("env", [PlantedLake(slip=0.0), PlantedCountdown()], ids=lambda e: e.kind)
def test_without_luck_there_is_no_noise(env):
    for group in play_planted(env, prompts=12, group_size=4):
        split = noise_split(replayed_returns(env, group, 4))
        assert split.environment == 0.0
        assert split.policy == pytest.approx(group.rewards_G.var(ddof=1), abs=1e-12)


def test_format_penalties_are_the_policys():
    env = FrozenLake(slip=0.0)
    replies = iter(["bad", "so</think><answer>Up</answer>"] * 10)
    policy = ScriptedPolicy(lambda prompt, rng: next(replies))
    tasks = [[Task(100_001, luck) for luck in range(2)]]
    (group,) = play(env, policy, tasks, Rollout(prompts=1, group_size=2), key=("p",))
    split = noise_split(replayed_returns(env, group, 3))
    assert group.rewards_G.var(ddof=1) > 0.0
    assert split.policy == pytest.approx(group.rewards_G.var(ddof=1))


class Broken:
    """An environment that can be started and no more."""

    kind = "Broken"
    step_timeout = 0.0
    stochastic = False
    reward_range = (0.0, 1.0)
    max_actions = 3
    max_turns = 1

    def start(self, seed, luck):
        raise ValueError(f"no task {seed}")


def test_an_environment_that_raises_gives_no_contrasts_and_says_why(group_of):
    found = EnvReplayer(Broken()).contrasts(group_of([0.0, 0.0], seed=4), 2)
    assert found.plays == Contrasts().plays
    assert re.fullmatch(
        r"Broken: start of task 4 raised ValueError: no task 4 \(test_replay.py, line \d+\)",
        found.problem,
    )


def test_contrasts_of_a_deterministic_environment_replay_no_member():
    groups = play_planted(PlantedCountdown(), prompts=2, group_size=2)
    found = EnvReplayer(PlantedCountdown()).contrasts(groups[0], 5)
    assert (len(found.expert), len(found.random), found.own) == (1, 5, ())
    assert found.one_turn


def test_contrasts_of_a_lucky_environment_spread_over_what_members_did():
    env = PlantedLake()
    group = play_planted(env, prompts=1, group_size=4)[0]
    found = EnvReplayer(env).contrasts(group, 6)
    assert [len(found.expert), len(found.random), len(found.own)] == [6, 6, 6]
    assert not found.one_turn
    assert len({play.actions for play in found.own}) > 1
