"""What a person sees while one run or several go on: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ragen2.cli.views.waiting import clock
from ragen2.config import RunConfig
from ragen2.diagnostics import Regime, examine
from ragen2.diagnostics.metrics.collapse import judged_scope
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.trainer.jobs.run import JobStatus, State

FEWEST_ROWS, MOST_ROWS = 3, 24
"""Steps in the table."""
LINES_BESIDE_ROWS = 12
"""Of a terminal, for what stands above the steps and below."""
REGIME_WIDTH = max(len(regime) for regime in Regime)
"""Characters: the column is as wide before a long name comes as after it."""
Columns = tuple[tuple[str, str, str], ...]

COLUMNS: Columns = (
    ("success", "rollout/success", "{:.2f}"),
    ("reward", "reward/mean", "{:.2f}"),
    ("reward var", "reward/variance", "{:.3f}"),
    ("kept", "filter/kept", "{:.0f}"),
    ("grounded", "collapse/SCOPE/grounded_share", "{:.0%}"),
    ("retrieval", "collapse/SCOPE/retrieval_accuracy", "{:.2f}"),
    ("MI", "collapse/SCOPE/mi_estimate", "{:.2f}"),
    ("H(Z|X)", "collapse/SCOPE/conditional_entropy", "{:.2f}"),
)
"""Label, metric and form; SCOPE is the one that the run is judged by."""
FIRST_SHOWN = (
    *("step", "held out", "left", "success", "grounded", "reward var", "kept", "retrieval", "MI"),
    *("H(Z|X)", "reward", "s per step"),
)
"""Columns of both tables in the order in which they get their place where there is not enough for all."""
TIME_LEFT = (TextColumn("left"), TimeRemainingColumn())
REGIME_STYLES = {
    "diverse_grounded": "green",
    "compressed_grounded": "yellow",
    "partial": "yellow",
    "weak": "bold red",
    "template_collapse": "bold red",
    "low_entropy_collapse": "bold red",
}
TONE_STYLES = {
    "good": "bold green",
    "fair": "bold yellow",
    "bad": "bold red",
    "unknown": "bold yellow",
}


@contextmanager
def live_view(config: RunConfig, run: RunDirectory, facts: Mapping[str, str]) -> Iterator[LiveView]:
    """A view for this run, live when standard output is a terminal."""
    console = Console()
    described = "  ".join(f"{name} {value}" for name, value in facts.items())
    console.print(
        Text(
            f"{config.env.kind} · {config.algorithm.kind} · filter {config.filter.kind} · {described}"
        )
    )
    console.print(Text(f"run directory {run.path}"))
    view = LiveView(config, console, run)
    if not console.is_terminal:
        yield view
        return
    with Live(view.render(), console=console, refresh_per_second=4) as live:
        view.live = live
        yield view
        view.end()
        live.update(view.render())


class LiveView:
    """A sink that shows records."""

    def __init__(self, config: RunConfig, console: Console, run: RunDirectory) -> None:
        self.config = config
        self.scope = judged_scope(config.diagnostics)
        self.columns = columns_of(self.scope)
        self.console = console
        self.records: list[StepRecord] = run.records()
        self.started = time.monotonic()
        self.live: Live | None = None
        self.progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(max(10, min(40, console.width - 40))),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            *TIME_LEFT,
            console=console,
        )
        done = self.records[-1].step if self.records else 0
        self.task = self.progress.add_task("evaluate", total=config.steps, completed=done)

    def phase(self, name: str) -> None:
        """Show what the step is doing."""
        self.progress.update(self.task, description=name)

    def record(self, record: StepRecord) -> None:
        """Show one more step."""
        self.records.append(record)
        self.progress.update(self.task, completed=record.step)
        if self.live is not None:
            self.live.update(self.render())
        else:
            line = plain_line(record, self.config.steps, self.columns)
            self.console.print(Text(line), soft_wrap=True)

    def end(self) -> None:
        """Show that no more steps come, and whether all have."""
        done = self.records[-1].step if self.records else 0
        ended = "done" if done >= self.config.steps else "stopped"
        self.progress.update(self.task, description=ended)
        self.progress.columns = tuple(one for one in self.progress.columns if one not in TIME_LEFT)

    def render(self) -> RenderableType:
        """Progress bar, last steps, newest evaluation, newest word of the early warning."""
        rows = max(FEWEST_ROWS, min(MOST_ROWS, self.console.height - LINES_BESIDE_ROWS))
        table = steps_table(self.records[-rows:], self.columns, self.console.width)
        return Group(
            self.progress,
            table,
            _evaluations(self.records),
            _warning(self.records),
            verdict_line(self.records, self.scope),
        )

    def summary(self, run: RunDirectory, report: Path) -> None:
        """The table a run ends with."""
        records = run.records()
        self.console.print(summary_table(records, self.columns))
        self.console.print(verdict_line(records, self.scope))
        seconds = sum(sum(v for k, v in r.seconds.items() if k != "step") for r in records)
        self.console.print(
            Text(f"{records[-1].step} steps in {seconds / 60:.1f} minutes; report {report}")
        )


def columns_of(scope: str) -> Columns:
    """The columns of a run that is judged by ``scope``."""
    return tuple((label, name.replace("SCOPE", scope), form) for label, name, form in COLUMNS)


def plain_line(record: StepRecord, steps: int, columns: Columns) -> str:
    """One step as one line of text."""
    parts = [f"step {record.step}/{steps}"]
    parts += [
        f"{label} {form.format(record.metrics[name])}"
        for label, name, form in columns
        if name in record.metrics
    ]
    if record.regime:
        parts.append(record.regime.replace("_", " "))
    if "eval/success" in record.metrics:
        parts.append(f"held-out success {record.metrics['eval/success']:.3f}")
    if record.note:
        parts.append(record.note)
    return "  ".join(parts)


def summary_table(records: list[StepRecord], columns: Columns) -> Table:
    """First and last values of what matters, side by side; a last one of an earlier step says which.

    What was measured once, as is the held-out success of a run that was stopped early, has no end.
    """
    table = Table(title="before and after", title_justify="left")
    for column in ("", "start", "end", "change"):
        table.add_column(column, justify="left" if not column else "right")
    rows = [("held-out success", "eval/success"), ("held-out reward", "eval/reward")]
    rows += [(label, name) for label, name, _ in columns if label not in {"kept", "chance"}]
    for label, name in rows:
        found = [(one.step, one.metrics[name]) for one in records if name in one.metrics]
        if not found:
            continue
        (_, start), (step, end) = found[0], found[-1]
        if len(found) == 1 and step < records[-1].step:
            table.add_row(label, f"{start:.3f}", "not measured", "")
            continue
        when = "" if step == records[-1].step else f" (step {step})"
        table.add_row(label, f"{start:.3f}", f"{end:.3f}{when}", f"{end - start:+.3f}")
    regimes = [record.regime.replace("_", " ") for record in records if record.regime]
    if regimes:
        table.add_row("regime", regimes[0], regimes[-1], "")
    return table


def steps_table(records: Sequence[StepRecord], columns: Columns, width: int) -> Table:
    """One row per step, the regime before the numbers; of these as many as ``width`` has room for."""
    shown = [record for record in records if record.step > 0]
    regimes = [_regime(record, columns) for record in shown]
    widest = max([REGIME_WIDTH, *(one.cell_len for one in regimes)])
    step_width = max([len("step"), *(len(str(record.step)) for record in shown)])
    fixed = table_width([step_width, widest])
    cells = {
        label: [form.format(one.metrics[name]) if name in one.metrics else "-" for one in shown]
        for label, name, form in columns
    }
    fitting = fitting_columns(cells, width - fixed)
    table = Table(expand=False)
    table.add_column("step", justify="right", overflow="fold")
    table.add_column("regime", min_width=min(widest, width), overflow="fold")
    for label in fitting:
        table.add_column(label, justify="right", no_wrap=True)
    for row, record in enumerate(shown):
        table.add_row(str(record.step), regimes[row], *(cells[label][row] for label in fitting))
    return table


def _regime(record: StepRecord, columns: Columns) -> Text:
    regime = record.regime or "-"
    is_new = any(name in record.metrics for _, name, _ in columns if "collapse/" in name)
    style = REGIME_STYLES.get(regime, "") if is_new else "dim"  # dim: of an earlier step
    styled = Text(regime.replace("_", " "), style=style)
    if record.metrics.get("warning/level"):
        styled.append("  warning", style="bold red")
    return styled


def table_width(widths: Sequence[int]) -> int:
    """Characters that columns of these widths take in a table, with lines and padding."""
    return 1 + sum(width + 3 for width in widths)


def fitting_columns(cells: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Labels of the columns that fit into ``width`` whole, chosen by ``FIRST_SHOWN``, in their own order."""
    chosen: set[str] = set()
    for label in sorted(cells, key=FIRST_SHOWN.index):
        needed = max([len(label), *map(len, cells[label])]) + 3
        if needed <= width:
            chosen.add(label)
            width -= needed
    return [label for label in cells if label in chosen]


def _warning(records: list[StepRecord]) -> Text:
    """When the early warning last spoke, and what it said; nothing if it never did."""
    spoken = [r for r in records if "early warning" in r.note]
    if not spoken:
        return Text("")
    style = "bold red" if "early warning:" in spoken[-1].note else "green"
    return Text(f"step {spoken[-1].step}  {spoken[-1].note}", style=style)


def verdict_line(records: Sequence[StepRecord], scope: str) -> Text:
    """What the examination says now, and the next thing to do."""
    found = examine(records, scope)
    return Text.assemble((f"{found.head}. ", TONE_STYLES[found.tone]), found.next)


def _evaluations(records: list[StepRecord]) -> Text:
    found = [(r.step, r.metrics["eval/success"]) for r in records if "eval/success" in r.metrics]
    words = "  ".join(f"step {step}: {success:.3f}" for step, success in found[-6:])
    return Text(f"held-out success  {words}" if words else "")


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
LONGEST_NAME = 30
"""Characters of a job's name that are kept in one line before columns are."""
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
        console.print(jobs_table(view.statuses, width=console.width))
        return
    with Live(console=console, refresh_per_second=4) as live:
        view.live = live
        yield view
        live.vertical_overflow = "visible"
        live.update(jobs_table(view.statuses, width=console.width))


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
            rows = self.console.height - LINES_AROUND
            self.live.update(jobs_table(statuses, rows, self.console.width))
            return
        for status in statuses:
            mark = (status.state, LINES_PER_JOB * status.step // status.job.config.steps)
            if mark != self._shown.get(status.job.name, ("queued", 0)):
                self.console.print(Text(job_line(status)), soft_wrap=True)
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


def job_line(status: JobStatus) -> str:
    """A job as one line of text."""
    known = [f"{name} {value}" for name, value in cells(status).items() if value]
    parts = [status.job.name, status.state, *known, status.problem]
    return "  ".join(part for part in parts if part)


def jobs_table(
    statuses: Sequence[JobStatus], rows: int | None = None, width: int | None = None
) -> Table:
    """All jobs in order; where only so many ``rows`` fit, those that go on or went wrong come first.

    Of the columns there are as many as ``width`` has room for.
    """
    counts = Counter(status.state for status in statuses)
    summary = ", ".join(f"{counts[state]} {state}" for state in STATE_STYLES if counts[state])
    table = Table(caption=summary, caption_justify="left")
    shown = list(statuses)
    if rows is not None and len(shown) > rows:
        shown = sorted(shown, key=lambda status: ROWS_FIRST.index(status.state))[: max(1, rows)]
    found = [cells(status) for status in shown]
    columns = {label: [one[label] for one in found] for label in found[0]} if found else {}
    fitting = list(columns)
    if width is not None:
        names = min(LONGEST_NAME, max((len(one.job.name) for one in shown), default=0))
        states = max(map(len, STATE_STYLES))
        fitting = fitting_columns(columns, width - table_width([names, states]))
    table.add_column("job", overflow="fold")
    table.add_column("state", no_wrap=True)
    for label in fitting:
        table.add_column(label, justify="right", no_wrap=True)
    for row, status in enumerate(shown):
        state = Text(status.state, style=STATE_STYLES[status.state])
        table.add_row(status.job.name, state, *(columns[label][row] for label in fitting))
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
