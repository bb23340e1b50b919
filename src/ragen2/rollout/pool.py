"""Threads in which slow environments are stepped; one that never returns is left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

from ragen2.envs.base import Env
from ragen2.time_limit import STUCK_SECONDS, is_stuck

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
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._workers = workers
        self._threads: list[threading.Thread] = []

    def begin(
        self, pieces: Sequence[Callable[[], Result]], if_stuck: Result
    ) -> Callable[[], list[Result]]:
        """Start all pieces; the value returned waits for their results and gives them in order.

        A piece whose thread is out of time and waits all the same has the result ``if_stuck``.
        """
        if not self._workers:
            done = [piece() for piece in pieces]
            return lambda: done
        jobs = [_Job(piece) for piece in pieces]
        for job in jobs:
            self._jobs.put(job)
        for _ in range(min(len(jobs), self._workers - len(self._threads))):
            self._add_thread()
        return lambda: [self._result(job, if_stuck) for job in jobs]

    def _result(self, job: _Job, if_stuck: Result) -> Result:
        while not job.is_done.wait(STUCK_SECONDS / 2):
            if job.thread is not None and is_stuck(job.thread.ident or 0):
                self._threads.remove(job.thread)
                self._add_thread()
                return if_stuck
        if job.error is not None:
            raise job.error
        result: Result = job.result
        return result

    def _add_thread(self) -> None:
        # A daemon: one that is stuck must not keep the program from ending.
        thread = threading.Thread(target=self._work, name="env", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while me in self._threads and (job := self._jobs.get()) is not None:
            job.run()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an error, such as an interrupt, steps still under way are not waited for.
        while error is not None and not self._jobs.empty():
            self._jobs.get()
        threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        for thread in threads if error is None else ():
            thread.join()


@dataclass(slots=True)
class _Job:
    """One piece of work and its result."""

    piece: Callable[[], Any]
    is_done: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        self.thread = threading.current_thread()
        try:
            self.result = self.piece()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is waited for
            self.error = error
        self.is_done.set()
