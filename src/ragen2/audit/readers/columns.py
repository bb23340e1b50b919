"""Any table: columns by a map the user gives, or by the names that are usual."""

from __future__ import annotations

from collections.abc import Mapping

from ragen2.audit.readers.base import Reader, Row
from ragen2.audit.rollouts import LoggedRollout, number, prompt_of, reply_turns, whole
from ragen2.errors import ConfigError

FIELDS = ("prompt", "completion", "reward", "step", "group")
USUAL = {
    "prompt": ("prompt", "input", "question", "messages"),
    "completion": ("completion", "response", "output"),
    "reward": ("reward", "score"),
    "step": ("step", "global_step"),
    "group": ("group", "group_id", "uid"),
}


def parse_columns(text: str) -> dict[str, str]:
    """``prompt=question,completion=reply`` -> a map; a reward may be a sum: ``reward=a+b``."""
    found: dict[str, str] = {}
    for piece in text.split(","):
        field, equals, column = (part.strip() for part in piece.partition("="))
        if not equals or not column or field not in FIELDS:
            raise ConfigError(
                f"--columns takes FIELD=COLUMN pairs with fields {', '.join(FIELDS)}, got {piece!r}"
            )
        found[field] = column
    missing = [field for field in ("prompt", "completion") if field not in found]
    if missing:
        raise ConfigError(f"--columns must name {' and '.join(missing)}, got {text!r}")
    return found


def columns_reader(columns: Mapping[str, str]) -> Reader:
    """A reader for this map."""
    return Reader(
        "columns",
        lambda row: columns["prompt"] in row and columns["completion"] in row,
        lambda row: _read(row, columns),
    )


def _usual(row: Row) -> dict[str, str]:
    return {
        field: next(name for name in names if name in row)
        for field, names in USUAL.items()
        if any(name in row for name in names)
    }


def _read(row: Row, columns: Mapping[str, str]) -> list[LoggedRollout]:
    prompt = prompt_of(row.get(columns["prompt"]))
    turns = reply_turns(prompt, row.get(columns["completion"]))
    group = row.get(columns["group"]) if "group" in columns else None
    return [
        LoggedRollout(
            turns,
            reward=_reward(row, columns.get("reward")),
            step=whole(row.get(columns["step"])) if "step" in columns else None,
            group=None if group is None else str(group),
        )
    ]


def _reward(row: Row, column: str | None) -> float | None:
    if column is None:
        return None
    values = [number(row.get(name.strip())) for name in column.split("+")]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _matches(row: Row) -> bool:
    found = _usual(row)
    return "prompt" in found and "completion" in found


READER = Reader("columns", _matches, lambda row: _read(row, _usual(row)))
"""For tables whose column names are usual."""
