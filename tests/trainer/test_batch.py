"""The batch of a step: rounds until enough groups pass, joined into one selection."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np
import pytest

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.config import RunConfig
from ragen2.envs import Env, FrozenLake, Step
from ragen2.envs.frozen_lake import LakeEpisode
from ragen2.errors import EnvError
from ragen2.filtering import Filter, KeepAll, Nonzero, Soft, TopKAbs, TopP, TrajectoryControl
from ragen2.rollout import Rollout
from ragen2.seeding import stream
from ragen2.trainer.batch import OTHER_LUCK, joined, play_batch, training_tasks
from ragen2.types import Selection


def anywhere(prompt: str, rng: np.random.Generator) -> str:
    """Two steps at random: short of luck most groups of two are dead."""
    moves = " || ".join(rng.choice(["Up", "Down", "Left", "Right"], size=2))
    return f"go</think><answer>{moves}</answer>"


def nowhere(prompt: str, rng: np.random.Generator) -> str:
    return "no</think><answer>Fly</answer>"


def config(rule: Filter, *, rounds: int = 0, slip: float = 0.0, **rollout) -> RunConfig:
    return RunConfig(
        env=FrozenLake(slip=slip, max_turns=3),
        rollout=Rollout(
            **{
                "prompts": 4,
                "group_size": 2,
                "resample_rounds": rounds,
                "max_tokens": 64,
                **rollout,
            }
        ),
        filter=rule,
    )


POLICY = ScriptedPolicy(anywhere)


# --- rounds ----------------------------------------------------------------------------------------


def test_without_rounds_one_batch_is_played_and_selected():
    batch = play_batch(config(Nonzero()), POLICY, 1)
    assert batch.rounds == 1
    assert len(batch.groups) == len(batch.selection.kept_P) == 4


def test_rounds_go_on_until_enough_groups_pass_and_no_longer():
    settings = config(Nonzero(), rounds=50)
    batch = play_batch(settings, POLICY, 1)
    assert 1 < batch.rounds < 51
    assert len(batch.groups) == 4 * batch.rounds
    assert batch.selection.kept_P.sum() == 4
    before_last = batch.selection.scores_P[: -settings.rollout.prompts]
    assert (before_last > 0).sum() < 4


def test_the_first_groups_that_pass_are_taken():
    batch = play_batch(config(Nonzero(), rounds=50), POLICY, 1)
    live = np.flatnonzero(batch.selection.scores_P > 0)
    assert np.flatnonzero(batch.selection.kept_P).tolist() == live[:4].tolist()


def test_the_number_of_rounds_has_an_end():
    batch = play_batch(config(Nonzero(), rounds=2), ScriptedPolicy(nowhere), 1)
    assert batch.rounds == 3
    assert len(batch.groups) == 12
    assert not batch.selection.kept_P.any()
    assert batch.selection.reason == (
        "every prompt is dead: none of 12 played in 3 rounds passed the filter "
        "(all 4 prompts have zero reward_variance)"
    )


def test_rounds_play_new_tasks_that_no_other_step_plays():
    settings = config(Nonzero(), rounds=2)
    seeds = [
        group[0].seed
        for step in range(1, 20)
        for round_ in range(3)
        for group in training_tasks(settings, step, round_)
    ]
    assert len(set(seeds)) == len(seeds)


def test_the_first_round_does_not_depend_on_how_many_may_follow():
    one = play_batch(config(Nonzero()), POLICY, 1)
    more = play_batch(config(Nonzero(), rounds=3), POLICY, 1)
    for first, second in zip(one.groups, more.groups, strict=False):
        assert first.rewards_G.tolist() == second.rewards_G.tolist()


def test_a_batch_is_a_function_of_seed_and_step():
    settings = config(Nonzero(), rounds=5)
    first, again = (play_batch(settings, POLICY, 3) for _ in range(2))
    assert first.selection.scores_P.tolist() == again.selection.scores_P.tolist()
    other = play_batch(settings, POLICY, 4)
    assert {g.prompt.seed for g in other.groups}.isdisjoint(g.prompt.seed for g in first.groups)


# --- rounds with other rules -----------------------------------------------------------------------


@pytest.mark.parametrize("rule", [KeepAll(), TrajectoryControl()])
def test_rules_that_keep_all_prompts_need_one_round(rule):
    assert play_batch(config(rule, rounds=5), POLICY, 1).rounds == 1


def test_soft_weights_are_relative_to_all_rounds_together():
    batch = play_batch(config(Soft(), rounds=20, group_size=3), POLICY, 1)
    assert batch.rounds > 1
    scores = batch.selection.scores_P
    assert batch.selection.weights_P == pytest.approx(scores / scores.max())
    assert len(batch.selection.kept_weights) == batch.selection.kept_P.sum() == 4


class Picky(TrajectoryControl):
    """Drops dead prompts, and of the others the members in the middle."""

    kind: Literal["picky"] = "picky"

    def keep(self, scores_P):
        return scores_P > 0.0


Filter.registry.pop("picky")  # known to this file only


def test_members_of_all_rounds_stay_with_their_groups():
    batch = play_batch(config(Picky(), rounds=20, group_size=4), POLICY, 1)
    assert batch.rounds > 1
    kept = batch.selection.apply(batch.groups)
    rows = batch.selection.kept_members(kept)
    assert len(rows) == len(kept) == 4
    for group, mask in zip(kept, rows, strict=True):
        assert mask.tolist() == TrajectoryControl().members([group.rewards_G])[0].tolist()


def test_a_rule_with_a_fixed_number_keeps_that_many_of_each_round():
    batch = play_batch(config(TopKAbs(count=1), rounds=50), POLICY, 1)
    per_round = batch.selection.kept_P.reshape(batch.rounds, 4).sum(axis=1)
    assert per_round.max() == 1
    assert batch.selection.kept_P.sum() == 4


def test_joining_one_round_changes_nothing():
    only = Selection(np.array([True, True, True]), np.ones(3))
    assert joined(KeepAll(), [only], most=2) is only


# --- plug-ins --------------------------------------------------------------------------------------


class OldRule(Filter):
    """A plug-in that knows `keep` alone."""

    kind: Literal["old_rule"] = "old_rule"

    def keep(self, scores_P):
        return scores_P > 0.0


class OldSelect(OldRule):
    """A plug-in that brought its own `select`, of groups alone."""

    kind: Literal["old_select"] = "old_select"

    def select(self, groups):
        scores_P = np.array([group.rewards_G.max() for group in groups])
        return Selection(scores_P > 0.0, scores_P, "" if scores_P.any() else "nothing")


for _kind in ("old_rule", "old_select"):
    Filter.registry.pop(_kind)


@pytest.mark.parametrize("rule", [OldRule(), OldSelect()])
@pytest.mark.parametrize("rounds", [0, 3])
def test_rules_that_know_neither_weights_nor_members_nor_noise_still_work(rule, rounds):
    batch = play_batch(config(rule, rounds=rounds), POLICY, 2)
    selection = batch.selection
    assert selection.weights_P is None
    assert selection.members is None
    kept = selection.apply(batch.groups)
    assert [mask.all() for mask in selection.kept_members(kept)] == [True] * len(kept)
    assert selection.kept_weights.tolist() == [1.0] * len(kept)


# --- noise -----------------------------------------------------------------------------------------


def test_measured_luck_is_taken_off_each_prompt():
    plain = play_batch(config(KeepAll(), slip=0.6, group_size=6), POLICY, 1)
    less = play_batch(config(KeepAll(noise_replays=8), slip=0.6, group_size=6), POLICY, 1)
    assert (less.selection.scores_P <= plain.selection.scores_P).all()
    assert (less.selection.scores_P < plain.selection.scores_P).any()


def test_where_luck_does_nothing_none_is_measured():
    plain, replayed = (
        play_batch(config(TopP(noise_replays=n)), POLICY, 1).selection.scores_P for n in (0, 4)
    )
    assert replayed.tolist() == plain.tolist()


def test_a_group_of_one_has_no_noise_to_measure():
    batch = play_batch(config(KeepAll(noise_replays=4), slip=0.5, group_size=1), POLICY, 1)
    assert batch.selection.scores_P.tolist() == [0.0] * 4


class MoodyLake(FrozenLake):
    """Breaks, or pays NaN, when it is played again."""

    kind: Literal["MoodyLake"] = "MoodyLake"
    mood: Literal["raises", "pays nan"] = "raises"

    def start(self, seed: int, luck: int) -> LakeEpisode:
        if luck < OTHER_LUCK:
            return super().start(seed, luck)
        if self.mood == "raises":
            raise RuntimeError("two\nlines")
        return Unpaid(self, super().start(seed, luck).lake, stream(seed, luck))


class Unpaid(LakeEpisode):
    """One of those plays."""

    def step(self, action: str) -> Step:
        return dataclasses.replace(super().step(action), reward=math.nan)


Env.registry.pop("MoodyLake")


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        (
            "raises",
            r"start of task 100000 raised RuntimeError: two lines \(test_batch.py, line \d+\)",
        ),
        (
            "pays nan",
            r"step of task 100000 for '.*' gave the reward nan; it must be a finite number",
        ),
    ],
)
def test_an_environment_that_breaks_in_a_replay_is_named_in_one_line(mood, words):
    settings = config(KeepAll(noise_replays=2), slip=0.5)
    broken = settings.model_copy(update={"env": MoodyLake(slip=0.5, mood=mood)})
    with pytest.raises(EnvError, match=rf"^MoodyLake: {words}, when its actions") as error:
        play_batch(broken, POLICY, 1)
    assert len(str(error.value).splitlines()) == 1
