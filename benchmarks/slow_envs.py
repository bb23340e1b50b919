"""What stepping a slow environment in threads, beside sampling, saves of a rollout.

Plays DeepCoder with reference solutions, each made new by a comment, in three ways: in lockstep with one step
after another, with steps in threads, and with threads and two cohorts, as `ragen2 train` does. Sampling is a
pause of --decode seconds per batch: it stands for a GPU, which leaves the cores alone and takes as long for
half of a batch. Repeats alternate, the median counts.

    python benchmarks/slow_envs.py --episodes 64 --decode 1
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.envs.base import HELD_OUT_SEEDS, Waits
from ragen2.envs.deepcoder.env import DeepCoder
from ragen2.policy import Request, SamplingParams
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.pool import num_workers
from ragen2.types import Completion, Group


class InLockstep(DeepCoder):
    """The same programs, one after another."""

    kind: Literal["InLockstep"] = "InLockstep"  # type: ignore[assignment]

    @property
    def waits_for(self) -> Waits:
        """Nothing, as it says."""
        return "nothing"


class Solver(ScriptedPolicy):
    """Writes the reference solution after a pause a batch."""

    def __init__(self, solutions: dict[str, str], seconds: float, numbers: Iterator[int]) -> None:
        super().__init__(self._solve)
        self.solutions, self.seconds, self.numbers = solutions, seconds, numbers

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """As a GPU would: the time of a batch hardly depends on its size."""
        time.sleep(self.seconds)
        return super().sample(requests, params)

    def _solve(self, prompt: str, rng: np.random.Generator) -> str:
        del rng
        program = next(p for statement, p in self.solutions.items() if statement in prompt)
        # A program that was graded before would not be run again.
        return f"known</think><answer>{program}\n# {next(self.numbers)}</answer>"


def timed(
    env: DeepCoder, policy: Solver, episodes: int, rollout: Rollout
) -> tuple[float, list[Group]]:
    """Seconds of one rollout, and what was played."""
    tasks = [[Task(HELD_OUT_SEEDS + i, 0)] for i in range(episodes)]
    started = time.perf_counter()
    groups = play(env, policy, tasks, rollout, key=("bench",))
    return time.perf_counter() - started, groups


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--decode", type=float, default=1.0, help="seconds of sampling a batch")
    parser.add_argument("--workers", type=int, default=0, help="0: as a run chooses")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    env = DeepCoder()
    starts = [env.start(HELD_OUT_SEEDS + i, 0) for i in range(asked.episodes)]
    solutions = {one.problem.statement: one.problem.solution for one in starts}
    policy = Solver(solutions, asked.decode, itertools.count())
    ways = {"lockstep": (InLockstep(), 1), "threads": (env, 1), "cohorts": (env, 2)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    rewards: set[tuple[float, ...]] = set()
    for _ in range(asked.repeats):
        for name, (way, cohorts) in ways.items():
            rollout = Rollout(max_tokens=4096, env_workers=asked.workers, cohorts=cohorts)
            took, groups = timed(way, policy, asked.episodes, rollout)
            seconds[name].append(took)
            rewards.add(tuple(float(group.rewards_G[0]) for group in groups))
    found = {name: statistics.median(times) for name, times in seconds.items()}
    figures = {
        "episodes": asked.episodes,
        "decode_s": asked.decode,
        "workers": num_workers(env, asked.workers),
        **{f"{name}_s": round(value, 3) for name, value in found.items()},
        "threads_ratio": round(found["lockstep"] / found["threads"], 2),
        "cohorts_ratio": round(found["lockstep"] / found["cohorts"], 2),
        "same_rewards": len(rewards) == 1,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
