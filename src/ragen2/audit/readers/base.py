"""The reader contract: which rows are of this format, and what is in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ragen2.audit.rollouts import LoggedRollout

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reader:
    """One log format. ``read`` raises ``Unusable`` with the reason a row is counted under."""

    name: str
    matches: Callable[[Row], bool]
    read: Callable[[Row], list[LoggedRollout]]


def has(row: Row, *names: str) -> bool:
    """Whether all these columns are there."""
    return all(name in row for name in names)
