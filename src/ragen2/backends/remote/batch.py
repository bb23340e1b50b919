"""Many requests to a server at once, a few at a time; the first failure, or Ctrl-C, ends all of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ragen2.backends.remote.client import Answer, BadAnswer, ServerClient
from ragen2.backends.remote.journal import Journal
from ragen2.progress import report
from ragen2.types import Completion

GRACE_SECONDS = 5.0
"""For requests that are under way when another has failed."""
ENDINGS = frozenset({"stop", "length"})
"""How a whole completion ends; another ending (vLLM's ``abort``) is the server's trouble."""
SEEDS = 2**31
"""Servers take seeds below this."""

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
    """``call`` of every item, in their order. ``done`` gets each result as it comes, in this thread.

    After a failure the calls that are under way get a few seconds to end, because their answers may
    have been paid for; Ctrl-C waits for nothing. Threads that still wait for an answer then are left
    behind as daemons (an executor would join them): a program must not hang until a slow server answers.
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
            report("asking the server", len(results), len(items))
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
        self._waiting = enumerate(items)  # all threads draw from it; a step of it is atomic
        self._stopped = stopped
        self._ended: queue.SimpleQueue[tuple[int, Result] | Exception] = queue.SimpleQueue()

    def work(self) -> None:
        """Call one item after the other until there is none, or somebody has stopped it."""
        for index, item in self._waiting:
            if self._stopped.is_set():
                return
            try:
                self._ended.put((index, self._call(item)))
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


def completions_of(
    names: Sequence[str],
    requests: Sequence[Item],
    complete: Callable[[Item], Completion],
    client: ServerClient,
    journal: Journal | None,
) -> list[Completion]:
    """A completion for each request; what the journal has is not asked for, equal names are one request."""
    found: dict[str, Completion] = {}
    asked: dict[str, Item] = {}
    for name, request in zip(names, requests, strict=True):
        known = journal.find(name) if journal is not None else None
        if known is not None:
            found[name] = known
        else:
            asked[name] = request
    missing = list(asked)

    def keep(index: int, completion: Completion) -> None:
        if journal is not None:
            journal.add(missing[index], completion)

    written = call_all(
        complete,
        list(asked.values()),
        workers=client.settings.concurrency,
        stopped=client.stopped,
        done=keep,
    )
    found |= dict(zip(missing, written, strict=True))
    return [found[name] for name in names]


def only_choice(answer: Answer) -> Answer:
    """The one completion of an answer, if it was written to its end."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise BadAnswer(f"without a completion: {str(answer)[:80]}")
    if choice.get("finish_reason") not in ENDINGS:
        raise BadAnswer(f"a completion that ended by {choice.get('finish_reason')!r}")
    return choice
