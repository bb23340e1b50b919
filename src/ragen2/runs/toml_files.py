"""TOML that a user or a stranger wrote, read within bounds: of bytes, of digits and of depth."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ragen2.reading import read_text

LONGEST_FILE = 2**20
"""Bytes of a TOML file at most."""
DEEPEST = 50
"""Tables and lists in each other at most."""
TOO_DEEP = f"it nests more than {DEEPEST} deep"
TOO_LONG = "an integer needs more than 64 bits"


def read_toml_file(path: Path) -> dict[str, Any]:
    """The tables of a file; an ``OSError`` or ``ValueError`` says in one line why there are none."""
    return parse_toml(read_text(path, LONGEST_FILE))


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text; a ``ValueError`` also for what nests too deep or has numbers too long."""
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    except ValueError as error:
        if "integer string conversion" in str(
            error
        ):  # Python's words for more digits than it reads
            raise ValueError(TOO_LONG) from error
        raise
    refuse_excess(tables)
    return tables


def refuse_excess(value: Any, depth: int = 0) -> None:
    """Raise a ``ValueError`` for tables in tables without end, and integers that TOML does not promise."""
    if depth > DEEPEST:
        raise ValueError(TOO_DEEP)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(TOO_LONG)
    for one in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        refuse_excess(one, depth + 1)
