"""The numbers and the figure of results/experiments/plan.md from the committed records, paired by seed.

Usage: python benchmarks/normalisation_tables.py results/experiments/normalisation-small
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path

from committed_records import read_cells
from ragen2.experiments.charts import curves_figure
from ragen2.experiments.intervals import Estimate, mean_estimate, paired_estimate
from ragen2.reports.figures import save_figure

SUCCESS = "eval/success"
POINTS = 100.0
Curve = Mapping[int, float]
Arm = tuple[str, str, str]
"""Reward, advantage, filter."""
Values = Mapping[int, float]
"""By seed."""
Pair = tuple[str, str]
"""Advantage, filter."""


def end(curve: Curve) -> float:
    """Success after the last step."""
    return curve[max(curve)]


def area(curve: Curve) -> float:
    """Mean height of the curve from step 0 to the last."""
    points = sorted(curve.items())
    total = sum((b[0] - a[0]) * (a[1] + b[1]) / 2.0 for a, b in pairwise(points))
    return total / points[-1][0]


def peak(curve: Curve) -> float:
    """The best evaluation after step 0."""
    return max(value for step, value in curve.items() if step > 0)


READINGS: dict[str, Callable[[Curve], float]] = {"end": end, "area": area, "peak": peak}
REWARDS = ("dense", "binary")
DESCRIBED = (
    "filter/kept_ratio",
    "reward/dead_ratio",
    "update/grad_norm",
    "update/steps",
    "update/entropy",
    "collapse/first_turn/mi_estimate",
)
COMPARED = (
    "reward",
    "reading",
    "D",
    "1 gain, divided",
    "2 gain, centred",
    "3 centred less divided, no filter",
    "4 centred, no filter, less divided, filter",
)


def read(
    folder: Path,
) -> tuple[dict[Arm, dict[int, Curve]], dict[Arm, dict[str, list[float]]], list[int]]:
    """Curves by arm and seed; means of what is described, one per run; seeds that are whole."""
    cells = {
        one["run"]: (
            (one["labels"]["reward"], one["labels"]["advantage"], one["labels"]["filter"]),
            one["seed"],
        )
        for one in json.loads((folder / "table.json").read_text())["cells"]
    }
    curves: dict[Arm, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    means: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(folder / "records.jsonl.gz", "rt") as file:
        for line in file:
            record = json.loads(line)
            arm, seed = cells[record["run"]]
            metrics = record["metrics"]
            if SUCCESS in metrics:
                curves[arm][seed][record["step"]] = metrics[SUCCESS]
            for name in DESCRIBED:
                if name in metrics:
                    means[record["run"]][name].append(metrics[name])
    arms = {arm for arm, _ in cells.values()}
    planned = sorted({seed for _, seed in cells.values()})
    whole = [seed for seed in planned if all(seed in curves[arm] for arm in arms)]
    described: dict[Arm, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run, found in means.items():
        if cells[run][1] in whole:
            for name, values in found.items():
                described[cells[run][0]][name].append(sum(values) / len(values))
    kept = {arm: {seed: curves[arm][seed] for seed in whole} for arm in sorted(arms)}
    return kept, described, whole


def less(one: Values, other: Values) -> dict[int, float]:
    """Seed by seed."""
    return {seed: value - other[seed] for seed, value in one.items()}


def shown(found: Estimate | None, factor: float = POINTS, digits: int = 1) -> str:
    """A value and its interval."""
    if found is None:
        return "-"
    one = found.times(factor)
    ends = "" if one.low is None else f" [{one.low:.{digits}f}, {one.high:.{digits}f}]"
    return f"{one.value:.{digits}f}{ends}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def by_arm(curves: Mapping[Arm, Mapping[int, Curve]], reward: str, name: str) -> dict[Pair, Values]:
    """One reading of every run under a reward, by advantage and filter."""
    return {
        (advantage, kept): {seed: READINGS[name](curve) for seed, curve in found.items()}
        for (of_reward, advantage, kept), found in curves.items()
        if of_reward == reward
    }


def gains(values: Mapping[Pair, Values]) -> tuple[dict[int, float], dict[int, float]]:
    """What the filter adds with division, and without."""
    return (
        less(values["divided", "top_p"], values["divided", "none"]),
        less(values["centred", "top_p"], values["centred", "none"]),
    )


def comparisons(curves: Mapping[Arm, Mapping[int, Curve]]) -> list[list[str]]:
    """A row for each reward and reading."""
    rows = []
    for reward, name in product(REWARDS, READINGS):
        values = by_arm(curves, reward, name)
        divided, centred = gains(values)
        mark = " **primary**" if (reward, name) == ("dense", "end") else ""
        plain = values["centred", "none"]
        row = [
            paired_estimate(divided, centred),
            mean_estimate([*divided.values()]),
            mean_estimate([*centred.values()]),
            paired_estimate(plain, values["divided", "none"]),
            paired_estimate(plain, values["divided", "top_p"]),
        ]
        cells = [shown(one) for one in row]
        rows.append([reward, name, cells[0] + mark, *cells[1:]])
    return rows


def tables(folder: Path) -> str:
    """All of them, as markdown."""
    curves, described, seeds = read(folder)
    arms = []
    for arm, by_seed in curves.items():
        start = mean_estimate([curve[0] for curve in by_seed.values()])
        found = [mean_estimate([f(one) for one in by_seed.values()]) for f in READINGS.values()]
        arms.append([*arm, shown(start), *map(shown, found)])
    apart = []
    for name in READINGS:
        both = [less(*gains(by_arm(curves, reward, name))) for reward in REWARDS]
        apart.append([name, shown(paired_estimate(*both))])
    means = [
        [*arm, *(shown(mean_estimate(described[arm][name]), 1.0, 3) for name in DESCRIBED)]
        for arm in curves
    ]
    of_arm = ["reward", "advantage", "filter"]
    return "\n\n".join(
        [
            f"{len(seeds)} whole seeds: {', '.join(map(str, seeds))}",
            table([*of_arm, "start, %", *(f"{name}, %" for name in READINGS)], arms),
            table(COMPARED, comparisons(curves)),
            table(["reading", "5 D dense less D binary"], apart),
            table([*of_arm, *DESCRIBED], means),
        ]
    )


def save_curves(folder: Path) -> None:
    """Held-out success of the four arms under the dense reward, means over seeds."""
    dense = read_cells(folder).where(reward="dense")
    arms = {
        f"{advantage}, {'no filter' if kept == 'none' else 'filter'}": dense.where(
            advantage=advantage, filter=kept
        )
        for advantage, kept in product(("divided", "centred"), ("none", "top_p"))
    }
    chart = curves_figure("Held-out success, dense reward", arms, SUCCESS, "%", POINTS)
    save_figure([chart], folder / "figures" / "dense.png", "png")


if __name__ == "__main__":
    print(tables(Path(sys.argv[1])))
    save_curves(Path(sys.argv[1]))
