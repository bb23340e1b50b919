"""How fast an environment starts and steps, under random play."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ragen2.envs.base import HELD_OUT_SEEDS, Env
from ragen2.seeding import stream


@dataclass(frozen=True, slots=True)
class Speed:
    """Mean seconds of one start and of one step with its observation."""

    seconds_first_start: float
    """The first start of all: whatever is built or read from cache on first use is in it."""
    seconds_reset: float
    seconds_step: float


def measure_env(env: Env, seconds: float) -> Speed:
    """Start tasks that were never started before for ``seconds``, then step random play as long."""
    started = time.perf_counter()
    env.start(HELD_OUT_SEEDS, 0)
    first = time.perf_counter() - started
    resets, seed = 0, HELD_OUT_SEEDS
    started = time.perf_counter()
    while (reset_time := time.perf_counter() - started) < seconds or not resets:
        seed += 1
        resets += 1
        env.start(seed, 0).observation  # noqa: B018 - the observation is part of what is timed
    return Speed(first, reset_time / resets, _seconds_step(env, seconds))


def _seconds_step(env: Env, seconds: float) -> float:
    """Only steps are timed; the random player thinks off the clock."""
    rng = stream("bench", env.kind)
    total, steps, seed = 0.0, 0, HELD_OUT_SEEDS
    while total < seconds:
        seed += 1
        episode = env.start(seed, 0)
        is_done = False
        for _ in range(env.max_actions):
            action = episode.random_action(rng)
            started = time.perf_counter()
            is_done = episode.step(action).done
            episode.observation  # noqa: B018 - as above
            total += time.perf_counter() - started
            steps += 1
            if is_done:
                break
    return total / steps
