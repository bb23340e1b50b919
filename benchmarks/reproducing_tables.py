"""Write the tables of docs/reproducing.md from results/experiments: no number is typed by hand.

    python benchmarks/reproducing_tables.py

Each folder results/experiments/NAME-SCALE is what `ragen2 experiment NAME --scale SCALE` left in its folder,
and results/experiments/started-SCALE.jsonl the list of all starts. Rows without results say "not run", rows
whose finished runs do not give the number "no estimate".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from ragen2.experiments.findings import (
    EMPTY,
    ClaimVerdict,
    Coverage,
    Table,
    estimate_text,
    verdict,
)
from ragen2.experiments.grid import SCALES, Grid, PaperRow, experiment_names, load_grid
from ragen2.experiments.intervals import Estimate
from ragen2.runs.files import write_atomically
from ragen2.runs.store import Machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "experiments"
PAGE = ROOT / "docs" / "reproducing.md"
BEGIN, END = "<!-- reproducing -->", "<!-- /reproducing -->"
ORDER = (
    "main_table", "dynamics", "correlation", "gradients", "compute", "quartiles", "noise", "level",
    "predictor", "interventions", "collapse", "definitions", "prompts", "turns", "rewards", "chain",
    "vision",
)  # fmt: skip
"""The paper's tables and figures first, then what it left open."""
VERDICTS = get_args(ClaimVerdict)
"""The words that are counted, as the rows below have them."""


def load_results(name: str, folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """What was measured of an experiment, by scale, smallest first."""
    files = {scale: folder / f"{name}-{scale}" / "table.json" for scale in SCALES}
    return {
        scale: json.loads(file.read_text(encoding="utf-8"))
        for scale, file in files.items()
        if file.is_file()
    }


def paper_rows(grid: Grid, results: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """A row for each number of the paper and scale; one that says so where nothing was run."""
    for row in grid.claims:
        if not results:
            yield row.about, row.says or EMPTY, EMPTY, "not run", EMPTY, "not run"
        for scale, data in results.items():
            if scale not in row.only:
                continue
            yield _measured_row(row, scale, data["claims"].get(row.claim), _coverage(grid, data))


def section(name: str, folder: Path = RESULTS) -> str:
    """An experiment: its question, its command, its numbers, and where they come from."""
    grid = load_grid(name)
    results = load_results(name, folder)
    scales = list(results) or ["tiny"]
    commands = "\n".join(f"$ ragen2 experiment {name} --scale {scale}" for scale in scales)
    columns = ("what", "paper", "scale", "ours, 95% interval", "n", "verdict")
    parts = [
        f"### {name}",
        f"{grid.paper[0].upper()}{grid.paper[1:]}. {grid.question}",
        f"```console\n{commands}\n```",
        Table("", columns, tuple(paper_rows(grid, results))).markdown(),
    ]
    if results:
        parts.append("\n".join(f"- {_origin(name, *one)}" for one in results.items()))
    return "\n\n".join(parts)


def overview(folder: Path = RESULTS) -> str:
    """Verdicts counted, and all starts."""
    rows = []
    for scale in SCALES:
        found = [(name, load_results(name, folder).get(scale)) for name in ORDER]
        known = [(name, one) for name, one in found if one is not None]
        if known:
            verdicts = Counter(
                row[-1] for name, one in known for row in paper_rows(load_grid(name), {scale: one})
            )
            told = [verdicts[word] for word in VERDICTS]
            rows.append(
                (scale, f"{len(known)} of {len(ORDER)}", *map(str, told), _starts(folder, scale))
            )
    if not rows:
        return "No results yet."
    columns = ("scale", "experiments", *VERDICTS, "runs started")
    return Table("", columns, tuple(rows)).markdown()


def page_text(text: str, folder: Path = RESULTS) -> str:
    """The page with its generated part anew."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    body = "\n\n".join([overview(folder), *(section(name, folder) for name in ORDER)])
    return f"{before}{BEGIN}\n{body}\n{END}{after}"


def _coverage(grid: Grid, data: dict[str, Any]) -> Coverage:
    return Coverage(
        planned=[one["labels"] for one in data["cells"]],
        finished=[one["labels"] for one in data["cells"] if one["state"] == "done"],
        words=grid.words,
    )


def _measured_row(
    row: PaperRow, scale: str, claim: dict[str, Any] | None, coverage: Coverage
) -> tuple[str, ...]:
    if claim is None:
        why = coverage.without_estimate(row.claim)
        return row.about, row.says or EMPTY, scale, why, EMPTY, why
    found = Estimate(claim["value"], claim["low"], claim["high"], claim["num"], claim["how"])
    ours = f"{estimate_text(found, claim['digits'])} {claim['unit']}".strip()
    return row.about, row.says or EMPTY, scale, ours, str(found.num), verdict(row, found)


def _origin(name: str, scale: str, data: dict[str, Any]) -> str:
    states = Counter(one["state"] for one in data["cells"])
    link = f"[table](../results/experiments/{name}-{scale}/table.md)"
    finished = f"{states['done']} of {len(data['cells'])} cells finished"
    return f"{scale}: {finished}; {_makers(data)}; {link}"


def _makers(data: dict[str, Any]) -> str:
    """Commits and machines that made the runs; those of the table where runs do not tell."""
    told = [one for one in data.get("made_on", []) if one["machine"] is not None]
    if not told:
        told = [{"commit": data.get("commit", ""), "machine": data["hardware"]}]
    shown = [
        f"commit {one['commit'][:10] or 'unknown'} on {Machine.model_validate(one['machine'])}"
        for one in told
    ]
    return "; ".join(dict.fromkeys(shown))


def _starts(folder: Path, scale: str) -> str:
    file = folder / f"started-{scale}.jsonl"
    if not file.is_file():
        return EMPTY
    lines: Sequence[str] = file.read_text(encoding="utf-8").splitlines()
    return str(sum(json.loads(line)["kind"] == "run" for line in lines))


def main() -> None:
    """Fill the page."""
    missing = set(experiment_names()) ^ set(ORDER)
    assert not missing, f"the order of the page does not fit the experiments: {missing}"  # noqa: S101
    write_atomically(PAGE, page_text(PAGE.read_text(encoding="utf-8")))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
