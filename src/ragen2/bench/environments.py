"""How fast an environment starts and steps, under random play."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
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


@dataclass(frozen=True, slots=True)
class Workload:
    """A job that training does often, and how long it took."""

    what: str
    seconds: float


def measure_workloads() -> list[Workload]:
    """Searching passages, searching the shop and grading programs, in the amounts a step needs."""
    return [_search_passages(128), _search_shop(200), _grade_programs(100)]


def _search_passages(count: int) -> Workload:
    env = Env.from_dict({"kind": "SearchQA"})
    episodes = [env.start(HELD_OUT_SEEDS + i, 0) for i in range(count)]
    queries = [f"search[{episode.observation[:200]}]" for episode in episodes]
    episodes[0].expert()  # builds or reads the index, off the clock
    env.start(0, 0).step(queries[0])
    started = time.perf_counter()
    for episode, query in zip(episodes, queries, strict=True):
        episode.step(query)
    return Workload(f"SearchQA: {count} queries", time.perf_counter() - started)


def _search_shop(count: int) -> Workload:
    env = Env.from_dict({"kind": "WebShop"})
    env.start(0, 0).step("search[a red chair]")
    slowest = 0.0
    for i in range(count):
        episode = env.start(HELD_OUT_SEEDS + i, 0)
        query = episode.expert()[0]
        started = time.perf_counter()
        episode.step(query)
        slowest = max(slowest, time.perf_counter() - started)
    return Workload(f"WebShop: slowest of {count} searches", slowest)


def _grade_programs(count: int) -> Workload:
    env = Env.from_dict({"kind": "DeepCoder"})
    episodes = [env.start(HELD_OUT_SEEDS + i, 0) for i in range(count)]
    # A comment makes each program new: verdicts on programs seen before are remembered.
    programs = [f"{episode.expert()[0]}\n# run {i}" for i, episode in enumerate(episodes)]
    started = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        steps = list(
            pool.map(lambda pair: pair[0].step(pair[1]), zip(episodes, programs, strict=True))
        )
    seconds = time.perf_counter() - started
    solved = sum(step.solved for step in steps)
    return Workload(f"DeepCoder: {count} programs, two at a time, {solved} right", seconds)
