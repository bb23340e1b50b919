"""The whole object behind a page, and the heavy blocks that it names."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen2 import __version__
from ragen2.diagnostics.metrics.gradients import ProbeRecord
from ragen2.reports.data.compare import compare_data
from ragen2.reports.data.matrices import Blocks
from ragen2.reports.data.probes import probe_entry
from ragen2.reports.data.run import run_data
from ragen2.reports.gradients import about, verdict
from ragen2.reports.load import Run, load

SCHEMA = 1


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What ``reports.web.render`` takes."""

    data: dict[str, Any]
    blocks: Blocks
    """Each block is made when it is called for; a server makes only what a reader opens."""

    def all_blocks(self) -> dict[str, Any]:
        """Every block made, for a page that stands alone."""
        return {name: make() for name, make in self.blocks.items()}


def build_report(paths: Sequence[Path]) -> Report:
    """Read these run directories and audit folders."""
    return report_of([load(path) for path in paths])


def report_of(runs: Sequence[Run]) -> Report:
    """The report of runs that are already read."""
    names = distinct_names(runs)
    parts = [run_data(run, f"r{number}", names[number]) for number, run in enumerate(runs)]
    compare = compare_data(runs) if len(runs) > 1 else None
    blocks: Blocks = {}
    for _, own in parts:
        blocks |= own
    return Report(_whole(", ".join(names), [part for part, _ in parts], compare), blocks)


def probe_report(record: ProbeRecord) -> Report:
    """The report of one probe, without the run around it."""
    name = f"{record.run}, step {record.step}"
    data, _ = run_data(Run(Path(record.run), {}, ()), "r0", name)
    verdict_data = {
        "word": f"Gradients of step {record.step}",
        "tone": "unknown",
        "text": verdict(record.trends),
        "evidence": [],
    }
    more = {
        "state": "finished",
        "facts": [["probed", about(record)]],
        "verdict": verdict_data,
        "probes": [probe_entry(record)],
        "notes": [],
        "versions": [["ragen2", __version__]],
    }
    return Report(_whole(f"Gradients of {name}", [data | more], None), {})


def _whole(
    title: str, runs: list[dict[str, Any]], compare: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "title": title,
        "version": __version__,
        "generated": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "live": None,
        "notes": [],
        "runs": runs,
        "compare": compare,
    }


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """A name for each run; runs that share one get their folder's place before it."""
    names = [run.name for run in runs]
    found = [
        f"{run.path.resolve().parent.name}/{name}" if names.count(name) > 1 else name
        for run, name in zip(runs, names, strict=True)
    ]
    return [
        f"{name} ({number})" if found.count(name) > 1 else name
        for number, name in enumerate(found, 1)
    ]
