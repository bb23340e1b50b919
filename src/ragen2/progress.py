"""What a long wait is about: said by those who work, shown by whoever has a screen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """What is being done, how much of it is done already, and of how much: 0 where that is not known."""

    doing: str
    done: float = 0
    total: float = 0
    is_long: bool = False
    """Whether it is known to take a while, and worth a word at once."""


Listener = Callable[[ProgressReport], None]

_listener: ContextVar[Listener] = ContextVar("listener", default=lambda said: None)


def report(doing: str, done: float = 0, total: float = 0, *, is_long: bool = False) -> None:
    """Say what is being done; costs nothing where nobody listens."""
    _listener.get()(ProgressReport(doing, done, total, is_long))


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """Let ``listener`` have what is reported in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Put the name before everything that is reported meanwhile."""
    listener = _listener.get()
    with reported_to(lambda said: listener(replace(said, doing=f"{name}: {said.doing}"))):
        yield


@contextmanager
def part(doing: str, start: float = 0, stop: float = 1, total: float = 1) -> Iterator[None]:
    """Take what is reported meanwhile for progress of ``doing``, from ``start`` to ``stop`` of ``total``."""
    listener = _listener.get()

    def pass_on(said: ProgressReport) -> None:
        share = said.done / said.total if said.total else 0.0
        listener(ProgressReport(doing, start + share * (stop - start), total))

    with reported_to(pass_on):
        report(doing)
        yield


def counter(doing: str, total: float) -> Callable[[float], None]:
    """Call it with what was done, from any thread: the listener of this one hears the sum."""
    listener, lock = _listener.get(), threading.Lock()
    done = 0.0

    def count(more: float) -> None:
        nonlocal done
        with lock:
            done += more
            listener(ProgressReport(doing, done, total))

    return count
