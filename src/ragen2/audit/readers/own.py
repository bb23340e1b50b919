"""Rollouts of our own run directories: ``rollouts/*.jsonl``."""

from __future__ import annotations

from ragen2.audit.readers.base import Reader, Row, has
from ragen2.audit.rollouts import (
    LoggedRollout,
    LoggedTurn,
    Unusable,
    chat_of,
    image_mark,
    number,
    whole,
)


def _matches(row: Row) -> bool:
    return has(row, "env", "seed", "luck", "turns", "messages")


def _read(row: Row) -> list[LoggedRollout]:
    turns = row["turns"]
    if not isinstance(turns, list) or not turns:
        raise Unusable("no completion")
    seen = list(chat_of(row["messages"]))
    if not seen:
        raise Unusable("no prompt")
    logged = []
    for turn in turns:
        text = _written(turn)
        logged.append(LoggedTurn(tuple(seen), text))
        seen += [("assistant", text), ("user", _shown(turn))]
    return [
        LoggedRollout(
            tuple(logged),
            reward=number(row.get("reward")),
            step=whole(row.get("step")),
            group=f"{row['env']}/{row['seed']}",
            solved=row.get("solved") if isinstance(row.get("solved"), bool) else None,
        )
    ]


def _shown(turn: Row) -> str:
    """What came back: the words, after a mark of the image if there was one."""
    image = turn.get("shown_image")
    return (image_mark(image) if image else "") + str(turn.get("observation", ""))


def _written(turn: Row) -> str:
    """The reply with the opening tag that was pre-filled, so that it reads as other logs do."""
    text = str(turn.get("text", ""))
    thinks = "</think>" in text or bool(turn.get("reasoning"))
    return f"<think>{text}" if thinks else text


READER = Reader("ragen2", _matches, _read)
