"""What every logger is: told about a run once, then about every record, then closed."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ragen2.runs.files import write_atomically
from ragen2.runs.record import StepRecord

FOLDER = "logs"
"""Folder of a run directory for what loggers keep there."""
RUN_ID = "run_id"


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """What a logger is told about the run."""

    directory: Path
    project: str
    """What runs are filed under, where the package has such a thing."""
    settings: Mapping[str, Any]
    run_id: str
    """The same for a run and for its continuations, different for every other run."""
    next_step: int
    """The step that comes next. What an earlier log has of it and of later ones is void."""

    @classmethod
    def of(
        cls, directory: Path, project: str, settings: Mapping[str, Any], next_step: int
    ) -> LoggedRun:
        """A run by its directory, which remembers the id from the first time on."""
        file = directory / FOLDER / RUN_ID
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            write_atomically(file, uuid.uuid4().hex)
        return cls(directory, project, settings, file.read_text(encoding="utf-8"), next_step)

    @property
    def name(self) -> str:
        """What a person calls the run: the name of its directory."""
        return self.directory.resolve().name

    @property
    def folder(self) -> Path:
        """Where a logger may keep files."""
        return self.directory / FOLDER

    @property
    def is_continued(self) -> bool:
        """Some of it was logged before."""
        return self.next_step > 0


class Logger(ABC):
    """A sink that writes records with some package. The package is imported by its module."""

    failures: ClassVar[tuple[type[Exception], ...]]
    """What the package raises when it cannot start or cannot take a record."""

    def __init__(self, run: LoggedRun) -> None:
        """Open the log of ``run``, or go on with it."""
        self.run = run
        self._regime: str | None = None

    def record(self, record: StepRecord) -> None:
        """Write a record's numbers, its note, and its regime where that has changed."""
        texts = {"note": record.note} if record.note else {}
        if record.regime and record.regime != self._regime:
            texts["regime"] = record.regime.replace("_", " ")
        self.write(record.step, numbers(record), texts)
        self._regime = record.regime or self._regime

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Write what one step gave; when this returns, a kill of the process loses little or nothing."""

    @abstractmethod
    def close(self, *, failed: bool) -> None:
        """Write what is still held back. ``failed``: the run was ended by an error or at once."""


def numbers(record: StepRecord) -> dict[str, float]:
    """A record's metrics under their own names, and its timings as ``seconds/PHASE``."""
    timings = {f"seconds/{phase}": value for phase, value in record.seconds.items()}
    return {**record.metrics, **timings}


def flat_settings(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their paths, ``filter.mass``; a list of tables by its numbers."""
    for name, value in settings.items():
        path = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{path}.")
        elif isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
            yield from flat_settings({str(i): one for i, one in enumerate(value)}, f"{path}.")
        else:
            yield path, str(value)
