"""The batch of a step: what is played, what the filter keeps of it, and what is played again.

With ``rollout.resample_rounds`` more is played until enough groups pass the filter. A prompt is played again
in its environment for contrasts (other behaviour), or to measure luck (the same actions, other noise).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ragen2.diagnostics.base import Contrasts, Played, executed_actions
from ragen2.diagnostics.metrics.reward import noise_split
from ragen2.envs.base import HELD_OUT_SEEDS, Env, Episode, image_name
from ragen2.envs.guard import start_episode
from ragen2.errors import EnvError, MissingMethod, told
from ragen2.rollout import Task, play
from ragen2.rollout.play import refuse_broken
from ragen2.seeding import stream
from ragen2.types import FloatArray, Group, Selection

if TYPE_CHECKING:
    from ragen2.config import RunConfig
    from ragen2.filtering import Filter
    from ragen2.policy import Sampler

REPLAY_LUCK = 1_000_000
"""Lucks from here on belong to replays, so that none repeats the luck of a member."""
OTHER_LUCK = 2_000_000
"""Lucks from here on belong to replays of members' own actions."""
SEEDS_PER_RUN = 10_000_000
"""Distance between the first tasks of two run seeds: no two runs share tasks before this many."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Groups that were played together; with resampling, also what the filter keeps of them."""

    groups: list[Group]
    selection: Selection | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Everything that was played for a step, and which of it is updated on."""

    groups: list[Group]
    selection: Selection
    rounds: int


def training_tasks(config: RunConfig, step: int, round_: int = 0) -> list[list[Task]]:
    """The tasks of a round: a function of seed and step alone, disjoint from all held-out ones."""
    prompts, size = config.rollout.prompts, config.rollout.group_size
    batches = (step - 1) * (config.rollout.resample_rounds + 1) + round_
    first = HELD_OUT_SEEDS + config.seed * SEEDS_PER_RUN + batches * prompts
    return [[Task(first + p, luck) for luck in range(size)] for p in range(prompts)]


def play_rounds(config: RunConfig, sampler: Sampler, step: int) -> list[Round]:
    """One round; with ``rollout.resample_rounds``, more until ``rollout.prompts`` groups are kept."""
    rounds: list[Round] = []
    num_kept = 0
    for number in range(config.rollout.resample_rounds + 1):
        key = (config.seed, "train", step, *(("round", number) if number else ()))
        tasks = training_tasks(config, step, number)
        groups = play(config.env, sampler, tasks, config.rollout, key=key, prompt=config.prompt)
        refuse_broken(groups)
        if not config.rollout.resample_rounds:
            return [Round(groups)]
        selection = select_groups(config, groups)
        rounds.append(Round(groups, selection))
        num_kept += int(selection.kept_P.sum())
        if num_kept >= config.rollout.prompts:
            break
    return rounds


def select_rounds(config: RunConfig, rounds: Sequence[Round]) -> Selection:
    """What the filter keeps of all rounds of a step; rounds that it has seen are not filtered again."""
    selections = [one.selection or select_groups(config, one.groups) for one in rounds]
    return joined(config.filter, selections, config.rollout.prompts)


def play_batch(config: RunConfig, sampler: Sampler, step: int) -> Batch:
    """Play the rounds of a step and filter them."""
    rounds = play_rounds(config, sampler, step)
    groups = [group for one in rounds for group in one.groups]
    return Batch(groups, select_rounds(config, rounds), len(rounds))


def joined(rule: Filter, selections: Sequence[Selection], most: int) -> Selection:
    """The rounds' selections as one, with the first ``most`` kept prompts.

    Each round keeps what the rule keeps of it; weights are relative to all rounds together.
    """
    if len(selections) == 1:
        return selections[0]
    kept_P = np.concatenate([one.kept_P for one in selections])
    kept_P[np.flatnonzero(kept_P)[most:]] = False
    scores_P = np.concatenate([one.scores_P for one in selections])
    members = [rows for one in selections for rows in one.members or ()]
    reason = (
        ""
        if kept_P.any()
        else f"every prompt is dead: none of {len(kept_P)} played in {len(selections)} rounds passed "
        f"the filter ({selections[-1].reason})"
    )
    return Selection(
        kept_P, scores_P, reason, rule.weights(scores_P), tuple(members) if members else None
    )


def select_groups(config: RunConfig, groups: Sequence[Group]) -> Selection:
    """What the run's filter keeps of a played round, noise taken off where that is asked for."""
    noise_P = _noise(config, groups)
    # A plug-in's own ``select`` need not know about measured noise unless that is asked for.
    return (
        config.filter.select(groups) if noise_P is None else config.filter.select(groups, noise_P)
    )


def _noise(config: RunConfig, groups: Sequence[Group]) -> FloatArray | None:
    """Reward variance of each prompt that is luck, measured by replay; None when not asked for."""
    replays = config.filter.noise_replays
    if not replays or not config.env.stochastic:
        return None
    return np.array(
        [
            _luck(config.env, group, max(2, replays)) if len(group.trajectories) > 1 else 0.0
            for group in groups
        ]
    )


def _luck(env: Env, group: Group, replays: int) -> float:
    """Variance of a return when its actions stay the same."""
    try:
        return noise_split(replayed_returns(env, group, replays)).environment
    except EnvError as error:
        raise EnvError(
            f"{error}, when its actions were played again; mend it, or set filter.noise_replays to 0"
        ) from error


@dataclass(frozen=True, slots=True)
class EnvReplayer:
    """Contrasts from one environment."""

    env: Env

    @property
    def reward_range(self) -> tuple[float, float]:
        """What the environment states."""
        return self.env.reward_range

    def contrasts(self, group: Group, replays: int) -> Contrasts:
        """The expert, random play, and the members' own actions under other luck.

        Where luck does nothing the expert plays once and members are not replayed. An environment that
        raises gives contrasts without plays and says why: a diagnostic must not end a run.
        """
        seed = group.prompt.seed
        lucks = range(REPLAY_LUCK, REPLAY_LUCK + replays)
        try:
            missing: list[str] = []
            once = lucks[: replays if self.env.stochastic else 1]
            return Contrasts(
                expert=self._scripted(play_expert, seed, once, missing),
                random=self._scripted(play_random, seed, lucks, missing),
                missing=tuple(missing),
                own=self._own(group, replays) if self.env.stochastic else (),
                one_turn=self.env.max_turns == 1,
            )
        except Exception as error:  # noqa: BLE001 - a broken environment becomes data, as in a rollout
            return Contrasts(problem=str(error) if isinstance(error, EnvError) else told(error))

    def _scripted(
        self,
        play: Callable[[Env, int, int], Played],
        seed: int,
        lucks: Sequence[int],
        missing: list[str],
    ) -> tuple[Played, ...]:
        """A play under each luck; none where the environment lacks what plays it, which is noted."""
        try:
            return tuple(play(self.env, seed, luck) for luck in lucks)
        except MissingMethod as error:
            missing.append(str(error))
            return ()

    def _own(self, group: Group, replays: int) -> tuple[Played, ...]:
        """``replays`` plays in all, spread over members that did different things."""
        plans = list(dict.fromkeys(executed_actions(one) for one in group.trajectories))
        return tuple(
            replay_actions(
                self.env, group.prompt.seed, OTHER_LUCK + index, plans[index % len(plans)]
            )
            for index in range(replays)
        )


def replay_actions(env: Env, seed: int, luck: int, actions: Sequence[str]) -> Played:
    """These actions, in order, until the episode ends."""
    plan = iter(actions)
    return _play(env, start_episode(env, seed, luck), lambda: next(plan, None))


def play_expert(env: Env, seed: int, luck: int) -> Played:
    """The scripted expert until it has no plan; where luck matters it is asked before each action."""
    episode = start_episode(env, seed, luck)
    plan: list[str] = []

    def choose() -> str | None:
        if env.stochastic or not plan:
            plan[:] = episode.expert()
        return plan.pop(0) if plan else None

    return _play(env, episode, choose)


def play_random(env: Env, seed: int, luck: int) -> Played:
    """Legal actions at random, as many as the environment allows."""
    episode = start_episode(env, seed, luck)
    rng = stream("replay", "random", seed, luck)
    return _play(env, episode, lambda: episode.random_action(rng))


def replayed_returns(env: Env, group: Group, replays: int) -> FloatArray:
    """Returns G x R of each member's actions under ``replays`` lucks of its own.

    No two plays share a luck, so that luck is independent noise. A member's format penalties are part
    of each of its returns: luck does not touch them.
    """
    returns_GR = np.empty((len(group.trajectories), replays))
    for member, trajectory in enumerate(group.trajectories):
        actions = executed_actions(trajectory)
        penalty = sum(turn.penalty for turn in trajectory.turns)
        for index in range(replays):
            luck = OTHER_LUCK + member * replays + index
            played = replay_actions(env, group.prompt.seed, luck, actions)
            returns_GR[member, index] = played.reward + penalty
    return returns_GR


def _play(env: Env, episode: Episode, choose: Callable[[], str | None]) -> Played:
    """Play what ``choose`` gives until the end, the last action allowed, or None."""
    taken: list[str] = []
    reward, solved = 0.0, False
    while len(taken) < env.max_actions and (action := choose()) is not None:
        step = episode.step(action)
        taken.append(action)
        reward += step.reward
        if step.done:
            solved = step.solved
            break
    return Played(reward, solved, tuple(taken), episode.observation, image_name(episode))
