"""Records for trackio: a local database, or a Space where its own settings say so."""

from __future__ import annotations

import contextlib
import io
import sqlite3
from collections.abc import Mapping
from typing import ClassVar

import trackio

from ragen2.runs.loggers.base import LoggedRun, Logger


class TrackioLogger(Logger):
    """Notes become alerts. What trackio prints is kept away from the live table."""

    failures: ClassVar[tuple[type[Exception], ...]] = (OSError, ValueError, sqlite3.Error)

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        with _quiet():
            self._run = trackio.init(
                project=run.project,
                # trackio finds a run by its name alone, and directories of one name are many.
                name=f"{run.name}-{run.run_id[:6]}",
                config=dict(run.settings),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
            )

    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """The numbers as one entry, each text as an alert of the step."""
        with _quiet():
            self._run.log(dict(values), step=step)
            for name, text in texts.items():
                is_warning = "early warning:" in text
                level = trackio.AlertLevel.WARN if is_warning else trackio.AlertLevel.INFO
                self._run.alert(title=name, text=text, level=level, step=step)

    def close(self, *, failed: bool) -> None:
        """Wait until everything is in the database or sent."""
        del failed
        with _quiet():
            trackio.finish()  # not the run's own method: trackio would finish it again at exit


def _quiet() -> contextlib.AbstractContextManager[object]:
    return contextlib.redirect_stdout(io.StringIO())
