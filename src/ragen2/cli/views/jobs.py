"""What a person sees while several runs go on: one live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ragen2.diagnostics.metrics.collapse import judged_scope
from ragen2.trainer.jobs.run import JobStatus, State

STATE_STYLES: dict[State, str] = {
    "queued": "dim",
    "running": "cyan",
    "done": "green",
    "failed": "bold red",
    "stopped": "yellow",
}
ROWS_FIRST: tuple[State, ...] = ("running", "failed", "stopped", "queued", "done")
LINES_PER_JOB = 10
"""Progress lines of each job where there is no terminal."""
LINES_AROUND = 8
"""Of a terminal, for what stands above the rows of the table and below."""


@contextmanager
def jobs_view(folder: Path, note: str) -> Iterator[JobsView]:
    """A view of the jobs in ``folder``, live when standard output is a terminal."""
    console = Console()
    console.print(Text(f"runs and logs in {folder}"))
    if note:
        console.print(Text(note))
    view = JobsView(console)
    if not console.is_terminal:
        yield view
        console.print(jobs_table(view.statuses))
        return
    with Live(console=console, refresh_per_second=4) as live:
        view.live = live
        yield view
        live.vertical_overflow = "visible"
        live.update(jobs_table(view.statuses))


class JobsView:
    """Shows how jobs are doing."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.statuses: Sequence[JobStatus] = ()
        self.live: Live | None = None
        self._shown: dict[str, tuple[State, int]] = {}

    def tell(self, line: str) -> None:
        """Print a line that is not about one job."""
        self.console.print(Text(line), soft_wrap=True)

    def update(self, statuses: Sequence[JobStatus]) -> None:
        """Take how all jobs are now."""
        self.statuses = statuses
        if self.live is not None:
            self.live.update(jobs_table(statuses, self.console.height - LINES_AROUND))
            return
        for status in statuses:
            mark = (status.state, LINES_PER_JOB * status.step // status.job.config.steps)
            if mark != self._shown.get(status.job.name, ("queued", 0)):
                self.console.print(Text(plain_line(status)), soft_wrap=True)
            self._shown[status.job.name] = mark


def cells(status: JobStatus) -> dict[str, str]:
    """What its records say about a job, column by column."""
    scope = judged_scope(status.job.config.diagnostics)
    pace, left = status.seconds_per_step, status.seconds_left
    return {
        "step": f"{status.step}/{status.job.config.steps}",
        "success": _number(status.newest("rollout/success")),
        "held out": _number(status.newest("eval/success")),
        "retrieval": _number(status.newest(f"collapse/{scope}/retrieval_accuracy")),
        "s per step": "" if pace is None else f"{pace:.2f}",
        "left": "" if left is None else clock(left),
    }


def plain_line(status: JobStatus) -> str:
    """A job as one line of text."""
    known = [f"{name} {value}" for name, value in cells(status).items() if value]
    parts = [status.job.name, status.state, *known, status.problem]
    return "  ".join(part for part in parts if part)


def jobs_table(statuses: Sequence[JobStatus], rows: int | None = None) -> Table:
    """All jobs in order; where only so many ``rows`` fit, those that go on or went wrong come first."""
    counts = Counter(status.state for status in statuses)
    summary = ", ".join(f"{counts[state]} {state}" for state in STATE_STYLES if counts[state])
    table = Table(caption=summary, caption_justify="left")
    table.add_column("job", overflow="fold")
    table.add_column("state")
    for column in cells(statuses[0]) if statuses else ():
        table.add_column(column, justify="right")
    shown = list(statuses)
    if rows is not None and len(shown) > rows:
        shown = sorted(shown, key=lambda status: ROWS_FIRST.index(status.state))[: max(1, rows)]
    for status in shown:
        state = Text(status.state, style=STATE_STYLES[status.state])
        table.add_row(status.job.name, state, *cells(status).values())
    return table


def clock(seconds: float) -> str:
    """``1:02:03``, or ``2:03`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
