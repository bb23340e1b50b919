"""What was wrong with replies that could not be executed as written: kinds, counts and examples."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ragen2.types import Group

MOST_EXAMPLES = 2
_KINDS = (
    (re.compile(r"unknown action "), "an action that does not exist"),
    (re.compile(r"\d+ actions, only "), "more actions than are taken"),
)


@dataclass(frozen=True, slots=True)
class ProblemCount:
    """One way to be wrong, how many replies were, and the first of them."""

    kind: str
    count: int
    examples: tuple[str, ...]


def problem_kind(problem: str) -> str:
    """A problem without what is particular to one reply."""
    return next((kind for pattern, kind in _KINDS if pattern.match(problem)), problem)


def count_problems(replies: Iterable[tuple[str, str]]) -> list[ProblemCount]:
    """Kinds of problems, the most frequent first, from each reply's problem and text."""
    found: dict[str, list[str]] = {}
    for problem, text in replies:
        if problem:
            found.setdefault(problem_kind(problem), []).append(text)
    counted = [
        ProblemCount(kind, len(texts), tuple(dict.fromkeys(texts))[:MOST_EXAMPLES])
        for kind, texts in found.items()
    ]
    return sorted(counted, key=lambda one: -one.count)


def reply_problems(groups: Iterable[Group]) -> list[ProblemCount]:
    """The problems of all replies of a batch."""
    return count_problems(
        (turn.problem, turn.completion.text)
        for group in groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
    )
