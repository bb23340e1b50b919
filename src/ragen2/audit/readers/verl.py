"""verl's rollout dumps: ``{step}.jsonl`` under ``trainer.rollout_data_dir``."""

from __future__ import annotations

from ragen2.audit.readers.base import Reader, Row, has
from ragen2.audit.rollouts import LoggedRollout, LoggedTurn, Unusable, number, unstrip, whole


def _matches(row: Row) -> bool:
    return has(row, "input", "output", "score")


def _read(row: Row) -> list[LoggedRollout]:
    """The prompt was decoded without its special tokens; where it was ChatML, its roles come back."""
    prompt, text = row["input"], row["output"]
    if not isinstance(prompt, str) or not prompt.strip():
        raise Unusable("no prompt")
    if not isinstance(text, str) or not text:
        raise Unusable("no completion")
    group = row.get("uid")
    return [
        LoggedRollout(
            (LoggedTurn(unstrip(prompt), text),),
            reward=number(row["score"]),
            step=whole(row.get("step")),
            group=str(group) if group is not None else None,
        )
    ]


READER = Reader("verl", _matches, _read)
