"""What ``eval``, ``probe`` and ``audit`` print: progress, then the verdict, tables and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ragen2.cli.views.live import REGIME_STYLES, TONE_STYLES
from ragen2.diagnostics.metrics.collapse import measured_scopes
from ragen2.diagnostics.metrics.gradients import ProbeRecord
from ragen2.reports.data.probes import (
    COLUMNS,
    LEGEND,
    bucket_rows,
    gradient_verdict,
    probe_lines,
    probe_summary,
)
from ragen2.reports.load import Run, as_run
from ragen2.reports.verdict import Verdict, basis, judge
from ragen2.runs.record import AuditRecord, StepRecord
from ragen2.trainer.evaluate import Assessment

ROWS_SHOWN = 12
SHOWN_OF_PROMPT = 160
"""Characters of a prompt."""
COLLAPSE = "collapse/first_turn/"
MARKS = {
    "good": ("+", "green"),
    "fair": ("!", "yellow"),
    "bad": ("x", "bold red"),
    "unknown": ("?", "yellow"),
}
"""How a line of evidence is marked."""
AUDIT_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("rollouts", "audit/rollouts", "{:.0f}"),
    ("grounded", f"{COLLAPSE}grounded_share", "{:.0%}"),
    ("retrieval", f"{COLLAPSE}retrieval_accuracy", "{:.2f}"),
    ("chance", f"{COLLAPSE}retrieval_chance", "{:.2f}"),
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


def print_audit(record: AuditRecord, report: Path, console: Console) -> None:
    """Verdict first, then what it rests on."""
    print_examined(console, judge(as_run(record, report.parent)))
    console.print(Text(basis(record), style="dim"))
    for line in record.notes:
        console.print(Text(f"  {line}"))
    console.print(_steps(record.steps))
    console.print(_rows(record))
    console.print(Text(f"report {report}, numbers {report.with_name('audit.json')}"))


def print_examined(console: Console, verdict: Verdict) -> None:
    """What happened, how sure, what to do next; then each question with its answer."""
    console.print(Text(f"{verdict.word}.", style=TONE_STYLES[verdict.tone]))
    lines = (("", verdict.text), ("How sure: ", verdict.certainty), ("Next: ", verdict.next))
    for label, text in lines:
        if text:
            console.print(Text.assemble((label, "bold"), text))
    grid = Table.grid(padding=(0, 1))
    for one in verdict.evidence:
        mark, style = MARKS[one.tone or "unknown"]
        grid.add_row(
            Text(f"  {mark}", style=style), Text.assemble((one.head, "bold"), " ", one.text)
        )
    for prompt in verdict.prompts:
        what = f"{prompt.share:.0%} of {prompt.num_traces} traces grounded"
        head = f"Ignored prompt: {prompt.label}, step {prompt.step}, {what}."
        grid.add_row(Text("  -"), Text.assemble((head, "bold"), " ", _end_of(prompt.text)))
    console.print(grid)


def _end_of(text: str) -> str:
    """The end of a prompt on one line: its beginning is what all prompts share."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_OF_PROMPT else f"... {line[-SHOWN_OF_PROMPT:]}"


def _steps(steps: list[StepRecord]) -> Table:
    """The first and last steps; the report has all."""
    half = ROWS_SHOWN // 2
    shown = steps if len(steps) <= ROWS_SHOWN else [*steps[:half], *steps[-half:]]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("step", justify="right")
    for label, _, _ in AUDIT_COLUMNS:
        table.add_column(label, justify="right")
    table.add_column("regime", no_wrap=True)
    for index, one in enumerate(shown):
        if len(steps) > ROWS_SHOWN and index == half:
            table.add_row("...", *[""] * (len(AUDIT_COLUMNS) + 1))
        cells = [
            form.format(one.metrics[name]) if name in one.metrics else "-"
            for _, name, form in AUDIT_COLUMNS
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


VISION = "vision/first_turn/"
ROWS = (
    ("eval/success", "success"),
    ("eval/reward", "reward"),
    ("eval/turns", "turns"),
    ("eval/format_validity", "format validity"),
    (f"{COLLAPSE}grounded_share", "grounded share"),
    (f"{COLLAPSE}grounded_share_detectable", "  smallest that would show"),
    (f"{COLLAPSE}retrieval_accuracy", "retrieval accuracy"),
    (f"{COLLAPSE}retrieval_chance", "  chance"),
    (f"{COLLAPSE}mi_estimate", "MI (nats per token)"),
    (f"{COLLAPSE}mi_seq_estimate", "MI (nats per trace)"),
    (f"{COLLAPSE}mi_bound", "  its bound log P"),
    (f"{COLLAPSE}conditional_entropy", "H(Z|X) (nats per token)"),
    (f"{COLLAPSE}reasoning_entropy", "H(Z) (nats per token)"),
    (f"{VISION}retrieval_accuracy", "retrieval of the image"),
    (f"{VISION}retrieval_chance", "  chance"),
    (f"{VISION}grounding", "own image likelier than another"),
    (f"{VISION}image_mi", "MI with the image alone"),
    (f"{VISION}text_mi", "MI with the text alone"),
)
SCOPE_COLUMNS = (
    ("num_traces", "traces", "{:.0f}"),
    ("num_prompts", "prompts", "{:.0f}"),
    ("retrieval_accuracy", "retrieval", "{:.3f}"),
    ("retrieval_chance", "chance", "{:.3f}"),
    ("mi_estimate", "MI", "{:.3f}"),
    ("mi_bound", "bound", "{:.2f}"),
    ("conditional_entropy", "H(Z|X)", "{:.3f}"),
)


def print_verdict(model: str, env: str, verdict: Assessment) -> None:
    """The verdict, the first turn with intervals, then scope by scope."""
    metrics = verdict.metrics
    console = Console()
    record = StepRecord(step=0, metrics=metrics, absent=verdict.absent)
    print_examined(console, judge(Run(Path(model), {}, (record,))))
    table = Table(title=f"{model} on {env}", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("95% interval", justify="right")
    for name, label in ROWS:
        if name in metrics:
            low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
            span = f"{low:.3f} .. {high:.3f}" if low is not None and high is not None else ""
            table.add_row(label, f"{metrics[name]:.3f}", span)
    console.print(table)
    scopes = measured_scopes(metrics)
    if len(scopes) > 1:
        console.print(_scope_table(metrics, scopes))
    for name, reason in verdict.absent.items():
        print(f"{name} not measured: {reason}")


def _scope_table(metrics: dict[str, float], scopes: list[str]) -> Table:
    table = Table(title="reasoning by scope", title_justify="left")
    table.add_column("scope")
    for _, label, _ in SCOPE_COLUMNS:
        table.add_column(label, justify="right")
    for scope in scopes:
        cells = [
            form.format(metrics[f"collapse/{scope}/{name}"]) for name, _, form in SCOPE_COLUMNS
        ]
        table.add_row(scope.replace("_", " "), *cells)
    return table


@contextmanager
def probe_progress(prompts: int) -> Iterator[Callable[[int], None]]:
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


def print_probe(record: ProbeRecord, folder: Path, console: Console | None = None) -> None:
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
