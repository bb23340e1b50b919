"""Ask a server for many completions: each once, kept on disk as it arrives, in the order asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ragen2.backends.remote.calls import BadAnswer, Endpoint
from ragen2.backends.remote.journal import Journal
from ragen2.backends.remote.pool import call_all
from ragen2.types import Completion

ENDINGS = frozenset({"stop", "length"})
"""How a whole completion ends; another ending (vLLM's ``abort``) is the server's trouble."""
SEEDS = 2**31
"""Servers take seeds below this."""

Asked = TypeVar("Asked")


class Refused(Exception):
    """The server does not take the request."""


def completions_of(
    names: Sequence[str],
    requests: Sequence[Asked],
    complete: Callable[[Asked], Completion],
    endpoint: Endpoint,
    journal: Journal | None,
) -> list[Completion]:
    """A completion for each request; what the journal has is not asked for, equal names are one request."""
    found: dict[str, Completion] = {}
    asked: dict[str, Asked] = {}
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
        workers=endpoint.settings.concurrency,
        stopped=endpoint.stopped,
        done=keep,
    )
    found |= dict(zip(missing, written, strict=True))
    return [found[name] for name in names]


def only_choice(answer: dict[str, Any]) -> dict[str, Any]:
    """The one completion of an answer, if it was written to its end."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise BadAnswer(f"without a completion: {str(answer)[:80]}")
    if choice.get("finish_reason") not in ENDINGS:
        raise BadAnswer(f"a completion that ended by {choice.get('finish_reason')!r}")
    return choice
