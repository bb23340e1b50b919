"""Run directories as they are now, whether they are still to come, being written, or finished."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragen2.errors import RunError
from ragen2.reports.load import AUDIT, Run, load, load_audit
from ragen2.runs.files import PARTIAL
from ragen2.runs.tail import RecordTail

RUN_FILE = "run.toml"


class Followed:
    """Directories that are read again and again; of each only what was added."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._tails = {path: RecordTail(path / "steps.jsonl") for path in paths}
        for path in paths:
            check(path)

    def runs(self) -> list[Run]:
        """Each as it is now; one that is not there yet is a run without settings and records."""
        return [self._read(path, tail) for path, tail in self._tails.items()]

    def _read(self, path: Path, tail: RecordTail) -> Run:
        if (path / RUN_FILE).is_file():
            return Run(path, _settings(path / RUN_FILE), tail.records())
        if (path / AUDIT).is_file():
            return load_audit(path)
        return Run(path, {}, ())


def is_there(path: Path) -> bool:
    """Whether there is a run or an audit to show; if not, one may still come."""
    return (path / RUN_FILE).is_file() or (path / AUDIT).is_file()


def check(path: Path) -> None:
    """Raise when ``path`` is something else already, so that no run can come to be there."""
    if not path.exists() or is_there(path):
        return
    if not path.is_dir() or not all(_is_being_made(one.name) for one in path.iterdir()):
        load(path)  # says what is wrong


def _is_being_made(name: str) -> bool:
    """Whether a run directory may hold this before its settings are there."""
    return name == "rollouts" or name.startswith(f"{PARTIAL}{RUN_FILE}")


def _settings(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RunError(f"{file} is not valid TOML: {error}") from error
