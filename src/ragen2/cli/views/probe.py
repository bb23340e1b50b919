"""What a person sees of a gradient probe: progress, then verdict, table and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ragen2.diagnostics.metrics.gradients import ProbeRecord
from ragen2.reports.data.probes import (
    COLUMNS,
    LEGEND,
    bucket_rows,
    gradient_verdict,
    probe_lines,
    probe_summary,
)


@contextmanager
def progress(prompts: int) -> Iterator[Callable[[int], None]]:
    """A bar of prompts on standard error; nothing where it is no terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("playing", total=prompts)
        yield lambda done: bar.update(task, description="gradients", completed=done)


def show(record: ProbeRecord, folder: Path, console: Console | None = None) -> None:
    """Verdict first, then the buckets; fits 80 columns."""
    screen = console or Console()
    screen.print(Text(f"{record.run}, step {record.step} · {probe_summary(record)}", style="dim"))
    screen.print(Text(gradient_verdict(record.trends), style="bold"))
    screen.print(_table(record))
    screen.print(_list(LEGEND, style="dim"))
    screen.print(_list(probe_lines(record)))
    screen.print(Text(f"figure {folder / 'probe.html'}, numbers {folder / 'probe.json'}"))


def _table(record: ProbeRecord) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for cells in bucket_rows(record.buckets):
        table.add_row(*cells)
    return table


def _list(lines: Iterable[str], style: str = "") -> Table:
    """Lines that keep their indent where they are wrapped."""
    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("  -", Text(line, style=style))
    return grid
