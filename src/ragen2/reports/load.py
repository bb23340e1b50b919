"""Run directories -> series that can be drawn."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen2.diagnostics.collapse import main_scope
from ragen2.errors import RunError
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory


@dataclass(frozen=True, slots=True)
class Series:
    """One metric over steps, with its interval where it has one."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A run as a report sees it."""

    path: Path
    settings: dict[str, Any]
    records: tuple[StepRecord, ...]

    @property
    def main_scope(self) -> str:
        """The scope of reasoning that the run is judged by."""
        return main_scope(name for record in self.records for name in record.metrics)

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


def load_run_directory(path: Path) -> Run:
    """Read run.toml and steps.jsonl."""
    run = RunDirectory.open(path)
    try:
        settings = tomllib.loads((path / "run.toml").read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path / 'run.toml'} is not valid TOML: {error}") from error
    return Run(path, settings, tuple(run.records()))
