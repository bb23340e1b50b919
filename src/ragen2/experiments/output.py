"""What an experiment leaves behind: table.md, table.csv, table.json, figures, commands.txt, raw records."""

from __future__ import annotations

import csv
import gzip
import io
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen2.errors import DependencyError, RunError
from ragen2.experiments.analyses import READS_OTHERS, find_analysis
from ragen2.experiments.cells import CellRun, Cells
from ragen2.experiments.findings import (
    Coverage,
    Findings,
    Table,
    entry_text,
    findings_data,
    paper_table,
)
from ragen2.experiments.grid import PaperRow
from ragen2.experiments.intervals import Estimate
from ragen2.experiments.plan import RUNS, Plan, changed_settings
from ragen2.experiments.running import STARTED, read_started
from ragen2.reports.figures import save_figure
from ragen2.reports.load import load_run_directory
from ragen2.runs.files import write_atomically
from ragen2.runs.store import (
    Machine,
    code_commit,
    installed_versions,
    read_sessions,
    this_machine,
)
from ragen2.trainer.jobs.run import Job, JobStatus, is_finished


def provenance() -> dict[str, object]:
    """Commit, versions and hardware of the process that writes; what is unknown is left out."""
    found: dict[str, object] = {
        "versions": installed_versions(),
        "hardware": this_machine().model_dump(mode="json"),
    }
    commit, is_changed = code_commit()
    if commit:
        found["commit"] = commit
    if is_changed is not None:
        found["commit_is_clean"] = not is_changed
    return found


def made_on(runs: Iterable[Path]) -> list[dict[str, object]]:
    """Commits and machines that runs were started with, most runs first; a resumed run may have two."""
    seen: Counter[tuple[str, Machine | None]] = Counter()
    for run in runs:
        seen.update({(one.commit, one.machine) for one in read_sessions(run)})
    return [
        {
            "commit": commit,
            "machine": machine.model_dump(mode="json") if machine is not None else None,
            "runs": count,
        }
        for (commit, machine), count in seen.most_common()
    ]


SCHEMA_VERSION = 1
FORMATS = ("png", "svg")
FIRST_TUNING_SEED = 1000
"""Settings are chosen on run seeds from here on, and nothing is reported of them."""
DIGITS = 5
"""Significant digits of a raw number."""


@dataclass(frozen=True, slots=True)
class WrittenResults:
    """The files that were written, and why figures were not."""

    folder: Path
    findings: Findings
    files: Sequence[Path]
    no_figures: str = ""


def load_cells(plan: Plan) -> Cells:
    """Every finished run of the plan, and those of other experiments where the analysis reads them."""
    finished = {
        job.folder.name: load_run_directory(job.folder) for job in plan.jobs if is_finished(job)
    }
    mine = [
        CellRun(cell.labels, cell.seed, cell.run, finished[cell.run])
        for cell in plan.cells
        if cell.run in finished
    ]
    named = {job.folder.name for job in plan.jobs}
    labels = [cell.labels for cell in plan.cells]
    others = _others(plan.out / RUNS, named) if plan.grid.analysis in READS_OTHERS else ()
    return Cells(mine, list(others), labels)


def write_results(plan: Plan, statuses: Sequence[JobStatus], command: str) -> WrittenResults:
    """Analyse what is finished and write everything; run again, it writes the same files anew."""
    cells = load_cells(plan)
    found = find_analysis(plan.grid.analysis)(cells)
    folder = plan.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        texts = {
            "table.md": markdown(plan, found, statuses),
            "table.csv": csv_text(found.tables),
            "table.json": json.dumps(_data(plan, found, statuses, command), indent=1) + "\n",
            "commands.txt": "".join(f"{line}\n" for line in [command, *plan.commands()]),
        }
        for name, text in texts.items():
            write_atomically(folder / name, text)
        write_atomically(folder / "records.jsonl.gz", gzip.compress(_records(cells.runs), mtime=0))
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}") from error
    files = [folder / name for name in (*texts, "records.jsonl.gz")]
    try:
        files += save_figures(folder / "figures", found)
    except DependencyError as error:
        return WrittenResults(folder, found, files, str(error))
    return WrittenResults(folder, found, files)


def markdown(plan: Plan, found: Findings, statuses: Sequence[JobStatus]) -> str:
    """The tables, the paper's numbers beside ours, notes, and runs that are missing."""
    grid = plan.grid
    title = grid.title or plan.name
    parts = [f"# {title}", " ".join(part for part in (grid.paper, grid.question) if part)]
    counts = {state: sum(one.state == state for one in statuses) for state in ("done", "failed")}
    seeds = sorted({cell.seed for cell in plan.cells})
    parts.append(
        f"Scale {plan.scale or 'own'}; {len(plan.jobs)} runs ({counts['done']} finished, "
        f"{counts['failed']} failed); seeds {', '.join(map(str, seeds))}. Intervals are 95%."
    )
    parts.append(findings_text(found, grid.claims_at(plan.scale), _coverage(plan, statuses)))
    missing = [one for one in statuses if one.state != "done"]
    if missing:
        rows = "\n".join(f"- {one.job.name}: {one.state} {one.problem}".rstrip() for one in missing)
        parts += ["## Runs that are not in these tables", rows]
    return "\n\n".join(part for part in parts if part) + "\n"


def findings_text(found: Findings, rows: Sequence[PaperRow], coverage: Coverage) -> str:
    """The paper's numbers beside ours, the tables, the notes."""
    beside = paper_table(rows, found.claims, coverage)
    parts = []
    for table in [*([beside] if beside else []), *found.tables]:
        parts += [f"## {table.title}", table.markdown()]
    if found.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in found.notes)]
    return "\n\n".join(parts)


def csv_text(tables: Sequence[Table]) -> str:
    """One line per entry: table, row, column, value, ends of the interval, number."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("table", "row", "column", "value", "low", "high", "n"))
    for table in tables:
        for number, row in enumerate(table.rows, 1):
            for column, entry in zip(table.columns, row, strict=True):
                if isinstance(entry, Estimate):
                    writer.writerow(
                        (table.title, number, column, entry.value, entry.low, entry.high, entry.num)
                    )
                else:
                    shown = entry if isinstance(entry, float) else entry_text(entry)
                    writer.writerow((table.title, number, column, shown, "", "", ""))
    return file.getvalue()


def _data(
    plan: Plan, found: Findings, statuses: Sequence[JobStatus], command: str
) -> dict[str, Any]:
    states = {one.job.folder.name: one.state for one in statuses}
    mine = {job.folder.name for job in plan.jobs}
    starts = [one for one in read_started(plan.out) if one.name in mine]
    return {
        "schema_version": SCHEMA_VERSION,
        "experiment": plan.name,
        "scale": plan.scale,
        "title": plan.grid.title,
        "paper_source": plan.grid.paper,
        "question": plan.grid.question,
        "command": command,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **provenance(),
        "made_on": made_on(
            job.folder for job in plan.jobs if states.get(job.folder.name) == "done"
        ),
        **findings_data(found, plan.grid.claims_at(plan.scale), _coverage(plan, statuses)),
        "num_starts": len(starts),
        "started": STARTED,
        "cells": [
            {
                "labels": dict(cell.labels),
                "seed": cell.seed,
                "run": cell.run,
                "state": states.get(cell.run, "queued"),
            }
            for cell in plan.cells
        ],
        "settings": _distinct_settings(plan.jobs),
    }


def _coverage(plan: Plan, statuses: Sequence[JobStatus]) -> Coverage:
    done = {one.job.folder.name for one in statuses if one.state == "done"}
    return Coverage(
        planned=[cell.labels for cell in plan.cells],
        finished=[cell.labels for cell in plan.cells if cell.run in done],
        words=plan.grid.words,
    )


def _distinct_settings(jobs: Sequence[Job]) -> dict[str, Any]:
    """The settings of each cell once, by the name of its runs without the seed."""
    return {job.folder.name.rpartition("-seed")[0]: changed_settings(job.config) for job in jobs}


def _records(runs: Sequence[CellRun]) -> bytes:
    """Every record of every run, one per line, with the run's name; numbers are shortened."""
    lines = []
    for one in {one.name: one for one in runs}.values():
        for record in one.run.records:
            data = record.model_dump(mode="json", exclude_defaults=True, exclude={"files"})
            lines.append(json.dumps({"run": one.name, **_short(data)}, separators=(",", ":")))
    return "".join(f"{line}\n" for line in lines).encode()


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list) else value


def _others(folder: Path, named: set[str]) -> Iterable[CellRun]:
    """Finished runs in the folder that are not the plan's; those of tuning seeds are not for judging."""
    from ragen2.config import load_run

    for path in sorted(folder.glob("*-seed*/run.toml")):
        name = path.parent.name
        if name in named:
            continue
        config = load_run(path, plugins="skip")
        if config.seed < FIRST_TUNING_SEED and is_finished(Job(name, config, path.parent)):
            yield CellRun({}, config.seed, name, load_run_directory(path.parent))


def save_figures(folder: Path, found: Findings) -> list[Path]:
    """Every figure in every format; the files that were written."""
    files = []
    for figure in found.figures:
        for form in FORMATS:
            path = folder / f"{figure.name.replace('/', '-').replace(' ', '_')}.{form}"
            save_figure(figure.charts, path, form)
            files.append(path)
    return files
