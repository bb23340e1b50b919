"""Run directories and audit folders -> what a report can draw."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ragen2.diagnostics.metrics.collapse import main_scope
from ragen2.errors import RunError
from ragen2.reading import read_bytes
from ragen2.runs.record import AuditRecord, StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.runs.toml_files import read_toml_file

RUN_FILE, AUDIT = "run.toml", "audit.json"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric over steps, with its interval where it has one."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Run:
    """A run, or an audit, as a report sees it."""

    path: Path
    """The folder that holds it."""
    settings: dict[str, Any]
    records: tuple[StepRecord, ...]
    audit: AuditRecord | None = None
    """What the audit found besides its steps; None for a run directory."""

    @property
    def name(self) -> str:
        """The folder's name, or for an audit the names of what it read."""
        if self.audit is None:
            return self.path.resolve().name
        return ", ".join(Path(source).name or source for source in self.audit.sources)

    @cached_property
    def recorded(self) -> frozenset[str]:
        """Names of all metrics that any record has."""
        return frozenset(name for record in self.records for name in record.metrics)

    @cached_property
    def main_scope(self) -> str:
        """The scope of reasoning that the run is judged by."""
        return main_scope(self.recorded)

    def series(self, metric: str, name: str | None = None) -> Series:
        """A metric's points; empty when the run never recorded it."""
        points = [record for record in self.records if metric in record.metrics]
        has_interval = bool(points) and all(f"{metric}_low" in record.metrics for record in points)
        return Series(
            name or metric,
            tuple(record.step for record in points),
            tuple(record.metrics[metric] for record in points),
            tuple(record.metrics[f"{metric}_low"] for record in points) if has_interval else (),
            tuple(record.metrics[f"{metric}_high"] for record in points) if has_interval else (),
        )


def load(path: Path) -> Run:
    """A run directory, or the folder that ``ragen2 audit`` wrote."""
    if (path / RUN_FILE).is_file():
        return load_run_directory(path)
    if (path / AUDIT).is_file():
        return load_audit(path)
    if not path.exists():
        raise RunError(f"{path} does not exist; check the path")
    raise RunError(
        f"{path} is neither a run directory (no run.toml in it) nor an audit's folder (no {AUDIT}); "
        "give what `ragen2 train` or `ragen2 audit` wrote"
    )


def load_run_directory(path: Path) -> Run:
    """Read run.toml and steps.jsonl."""
    run = RunDirectory.open(path)
    return Run(path, read_settings(path / RUN_FILE), tuple(run.records()))


def read_settings(file: Path) -> dict[str, Any]:
    """The settings of a run.toml, as they stand there."""
    try:
        return read_toml_file(file)
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RunError(f"{file} is not valid TOML: {error}") from error


def load_audit(path: Path) -> Run:
    """Read audit.json."""
    try:
        record = AuditRecord.model_validate_json(read_bytes(path / AUDIT))
    except OSError as error:
        raise RunError(f"{path / AUDIT} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise RunError(
            f"{path / AUDIT} is not an audit of this version ({place}: {first['msg']}); audit again"
        ) from error
    return as_run(record, path)


def as_run(record: AuditRecord, path: Path) -> Run:
    """The audit's steps as a run, so that they are drawn as a run's are."""
    return Run(path, dict(record.settings), tuple(record.steps), record)
