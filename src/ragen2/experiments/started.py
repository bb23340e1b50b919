"""started.jsonl: every run and every model that an experiment ever started, also those that failed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ragen2.errors import RunError

FILE = "started.jsonl"


class Started(BaseModel):
    """One start of one process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["run", "model"]
    name: str
    experiment: str
    at: str
    """Local time with its zone, ISO 8601."""


def note_start(out: Path, kind: Literal["run", "model"], name: str, experiment: str) -> None:
    """Add a line; it is on disk before the process begins, so that none can be left out."""
    one = Started(
        kind=kind, name=name, experiment=experiment, at=time.strftime("%Y-%m-%dT%H:%M:%S%z")
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with (out / FILE).open("a+b") as file:
            file.write(f"{_missing_end(file)}{one.model_dump_json()}\n".encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"{out / FILE} cannot be written: {error.strerror}") from error


def read_started(out: Path) -> list[Started]:
    """All starts; a line that a crash cut short is left out."""
    if not (out / FILE).is_file():
        return []
    found = []
    for line in (out / FILE).read_bytes().splitlines():
        try:
            found.append(Started.model_validate_json(line))
        except ValidationError:
            continue
    return found


def _missing_end(file: BinaryIO) -> str:
    """The end of a last line that a crash cut short, so that the next one is not lost with it."""
    if file.seek(0, os.SEEK_END) == 0:
        return ""
    file.seek(-1, os.SEEK_END)
    return "" if file.read(1) == b"\n" else "\n"
