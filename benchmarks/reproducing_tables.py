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

from committed_records import coverage_of
from ragen2.experiments.findings import (
    EMPTY,
    ClaimVerdict,
    Coverage,
    Table,
    decision,
    estimate_text,
)
from ragen2.experiments.grid import SCALES, Grid, PaperRow, experiment_names, load_grid
from ragen2.experiments.intervals import Estimate
from ragen2.runs.files import write_atomically
from ragen2.runs.store import Machine
from scorecard import Source, from_tables, scorecard

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "experiments"
PAGE = ROOT / "docs" / "reproducing.md"
SCORES, BEGIN = "<!-- scorecard -->", "<!-- reproducing -->"
ORDER = (
    "main_table", "dynamics", "correlation", "gradients", "compute", "quartiles", "noise", "level",
    "predictor", "interventions", "collapse", "definitions", "prompts", "turns", "rewards", "chain",
    "vision",
)  # fmt: skip
"""The paper's tables and figures first, then what it left open."""
AT_END = (4, 5)
"""Columns of a section that only comparisons of success fill."""
VERDICTS = get_args(ClaimVerdict)
"""The words that are counted, as the rows below have them."""


def load_results(name: str, folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """What was measured of an experiment, by scale, smallest first.

    A recipe that was given up after its results were seen keeps its rows, under its scale and learning rate.
    """
    found = {}
    for scale in SCALES:
        plain = folder / f"{name}-{scale}"
        for path in [plain, *sorted(folder.glob(f"{plain.name}-lr*"))]:
            if (path / "table.json").is_file():
                label = path.name.removeprefix(f"{name}-").replace("-lr", ", first recipe: lr ")
                found[label] = json.loads((path / "table.json").read_text(encoding="utf-8"))
    return found


def scale_of(label: str) -> str:
    """The scale that a label of results begins with."""
    return label.partition(",")[0]


def paper_rows(grid: Grid, results: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """A row for each number of the paper and scale; one that says so where nothing was run."""
    for row in grid.claims:
        if not results:
            yield row.about, row.says or EMPTY, EMPTY, "not run", *[EMPTY] * 3, "not run"
        for label, data in results.items():
            if scale_of(label) in row.only:
                yield _measured_row(row, label, data["claims"], coverage_of(grid, data))


def section(name: str, folder: Path = RESULTS) -> str:
    """An experiment: its question, its command, its numbers, and where they come from."""
    grid = load_grid(name)
    results = load_results(name, folder)
    scales = list(dict.fromkeys(map(scale_of, results))) or ["tiny"]
    commands = "\n".join(f"$ ragen2 experiment {name} --scale {scale}" for scale in scales)
    columns = ("what", "paper", "scale", "ours, 95% interval", "at the end", "area", "n", "verdict")
    rows = list(paper_rows(grid, results))
    # Only success is read in three ways.
    shown = [
        at
        for at in range(len(columns))
        if at not in AT_END or any(row[at] != EMPTY for row in rows)
    ]
    parts = [
        f"### {name}",
        f"{grid.paper[0].upper()}{grid.paper[1:]}. {grid.question}",
        f"```console\n{commands}\n```",
        Table(
            "",
            tuple(columns[at] for at in shown),
            tuple(tuple(row[at] for at in shown) for row in rows),
        ).markdown(),
    ]
    if results:
        parts.append("\n".join(f"- {_origin(name, *one)}" for one in results.items()))
    return "\n\n".join(parts)


def overview(folder: Path = RESULTS) -> str:
    """Verdicts counted, and all starts."""
    rows = []
    for scale in SCALES:
        known = {name: _at_scale(name, scale, folder) for name in ORDER}
        num_known = sum(bool(one) for one in known.values())
        if num_known:
            verdicts = Counter(
                _word(row[-1])
                for name, results in known.items()
                if results
                for row in paper_rows(load_grid(name), results)
            )
            told = [verdicts[word] for word in VERDICTS]
            rows.append(
                (scale, f"{num_known} of {len(ORDER)}", *map(str, told), _starts(folder, scale))
            )
    if not rows:
        return "No results yet."
    columns = ("scale", "experiments", *VERDICTS, "runs started")
    return Table("", columns, tuple(rows)).markdown()


def page_text(text: str, folder: Path = RESULTS, source: Source = from_tables) -> str:
    """The page with its generated parts anew."""
    body = "\n\n".join([overview(folder), *(section(name, folder) for name in ORDER)])
    return _filled(_filled(text, SCORES, scorecard(source)), BEGIN, body)


def _filled(text: str, begin: str, body: str) -> str:
    end = begin.replace("<!-- ", "<!-- /")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    return f"{before}{begin}\n{body}\n{end}{after}"


def _at_scale(name: str, scale: str, folder: Path) -> dict[str, dict[str, Any]]:
    results = load_results(name, folder)
    return {label: one for label, one in results.items() if scale_of(label) == scale}


def _word(decided: str) -> str:
    """The word of a decision, without what goes with it."""
    return next(word for word in VERDICTS if decided.startswith(word))


def _measured_row(
    row: PaperRow, label: str, claims: dict[str, Any], coverage: Coverage
) -> tuple[str, ...]:
    claim = claims.get(row.claim)
    if claim is None:
        why = coverage.without_estimate(row.claim)
        return row.about, row.says or EMPTY, label, why, *[EMPTY] * 3, why
    found = estimate_of(claim)
    ours = f"{estimate_text(found, claim['digits'])} {claim['unit']}".strip()
    others = [claims.get(f"{row.claim}/{reading}") for reading in ("end", "area")]
    told = [
        EMPTY if one is None else estimate_text(estimate_of(one), one["digits"]) for one in others
    ]
    return row.about, row.says or EMPTY, label, ours, *told, str(found.num), decision(row, found)


def estimate_of(claim: dict[str, Any]) -> Estimate:
    """A claim of a table.json as an estimate."""
    return Estimate(claim["value"], claim["low"], claim["high"], claim["num"], claim["how"])


def _origin(name: str, label: str, data: dict[str, Any]) -> str:
    states = Counter(one["state"] for one in data["cells"])
    folder = f"{name}-{label.replace(', first recipe: lr ', '-lr')}"
    link = f"[table](../results/experiments/{folder}/table.md)"
    finished = f"{states['done']} of {len(data['cells'])} cells finished"
    return f"{label}: {finished}; {_coefficients(data)}; {_makers(data)}; {link}"


def _coefficients(data: dict[str, Any]) -> str:
    """Entropy bonus and KL of the runs: where both are 0, the paper's cause of collapse is switched off."""
    algorithms = [one.get("algorithm", {}) for one in data.get("settings", {}).values()]
    found = []
    for name, setting in (("entropy bonus", "entropy_coefficient"), ("KL", "kl_coefficient")):
        values = sorted({float(one.get(setting, 0.0)) for one in algorithms})
        found.append(f"{name} {', '.join(f'{value:g}' for value in values) or 'unknown'}")
    return ", ".join(found)


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
