"""Write the page: run directories and audit folders in, one self-contained HTML file out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ragen2.errors import RunError
from ragen2.reports.data import Report, build_report
from ragen2.reports.web import render
from ragen2.runs.files import write_atomically


def write_report(paths: Sequence[Path], out: Path) -> Path:
    """Write the page for these run directories and audit folders to ``out``."""
    return write_page(build_report(paths), out)


def write_page(report: Report, out: Path) -> Path:
    """Write the page of a report that is already built."""
    page = render(report.data, report.all_blocks())
    try:
        write_atomically(out, page)
    except OSError as error:
        raise RunError(f"report {out} cannot be written: {error.strerror}") from error
    return out
