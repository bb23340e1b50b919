"""For a grid of one's own: every cell with its success, collapse metrics and what each setting changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ragen2.experiments.cells import (
    ENTROPY,
    MI,
    POINTS,
    RETRIEVAL,
    SUCCESS,
    Cells,
    average,
    final,
    first,
    late,
    level,
    peak,
)
from ragen2.experiments.charts import curves_figure
from ragen2.experiments.findings import EMPTY, Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import paired_estimate
from ragen2.reports.figures import NamedFigure

Labels = tuple[tuple[str, str], ...]
MOST_LINES = 6
"""Curves in one chart."""


def analyse_summary(cells: Cells) -> Findings:
    """One row per cell; and for each axis, each value against the first, paired over everything else."""
    axes = list(dict.fromkeys(axis for one in cells.runs for axis in one.labels))
    rows: list[tuple[Entry, ...]] = []
    shown = {}
    for key, mine in _filled(cells, axes).groups(*axes):
        shown[", ".join(key) or "all"] = mine
        rows.append(
            (
                *key,
                len(mine),
                level(mine, first(SUCCESS), POINTS),
                level(mine, peak(SUCCESS), POINTS),
                level(mine, final(SUCCESS), POINTS),
                level(mine, late(MI)),
                level(mine, late(RETRIEVAL)),
                level(mine, late(ENTROPY)),
                level(mine, average("filter/kept_ratio")),
            )
        )
    claims = [claim for axis in axes for claim in _effects(cells, axis)]
    columns = (
        *axes,
        "runs",
        "start, %",
        "peak, %",
        "end, %",
        "MI",
        "retrieval above chance",
        "H(Z|X)",
        "prompts kept",
    )
    effects = Table(
        "Peak success against the first value of each list, paired",
        ("what", "points", "pairs"),
        tuple((claim.name, claim.estimate, claim.estimate.num) for claim in claims),
        digits=1,
    )
    drawn = dict(list(shown.items())[:MOST_LINES])
    figure = NamedFigure(
        "success", [curves_figure("Held-out success", drawn, SUCCESS, "%", POINTS)]
    )
    return Findings([Table("Cells", columns, tuple(rows)), effects], claims, [figure])


def _filled(cells: Cells, axes: Sequence[str]) -> Cells:
    """Runs with a label for every axis: blocks with different lists stand in one table."""
    return Cells(
        [
            replace(one, labels={axis: one.labels.get(axis, EMPTY) for axis in axes})
            for one in cells.runs
        ]
    )


def _effects(cells: Cells, axis: str) -> list[Claim]:
    values = cells.axis(axis)
    found: list[Claim] = []
    for value in values[1:]:
        sides = [_keyed(cells.where(**{axis: one}), axis) for one in (value, values[0])]
        estimate = paired_estimate(sides[0], sides[1], POINTS)
        found += claimed(f"{axis} {value} less {values[0]}", estimate, "points", 1)
    return found


def _keyed(cells: Cells, axis: str) -> dict[tuple[int, Labels], float]:
    """Peak success by the seed and all other labels."""
    found = {}
    for one in cells.runs:
        rest = tuple(sorted((name, label) for name, label in one.labels.items() if name != axis))
        value = peak(SUCCESS)(one.run)
        if value is not None:
            found[one.seed, rest] = value
    return found
