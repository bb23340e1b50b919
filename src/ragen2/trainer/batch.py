"""The batch of a step: what is played, and what the filter keeps of it.

With ``rollout.resample_rounds`` more is played until enough groups pass the filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ragen2.diagnostics.metrics.reward import noise_split
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.errors import EnvError
from ragen2.rollout import Task, play
from ragen2.trainer.replay import replayed_returns
from ragen2.types import Group, Selection

if TYPE_CHECKING:
    from ragen2.config import RunConfig
    from ragen2.envs import Env
    from ragen2.filtering import Filter
    from ragen2.policy import Sampler
    from ragen2.types import FloatArray

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
        groups = play(config.env, sampler, tasks, config.rollout, key=key)
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
    where = f"{group.prompt.env} seed {group.prompt.seed}"
    try:
        returns_GR = replayed_returns(env, group, replays)
    except Exception as error:
        raise EnvError(
            f"{where} raised {type(error).__name__} when its actions were played again; mend it, or "
            "set filter.noise_replays to 0"
        ) from error
    if not np.isfinite(returns_GR).all():
        raise EnvError(
            f"{where} returned a reward that is not finite when its actions were played again; an "
            "environment must pay finite rewards"
        )
    return noise_split(returns_GR).environment
