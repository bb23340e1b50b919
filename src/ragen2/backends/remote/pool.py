"""Many calls at once, a few at a time; the first failure, or Ctrl-C, ends all of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

GRACE_SECONDS = 5.0
Item = TypeVar("Item")
Result = TypeVar("Result")


def call_all(
    call: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    workers: int,
    stopped: threading.Event,
    done: Callable[[int, Result], None] = lambda index, result: None,
) -> list[Result]:
    """``call`` of every item, in their order. ``done`` is told of each as it ends, in this thread.

    After a failure the calls that are under way get a few seconds to end, because their answers may
    have been paid for; Ctrl-C waits for nothing. Threads that still wait for an answer then are left
    behind as daemons: a program must not hang until a slow server has answered.
    """
    calls = _Calls(call, items, stopped)
    results: dict[int, Result] = {}
    threads = [
        threading.Thread(target=calls.work, daemon=True) for _ in range(min(workers, len(items)))
    ]
    try:
        for thread in threads:
            thread.start()
        while len(results) < len(items):
            index, result = calls.next()
            results[index] = result
            done(index, result)
    except Exception:
        deadline = time.monotonic() + GRACE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        raise
    finally:
        stopped.set()
        for index, result in calls.late():
            done(index, result)
    return [results[index] for index in range(len(items))]


class _Calls(Generic[Item, Result]):
    """What is still to be called, and what has come of the others."""

    def __init__(
        self, call: Callable[[Item], Result], items: Sequence[Item], stopped: threading.Event
    ) -> None:
        self._call = call
        self._items = items
        self._stopped = stopped
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[int, Result] | Exception] = queue.SimpleQueue()
        for index in range(len(items)):
            self._waiting.put(index)

    def work(self) -> None:
        """Call one item after the other until there is none, or somebody has stopped it."""
        while not self._stopped.is_set():
            try:
                index = self._waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self._ended.put((index, self._call(self._items[index])))
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller's thread raises it
                self._ended.put(error)
                self._stopped.set()

    def next(self) -> tuple[int, Result]:
        """Wait for a call to end; its failure is raised here."""
        found = self._ended.get()
        if isinstance(found, Exception):
            raise found
        return found

    def late(self) -> list[tuple[int, Result]]:
        """Results that came before an end by failure or interruption, and nobody has taken."""
        found = [self._ended.get() for _ in range(self._ended.qsize())]
        return [one for one in found if not isinstance(one, Exception)]
