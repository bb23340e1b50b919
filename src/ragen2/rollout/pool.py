"""Steps of many episodes: one after another, or in threads where each waits for something else."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from ragen2.envs.base import Env

SERVER_WORKERS = 32
"""Requests that a server gets at once, unless `rollout.env_workers` says otherwise."""

Result = TypeVar("Result")


def usable_cores() -> int:
    """Cores that this process may load: ``OMP_NUM_THREADS`` where that is set, else all it may run on."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_workers(env: Env, asked: int) -> int:
    """Threads to step ``env`` in, ``asked`` of them unless that is 0; none for a quick environment.

    No more than there are cores where a step is work: time limits of programs count on that.
    """
    if env.waits_for == "nothing":
        return 0
    return asked or (usable_cores() if env.waits_for == "cores" else SERVER_WORKERS)


class Pool:
    """Does pieces of work in ``workers`` threads, or at once in this one when there are none."""

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers, "env") if workers else None

    def begin(self, pieces: Sequence[Callable[[], Result]]) -> Callable[[], list[Result]]:
        """Start all pieces; the value returned waits for their results and gives them in order."""
        if self._threads is None:
            done = [piece() for piece in pieces]
            return lambda: done
        futures = [self._threads.submit(piece) for piece in pieces]
        return lambda: [future.result() for future in futures]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._threads is not None:
            # After an error, such as an interrupt, steps still under way are not waited for.
            self._threads.shutdown(wait=error is None, cancel_futures=True)
