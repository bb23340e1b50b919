"""What the benchmarks write: a table on the screen, and all figures as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ragen2.errors import ConfigError, RunError

OutOption = Annotated[Path | None, typer.Option(help="Also write all figures here, as JSON.")]
RepeatsOption = Annotated[int, typer.Option(min=1, help="Timed runs of each; the median counts.")]


def check_device(device: str) -> None:
    """A device that is none is told at once."""
    if device not in {"auto", "cpu", "cuda"}:
        raise ConfigError(f"--device must be auto, cpu or cuda, got {device}")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """The first column is words, the others are numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def write_json(file: Path, found: dict[str, Any]) -> None:
    """All figures, for tables and plots."""
    import json

    from ragen2.runs.files import write_atomically

    try:
        write_atomically(file, json.dumps(found, indent=1) + "\n")
    except OSError as error:
        raise RunError(f"--out {file} cannot be written: {error.strerror}") from error
