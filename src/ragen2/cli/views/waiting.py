"""What a user sees of a long wait, on standard error: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from ragen2.progress import ProgressReport, report, reported_to

QUIET_SECONDS = 1.0
"""Before a bar is shown: what is quicker needs none."""
SECONDS_TO_LINE = 120.0
"""Before the first line where there is no terminal; what is known to be long gets one at once."""
SECONDS_BETWEEN_LINES = 15.0
"""Also before the first line about a large model that is open already."""
LARGE = 50_000_000
"""Bytes of weights that take more than a moment to open."""


class Waiting:
    """A listener that shows the last report."""

    def __init__(self, console: Console, seconds_to_line: float = SECONDS_TO_LINE) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._last: ProgressReport | None = None
        self._begun = (time.monotonic(), 0.0)
        """When what is being done was first heard of, and how much of it was done then."""
        self._lock = threading.RLock()
        patience = QUIET_SECONDS if console.is_terminal else seconds_to_line
        self._next = time.monotonic() + patience
        # What is reported early and then takes long is shown without being reported again.
        self._timer = threading.Timer(patience, self._show_last)
        self._timer.daemon = True
        self._timer.start()

    def __call__(self, said: ProgressReport) -> None:
        """Show a report, unless it is too early."""
        with self._lock:
            if self._last is None or said.doing != self._last.doing or said.done < self._last.done:
                self._begun = (time.monotonic(), said.done)
            self._last = said
            if said.is_long or time.monotonic() >= self._next:
                self._show(said)

    def _show_last(self) -> None:
        with self._lock:
            if self._last is not None and time.monotonic() >= self._next:
                self._show(self._last)

    def _show(self, said: ProgressReport) -> None:
        self._timer.cancel()
        self._next = time.monotonic()
        if self._console.is_terminal:
            self._draw(said)
            return
        share = f": {said.done / said.total:.0%}" if said.done and said.total else ""
        left = self._left(said)
        share += f", {left}" if left else ""
        self._console.print(f"{said.doing}{share}", markup=False, highlight=False, soft_wrap=True)
        self._next += SECONDS_BETWEEN_LINES

    def _left(self, said: ProgressReport) -> str:
        """The time that the rest takes at the pace so far; nothing before there is one."""
        since, at = self._begun
        if not said.total or said.done <= at:
            return ""
        pace = (time.monotonic() - since) / (said.done - at)
        return f"about {clock(pace * (said.total - said.done))} left"

    def close(self) -> None:
        """Take the bar away; another report would bring it back."""
        self._timer.cancel()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()

    def make_way(self, record: logging.LogRecord) -> bool:
        """Let a line of the log have the place of the bar: a filter that lets everything pass."""
        self.close()
        return True

    def _draw(self, said: ProgressReport) -> None:
        if self._bar is None:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(20))
            times = (TaskProgressColumn(), _TimeColumn(table_column=Column(no_wrap=True)))
            # What is printed meanwhile goes where it would go without a bar.
            self._bar = Progress(
                *columns, *times, console=self._console, transient=True, redirect_stdout=False
            )
            self._bar.add_task(said.doing, left="")
        (task,) = self._bar.tasks
        task.total = said.total or None  # of unknown length: update() would leave the last one
        self._bar.update(
            task.id, description=said.doing, completed=said.done, left=self._left(said)
        )
        self._bar.start()


class _TimeColumn(TimeElapsedColumn):
    """The time left, or while it is not known the time gone by: both do not fit into 80 columns."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["left"]) if task.fields["left"] else super().render(task)


@contextmanager
def waiting(model: str, *, is_open: bool = False) -> Iterator[None]:
    """Show what is reported meanwhile; a large ``model`` at once if it is about to be opened."""
    num_bytes = _num_bytes(model)
    is_large = num_bytes >= LARGE
    shown = Waiting(Console(stderr=True), SECONDS_BETWEEN_LINES if is_large else SECONDS_TO_LINE)
    with reported_to(shown):
        for handler in logging.root.handlers:
            handler.addFilter(shown.make_way)
        try:
            if is_large and not is_open:
                report(f"opening {model} ({num_bytes / 1e6:,.0f} MB)", is_long=True)
            yield
        finally:
            shown.close()
            for handler in logging.root.handlers:
                handler.removeFilter(shown.make_way)


def clock(seconds: float) -> str:
    """``1:02:03``, or ``2:03`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _num_bytes(model: str) -> int:
    """Of a file, or of the largest in a folder or in a run's checkpoints."""
    try:
        path = Path(os.path.expanduser(model))
        folders = [path, *path.glob("checkpoints/*")] if path.is_dir() else []
        files = [one for folder in folders for one in folder.iterdir()] or [path]
        return max(one.stat().st_size for one in files if one.is_file())
    except (OSError, RuntimeError, ValueError):  # it is no file: whoever opens it says so
        return 0
