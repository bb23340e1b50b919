"""Count how often the 95% intervals of ``measure`` cover the truth, on sources whose truth is known.

    python benchmarks/calibration.py results/calibration.json [--repetitions 1000] [--part 0/2]
    python benchmarks/calibration.py results/calibration_held_out.json --held-out

Writes one record per case (source, groundedness, batch size, kind of interval) and prints the table that
docs/diagnostics/mutual-information.md shows. Cases already in the file are kept, so an interrupted run
goes on; ``--part i/n`` takes every n-th case, for several processes with a file each; several files are
merged by ``--merge``. The constants of the intervals were chosen on the sources of the table, so
``--held-out`` counts on others. A thousand repetitions of all cases take about an hour of one core.

The truth of a ``batch`` interval is what endless traces of the same prompts would give: an exact sum
over all traces. The truth of a ``population`` interval is the mean of the estimate over batches of the
same size drawn from the source: an average over many batches, without intervals.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ragen2.diagnostics.metrics.mutual_information import IntervalKind, measure, metrics_of
from ragen2.diagnostics.statistics.jackknife import trace_statistics
from ragen2.seeding import stream
from ragen2.types import IntArray, ScoreMatrix
from tabular_source import TabularSource

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
ROUNDING = 1e-9
COVERED = (
    "mi_estimate",
    "mi_seq_estimate",
    "conditional_entropy",
    "conditional_entropy_seq",
    "reasoning_entropy",
    "reasoning_entropy_seq",
    "retrieval_accuracy",
    "mi_zscore",
    "mi_zscore_seq",
)
"""Metrics whose intervals are checked."""


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


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often the interval of one metric missed its truth, and on which side."""

    truth: float
    low_misses: int
    """Repetitions in which the whole interval lay above the truth."""
    high_misses: int
    """Repetitions in which the whole interval lay below the truth."""
    repetitions: int
    width: float
    """Mean width of the interval."""

    @property
    def share(self) -> float:
        """Share of repetitions whose interval held the truth."""
        return 1.0 - (self.low_misses + self.high_misses) / self.repetitions


@dataclass(frozen=True, slots=True)
class Design:
    """The size of a batch and how often to draw one."""

    prompts: int
    traces: int
    """Traces of each prompt."""
    repetitions: int = 1000
    resamples: int = 200
    truth_batches: int = 5000
    """Batches averaged for the truth of ``population`` intervals."""


def exact_metrics(source: TabularSource) -> dict[str, float]:
    """Every estimate as it would come out with endless traces of the source's prompts."""
    matrix, weight_N = source.every_trace()
    return {
        name: float(value) for name, value in metrics_of(trace_statistics(matrix), weight_N).items()
    }


def coverage(
    source: TabularSource, kind: IntervalKind, design: Design, seed: int = 0
) -> dict[str, Coverage]:
    """Coverage of every interval of ``measure`` over seeded repetitions.

    ``batch`` keeps the first prompts of the source; ``population`` draws prompts anew each time, so the
    source should have many more than a batch.
    """
    rng = stream("coverage", kind, seed)
    fixed = np.arange(design.prompts)

    def batch() -> ScoreMatrix:
        prompts = fixed if kind == "batch" else _draw(source, design.prompts, rng)
        return source.sample(design.traces, rng, prompts)

    if kind == "batch":
        truth = exact_metrics(source.only(fixed))
    else:
        truth = _mean_estimates([_estimates(batch()) for _ in range(design.truth_batches)])
    found = [
        measure(
            one.logp_NP,
            one.length_N,
            one.owner_N,
            interval=kind,
            resamples=design.resamples,
            seed=repetition,
        )
        for repetition, one in enumerate(batch() for _ in range(design.repetitions))
    ]
    return {
        name: count_misses(name, value, found)
        for name, value in truth.items()
        if f"{name}_low" in found[0]
    }


def _draw(source: TabularSource, prompts: int, rng: np.random.Generator) -> IntArray:
    return rng.permutation(source.num_prompts)[:prompts]


def _estimates(matrix: ScoreMatrix) -> dict[str, float]:
    return {name: float(value) for name, value in metrics_of(trace_statistics(matrix)).items()}


def _mean_estimates(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def count_misses(name: str, truth: float, found: list[dict[str, float]]) -> Coverage:
    """Hold the intervals of one metric over R repetitions against its truth."""
    low_R = np.array([one[f"{name}_low"] for one in found])
    high_R = np.array([one[f"{name}_high"] for one in found])
    return Coverage(
        truth=truth,
        low_misses=int((low_R > truth + ROUNDING).sum()),
        high_misses=int((high_R < truth - ROUNDING).sum()),
        repetitions=len(found),
        width=float((high_R - low_R).mean()),
    )


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
