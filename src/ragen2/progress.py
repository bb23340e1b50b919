"""What a long wait is about: said by those who work, shown by whoever has a screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """What is being done, how much of it is done already, and of how much: 0 where that is not known."""

    doing: str
    done: int = 0
    total: int = 0
    is_long: bool = False
    """Whether it is known to take a while, and worth a word at once."""


Listener = Callable[[ProgressReport], None]

_listener: ContextVar[Listener] = ContextVar("listener", default=lambda said: None)


def report(doing: str, done: int = 0, total: int = 0, *, is_long: bool = False) -> None:
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
