"""What an environment pays those who do not try: invalid replies, and actions that change nothing.

Where an invalid reply pays no less than a try that fails, saying nothing is the first thing a policy learns:
before its first success, failing is all that trying earns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ragen2.envs.base import HELD_OUT_SEEDS, Env
from ragen2.envs.guard import missing_methods, start_episode
from ragen2.trainer.batch import play_expert, play_random

if TYPE_CHECKING:
    from ragen2.config import RunConfig

TASKS = 32
EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class Incentives:
    """Mean returns of scripted policies, format penalties included."""

    invalid: float
    """Every reply invalid."""
    idle: float | None
    """One action per turn that changes nothing; None where none of the actions is such."""
    random: float | None
    """Legal actions at random, as many as are taken; None where the environment draws none."""
    failed: float | None
    """Those of them that solved nothing; None where all did."""
    expert: float | None
    """A scripted expert; None where the environment has none."""

    @property
    def warning(self) -> str:
        """One line where an invalid reply pays at least as well as trying; empty where it does not."""
        if self.failed is None or self.invalid < self.failed - EQUAL:
            return ""
        return (
            f"An invalid reply pays no less than an honest try that fails: {self.invalid:.2f} and "
            f"{self.failed:.2f} per episode"
        )


def measure_incentives(config: RunConfig) -> Incentives:
    """Play training tasks with policies that need no model."""
    env, rollout = config.env, config.rollout
    seeds = range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + TASKS)
    idle = [_idle_return(env, seed) for seed in seeds] if env.has_fixed_actions else []
    missing = missing_methods(env)
    random = [] if "random_action" in missing else [play_random(env, seed, 0) for seed in seeds]
    expert = [] if "expert" in missing else [play_expert(env, seed, 0) for seed in seeds]
    return Incentives(
        invalid=rollout.penalty(env) * env.max_turns,
        idle=_mean([one for one in idle if one is not None]),
        random=_mean([one.reward for one in random]),
        failed=_mean([one.reward for one in random if not one.solved]),
        expert=_mean([one.reward for one in expert]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _idle_return(env: Env, seed: int) -> float | None:
    """The return of an action that changes nothing, taken once per turn; None where there is none."""
    for action in env.action_forms:
        if start_episode(env, seed, 0).step(action).effective:
            continue
        episode, paid = start_episode(env, seed, 0), 0.0
        for _ in range(min(env.max_turns, env.max_actions)):
            step = episode.step(action)
            paid += step.reward
            if step.done:
                break
        return paid
    return None
