"""What a person sees of an audit: two progress bars, then verdict, steps and rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ragen2.cli.views.live import REGIME_STYLES
from ragen2.reports.load import as_run
from ragen2.reports.verdict import basis, judge
from ragen2.runs.record import AuditRecord, StepRecord

ROWS_SHOWN = 12
COLLAPSE = "collapse/first_turn/"
STYLES = {
    "good": "bold green",
    "fair": "bold yellow",
    "bad": "bold red",
    "unknown": "bold yellow",
}
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("rollouts", "audit/rollouts", "{:.0f}"),
    ("retrieval", f"{COLLAPSE}retrieval_accuracy", "{:.2f}"),
    ("chance", f"{COLLAPSE}retrieval_chance", "{:.2f}"),
    ("p", f"{COLLAPSE}retrieval_p_value", "{:.3f}"),
    ("MI", f"{COLLAPSE}mi_estimate", "{:.2f}"),
    ("dead", "reward/dead_ratio", "{:.2f}"),
)


class Bars:
    """Progress of reading (in bytes) and of measuring (in steps)."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self.progress = progress
        self.reading = progress.add_task("reading", total=total_bytes)
        self.measuring: TaskID | None = None

    def read(self, num_bytes: int) -> None:
        """So many more bytes are read."""
        self.progress.advance(self.reading, num_bytes)

    def start_steps(self, count: int) -> None:
        """All is read; so many steps are to be measured."""
        self.progress.update(self.reading, completed=self.progress.tasks[0].total)
        self.measuring = self.progress.add_task("measuring", total=count)

    def measured(self) -> None:
        """One more step is measured."""
        if self.measuring is not None:
            self.progress.advance(self.measuring)


@contextmanager
def progress_bars(total_bytes: int) -> Iterator[Bars]:
    """Bars on standard error, so that what is printed stays clean; nothing where it is no terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
    )
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        yield Bars(progress, total_bytes)


def print_audit(record: AuditRecord, report: Path) -> None:
    """Verdict first, then what it rests on."""
    console = Console()
    verdict = judge(as_run(record, report.parent))
    console.print(Text(f"{verdict.word}. {verdict.text}", style=STYLES[verdict.tone]))
    console.print(Text(basis(record), style="dim"))
    for line in (*(one.text for one in verdict.evidence), *record.notes):
        console.print(Text(f"  {line}"))
    console.print(_steps(record.steps))
    console.print(_rows(record))
    console.print(Text(f"report {report}, numbers {report.with_name('audit.json')}"))


def _steps(steps: list[StepRecord]) -> Table:
    """The first and last steps; the report has all."""
    half = ROWS_SHOWN // 2
    shown = steps if len(steps) <= ROWS_SHOWN else [*steps[:half], *steps[-half:]]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("step", justify="right")
    for label, _, _ in COLUMNS:
        table.add_column(label, justify="right")
    table.add_column("regime", no_wrap=True)
    for index, one in enumerate(shown):
        if len(steps) > ROWS_SHOWN and index == half:
            table.add_row("...", *[""] * (len(COLUMNS) + 1))
        cells = [
            form.format(one.metrics[name]) if name in one.metrics else "-"
            for _, name, form in COLUMNS
        ]
        regime = one.regime or "-"
        styled = Text(regime.replace("_", " "), style=REGIME_STYLES.get(regime, ""))
        table.add_row(str(one.step), *cells, styled)
    return table


def _rows(record: AuditRecord) -> Text:
    rows = record.rows
    lines = [f"{rows.used:,} of {rows.read:,} rows used ({', '.join(record.formats)})"]
    lines += [f"  {count:,} not used: {reason}" for reason, count in rows.unused.items()]
    lines += [f"  {count:,} not scored: {reason}" for reason, count in rows.no_trace.items()]
    lines += [f"  {Path(path).name} not read: {why}" for path, why in record.unreadable.items()]
    return Text("\n".join(lines))
