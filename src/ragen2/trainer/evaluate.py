"""Held-out evaluation: success, reward, turns and format on tasks that are never trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragen2.diagnostics import surface
from ragen2.diagnostics.resampling import wilson_of_trials
from ragen2.envs.base import HELD_OUT_SEEDS, Env
from ragen2.policy import Sampler, TextSampler
from ragen2.rollout import Rollout, Task, play
from ragen2.types import Group


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
