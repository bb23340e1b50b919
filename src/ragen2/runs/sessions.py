"""sessions.jsonl: each time a run was started or resumed, from which step, with which code, where."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ragen2.errors import RunError
from ragen2.runs.machine import Machine, code_commit, this_machine

FILE = "sessions.jsonl"
PACKAGES = ("torch", "transformers", "tokenizers", "peft", "numpy")
"""Whose versions a result may depend on."""


class Session(BaseModel):
    """One start of the program on a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    """The last step that was done before; 0 for a new run."""
    started: str
    """Local time with its zone, ISO 8601."""
    versions: dict[str, str]
    commit: str = ""
    """Of the code; empty where nothing tells."""
    machine: Machine | None = None


def record_session(run: Path, step: int) -> None:
    """Add a line for a start after ``step``."""
    session = Session(
        step=step,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        versions=installed_versions(),
        commit=code_commit()[0],
        machine=this_machine(),
    )
    try:
        with (run / FILE).open("a", encoding="utf-8") as file:
            file.write(session.model_dump_json() + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"{run / FILE} cannot be written: {error.strerror}") from error


def read_sessions(run: Path) -> list[Session]:
    """All sessions; none for a run that recorded none. A line that a crash cut short is left out."""
    if not (run / FILE).is_file():
        return []
    found = []
    for line in (run / FILE).read_bytes().splitlines():
        try:
            found.append(Session.model_validate_json(line))
        except ValidationError:
            continue
    return found


def installed_versions() -> dict[str, str]:
    """Of ragen2, Python and the packages that are there, without importing them."""
    from ragen2 import __version__

    found = {
        "ragen2": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
