"""Tables and figures of results/experiments anew from the records committed there; nothing is trained.

    python benchmarks/committed_records.py            # every folder
    python benchmarks/committed_records.py collapse-small correlation-tiny

A folder keeps its runs, its provenance and its command; what the analysis finds is written anew.
`prompts` reads score matrices, which are not among the records: its tables stay, and its figures.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ragen2.experiments.analyses import READS_OTHERS, find_analysis
from ragen2.experiments.cells import CellRun, Cells
from ragen2.experiments.findings import Coverage, Findings, findings_data
from ragen2.experiments.grid import Grid, experiment_names, load_grid
from ragen2.experiments.output import FIRST_TUNING_SEED, csv_text, findings_text, save_figures
from ragen2.reports.load import Run
from ragen2.rollout.settings import Rollout
from ragen2.runs.files import write_atomically
from ragen2.runs.record import StepRecord

RESULTS = Path(__file__).parents[1] / "results" / "experiments"
RECORDS, TABLE = "records.jsonl.gz", "table.json"
NEEDS_MORE = frozenset({"prompts"})
"""Experiments whose analysis reads more than records."""
MISSING = "\n## Runs that are not in these tables"


def read_table(folder: Path) -> dict[str, Any]:
    """What a folder's table.json holds."""
    found: dict[str, Any] = json.loads((folder / TABLE).read_text(encoding="utf-8"))
    return found


def read_cells(folder: Path, *, alone: bool = False) -> Cells:
    """The finished runs of a committed experiment; ``alone``: without those of other experiments."""
    data = read_table(folder)
    records = _records(folder / RECORDS)
    settings = data["settings"]
    runs = [
        CellRun(one["labels"], one["seed"], one["run"], _run(one, records[one["run"]], settings))
        for one in data["cells"]
        if one["state"] == "done"
    ]
    labels = [one["labels"] for one in data["cells"]]
    others = () if alone else _others(folder, data, {one.name for one in runs})
    return Cells(runs, list(others), labels)


def grid_of(data: dict[str, Any]) -> Grid:
    """The grid of a committed experiment: an embedded one, or a file beside the results."""
    own = RESULTS / f"{data['experiment']}.toml"
    return load_grid(str(own) if own.is_file() else data["experiment"])


def coverage_of(grid: Grid, data: dict[str, Any]) -> Coverage:
    """Which of its cells were finished."""
    return Coverage(
        planned=[one["labels"] for one in data["cells"]],
        finished=[one["labels"] for one in data["cells"] if one["state"] == "done"],
        words=grid.words,
    )


def find_again(folder: Path) -> Findings:
    """What today's analysis finds in a folder's records."""
    return find_analysis(grid_of(read_table(folder)).analysis)(read_cells(folder))


def write_again(folder: Path) -> None:
    """Replace the tables and figures of a folder by those of today's analysis."""
    data = read_table(folder)
    grid = grid_of(data)
    found = find_again(folder)
    rows, coverage = grid.claims_at(data["scale"]), coverage_of(grid, data)
    old = (folder / "table.md").read_text(encoding="utf-8")
    missing = old.partition(MISSING)[2]
    parts = [old.partition("\n## ")[0].rstrip(), findings_text(found, rows, coverage)]
    text = "\n\n".join(parts) + "\n" + (f"{MISSING}{missing}" if missing else "")
    data |= findings_data(found, rows, coverage)
    write_atomically(folder / "table.md", text)
    write_atomically(folder / "table.csv", csv_text(found.tables))
    write_atomically(folder / TABLE, json.dumps(data, indent=1) + "\n")
    save_figures(folder / "figures", found)


def _records(file: Path) -> dict[str, list[StepRecord]]:
    found: dict[str, list[StepRecord]] = {}
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            data = json.loads(line)
            found.setdefault(data.pop("run"), []).append(StepRecord.model_validate(data))
    return found


def _run(cell: dict[str, Any], records: Iterable[StepRecord], settings: dict[str, Any]) -> Run:
    """With the settings that its experiment changed, and those of its rollouts that it did not."""
    changed = settings[cell["run"].rpartition("-seed")[0]]
    rollout = Rollout.model_validate(changed.get("rollout", {})).model_dump(mode="json")
    full = {**changed, "rollout": rollout, "seed": cell["seed"]}
    return Run(Path(cell["run"]), full, tuple(records))


def _others(folder: Path, data: dict[str, Any], named: set[str]) -> Iterable[CellRun]:
    """Runs of other experiments at the same scale, for an analysis that reads them."""
    if grid_of(data).analysis not in READS_OTHERS:
        return
    seen = set(named)
    for name in experiment_names():
        other = folder.parent / f"{name}-{data['scale']}"
        if other == folder or not (other / TABLE).is_file():
            continue
        for one in read_cells(other, alone=True).runs:
            if one.name not in seen and one.seed < FIRST_TUNING_SEED:
                seen.add(one.name)
                yield CellRun({}, one.seed, one.name, one.run)


def main() -> None:
    """Write the folders named, or all of them."""
    names = sys.argv[1:] or sorted(path.parent.name for path in RESULTS.glob(f"*/{TABLE}"))
    for name in names:
        if read_table(RESULTS / name)["experiment"] in NEEDS_MORE:
            print(f"{name}: needs more than records, left as it is")
            continue
        write_again(RESULTS / name)
        print(f"{name}: written")


if __name__ == "__main__":
    main()
