"""RAGEN's rollout export: one conversation a line with its metadata."""

from __future__ import annotations

from ragen2.audit.readers.base import Reader, Row, has
from ragen2.audit.rollouts import (
    LoggedRollout,
    Unusable,
    dialogue_turns,
    is_messages,
    number,
    whole,
)


def _matches(row: Row) -> bool:
    return has(row, "messages", "metadata") and isinstance(row["metadata"], dict)


def _read(row: Row) -> list[LoggedRollout]:
    if not is_messages(row["messages"]):
        raise Unusable("no prompt")
    turns = dialogue_turns((), row["messages"])
    if not turns:
        raise Unusable("no completion")
    metadata = row["metadata"]
    group = metadata.get("group_id")
    successes = [
        value
        for name, value in metadata.items()
        if name.endswith("/success") and isinstance(value, int | float)
    ]
    return [
        LoggedRollout(
            turns,
            reward=number(metadata.get("total_reward")),
            step=whole(metadata.get("step", row.get("step"))),
            group=None if group is None else str(group),
            solved=bool(successes[0]) if successes else None,
        )
    ]


READER = Reader("ragen", _matches, _read)
