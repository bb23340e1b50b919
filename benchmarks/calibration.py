"""Count how often the 95% intervals of ``measure`` cover the truth, on sources whose truth is known.

    python benchmarks/calibration.py results/calibration.json [--repetitions 1000] [--part 0/2]
    python benchmarks/calibration.py results/calibration_held_out.json --held-out

Writes one record a case (source, groundedness, batch size, kind of interval) and prints the table that
docs/diagnostics/mutual-information.md shows. Cases already in the file are kept, so an interrupted run
goes on; ``--part i/n`` takes every n-th case, for several processes with a file each; several files are
merged by ``--merge``. The constants of the intervals were chosen on the sources of the table, so
``--held-out`` counts on others. A thousand repetitions of all cases take about an hour of one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ragen2.diagnostics.calibration import COVERED, Design, coverage
from ragen2.diagnostics.metrics.mutual_information import IntervalKind
from ragen2.diagnostics.sources import TabularSource

FAMILIES = {
    "short": {"vocabulary": 8, "length": 4, "ends": False},
    "long": {"vocabulary": 2, "length": 12, "ends": False},
    "ends": {"vocabulary": 4, "length": 7, "ends": True},
    "other": {"vocabulary": 5, "length": 5, "ends": False, "seed": 11},
    "other_ends": {"vocabulary": 3, "length": 10, "ends": True, "seed": 12},
}
"""Sources by their traces: 4 tokens, 12 tokens, 1 to 7 with an end token; held out: 5, and 1 to 10."""
MAIN = (("short", "long", "ends"), (0.1, 0.3, 0.6, 0.9), ((8, 8), (16, 4), (32, 4), (64, 2)))
HELD_OUT = (("other", "other_ends"), (0.15, 0.45, 0.75), ((8, 8), (24, 4)))
"""Families, groundedness, and batches as prompts and traces of each."""
Plan = tuple[tuple[str, ...], tuple[float, ...], tuple[tuple[int, int], ...]]
POPULATION = 1500
"""Prompts of each source: many more than a batch, so that batches hardly overlap."""


@dataclass(frozen=True)
class Case:
    """One source, one batch size, one kind of interval."""

    family: str
    groundedness: float
    prompts: int
    traces: int
    kind: IntervalKind

    @property
    def name(self) -> str:
        """Unique in a file of results."""
        return f"{self.family}/{self.groundedness}/{self.prompts}x{self.traces}/{self.kind}"


def cases(plan: Plan) -> Iterator[Case]:
    """Every case, sources outermost so that each is made once."""
    families, levels, sizes = plan
    for family in families:
        for groundedness in levels:
            for prompts, traces in sizes:
                yield Case(family, groundedness, prompts, traces, "batch")
                yield Case(family, groundedness, prompts, traces, "population")


def run(case: Case, source: TabularSource, repetitions: int) -> dict[str, object]:
    """Coverage of every metric with an interval."""
    design = Design(case.prompts, case.traces, repetitions)
    found = coverage(source, case.kind, design)
    return {
        **asdict(case),
        "repetitions": repetitions,
        "resamples": design.resamples,
        "coverage": {
            name: {
                "covered": round(one.share, 4),
                "low_misses": one.low_misses,
                "high_misses": one.high_misses,
                "truth": round(one.truth, 6),
                "width": round(one.width, 6),
            }
            for name, one in found.items()
        },
    }


def table(results: dict[str, dict[str, object]], levels: tuple[float, ...]) -> str:
    """Coverage in percent by kind, groundedness and metric: mean over cases, and the range."""
    lines = ["| interval | groundedness | " + " | ".join(f"`{name}`" for name in COVERED) + " |"]
    lines.append("|---" * (len(COVERED) + 2) + "|")
    for kind in ("batch", "population"):
        for groundedness in levels:
            rows = [
                one["coverage"]
                for one in results.values()
                if one["kind"] == kind and one["groundedness"] == groundedness
            ]
            if rows:
                shares = [[100 * row[name]["covered"] for row in rows] for name in COVERED]
                cells = [f"{np.mean(s):.1f} ({min(s):.1f}-{max(s):.1f})" for s in shares]
                lines.append(f"| {kind} | {groundedness} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is not in the file yet, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--part", default="0/1", help="which share of the cases: i/n")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="take in these files too")
    parser.add_argument("--held-out", action="store_true", help="other sources than the table's")
    options = parser.parse_args()
    plan = HELD_OUT if options.held_out else MAIN
    results = json.loads(options.file.read_text()) if options.file.exists() else {}
    for other in options.merge:
        results |= json.loads(other.read_text())
    part, parts = map(int, options.part.split("/"))
    source, made = None, None
    for index, case in enumerate(cases(plan)):
        if index % parts != part or case.name in results:
            continue
        if made != (case.family, case.groundedness):
            made = (case.family, case.groundedness)
            source = TabularSource.make(
                prompts=POPULATION, groundedness=case.groundedness, **FAMILIES[case.family]
            )
        results[case.name] = run(case, source, options.repetitions)
        options.file.write_text(json.dumps(results, indent=1) + "\n")
        print(case.name, flush=True)
    order = {case.name: index for index, case in enumerate(cases(plan))}
    results = dict(sorted(results.items(), key=lambda item: order[item[0]]))
    options.file.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results, plan[1]))


if __name__ == "__main__":
    main()
