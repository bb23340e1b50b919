"""Held-out evaluation: success, reward, turns and format on tasks that are never trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ragen2.diagnostics import Collapse, Ema, Evidence, surface
from ragen2.diagnostics.metrics.collapse import PROBE, ScopeTraces, check_scope
from ragen2.diagnostics.statistics.resampling import wilson_of_trials
from ragen2.envs.base import HELD_OUT_SEEDS, Env
from ragen2.policy import Sampler, TextSampler
from ragen2.rollout import Rollout, Task, play
from ragen2.scoring import first_turn_traces
from ragen2.seeding import stream
from ragen2.types import Group

if TYPE_CHECKING:
    from ragen2.config import RunConfig
    from ragen2.runs.scores import ScopeScores
    from ragen2.trainer.loop import Policy


def measure_probe(
    config: RunConfig,
    policy: Policy,
    *,
    step: int,
    ema: Mapping[str, Ema],
    keep_scores: Callable[[ScopeScores], None] | None = None,
) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics under ``collapse/probe/``, or the reason why there are none; both empty when it is off."""
    if not config.evaluation.probe_prompts:
        return {}, {}
    groups = play_probe_set(config, policy)
    scope = probe_traces(config, groups)
    if scope.problem:
        return {}, {f"collapse/{PROBE}": scope.problem}
    evidence = Evidence(
        step,
        groups,
        policy,
        config.rollout.temperature,
        ema,
        config.seed,
        keep_scores=keep_scores,
    )
    return Collapse().measure_scope(scope, evidence), {}


def play_probe_set(config: RunConfig, policy: Policy) -> list[Group]:
    """One-turn replies to the first held-out tasks, sampled as in training with the same luck each time."""
    env = config.env.model_copy(update={"max_turns": 1})
    tasks = [
        [Task(seed, luck) for luck in range(config.evaluation.probe_traces)]
        for seed in range(config.evaluation.probe_prompts)
    ]
    return play(env, policy, tasks, config.rollout, key=(config.seed, PROBE))


def probe_traces(config: RunConfig, groups: list[Group]) -> ScopeTraces:
    """The reasonings of those replies."""
    return check_scope(PROBE, first_turn_traces(groups, None, stream(config.seed, PROBE)))


def evaluate(
    env: Env, sampler: Sampler | TextSampler, rollout: Rollout, *, tasks: int, seed: int = 0
) -> tuple[dict[str, float], list[Group]]:
    """Play held-out tasks 0..tasks-1 once each; metrics under ``eval/`` and the groups played."""
    if tasks > HELD_OUT_SEEDS:
        raise ValueError(f"there are {HELD_OUT_SEEDS} held-out tasks, {tasks} were asked for")
    groups = play(
        env, sampler, [[Task(task, 0)] for task in range(tasks)], rollout, key=(seed, "evaluate")
    )
    return evaluation_metrics(groups), groups


def evaluation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Success with its 95% interval, and the means of the rest."""
    found = surface(groups)
    rewards = np.concatenate([group.rewards_G for group in groups])
    count = len(rewards)
    low, high = wilson_of_trials(found["success"], count)
    return {
        "eval/success": found["success"],
        "eval/success_low": low,
        "eval/success_high": high,
        "eval/reward": float(rewards.mean()),
        "eval/turns": found["turns"],
        **(
            {"eval/format_validity": found["format_validity"]} if "format_validity" in found else {}
        ),
    }
