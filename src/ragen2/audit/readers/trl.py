"""TRL's completion tables: ``completions/completions_NNNNN.parquet`` of ``log_completions=True``."""

from __future__ import annotations

from ragen2.audit.readers.base import Reader, Row, has
from ragen2.audit.rollouts import LoggedRollout, number, prompt_of, reply_turns, whole

FIXED = frozenset({"step", "prompt", "completion", "advantage"})


def _matches(row: Row) -> bool:
    return has(row, "step", "prompt", "completion", "advantage")


def _read(row: Row) -> list[LoggedRollout]:
    turns = reply_turns(prompt_of(row["prompt"]), row["completion"])
    return [LoggedRollout(turns, reward=_reward(row), step=whole(row["step"]))]


def _reward(row: Row) -> float | None:
    """One column a reward function; their plain sum, because the weights are not in the table."""
    columns = {name: value for name, value in row.items() if name not in FIXED}
    values = [
        number(value)
        for value in columns.values()
        if isinstance(value, float) and not isinstance(value, bool)
    ]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


READER = Reader("trl", _matches, _read)
