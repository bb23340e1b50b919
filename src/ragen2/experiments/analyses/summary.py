"""For a grid of one's own: every cell with its success, collapse metrics and what each setting changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from ragen2.experiments.cells import (
    ENTROPY,
    MI,
    POINTS,
    RETRIEVAL,
    SUCCESS,
    Cells,
    Measure,
    area,
    average,
    final,
    first,
    late,
    level,
    peak,
    success_claims,
)
from ragen2.experiments.charts import curves_figure
from ragen2.experiments.findings import EMPTY, Claim, Entry, Findings, Table
from ragen2.experiments.intervals import Estimate, paired_estimate
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
                level(mine, area(SUCCESS), POINTS),
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
        "area, %",
        "MI",
        "retrieval above chance",
        "H(Z|X)",
        "prompts kept",
    )
    effects = Table(
        "Success against the first value of each list, paired, points",
        ("what", "peak", "end", "area", "pairs"),
        tuple(_effect_rows(claims)),
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
        find = partial(_effect, cells, axis, value, values[0])
        found += success_claims(f"{axis} {value} less {values[0]}", find)
    return found


def _effect(cells: Cells, axis: str, one: str, other: str, measure: Measure) -> Estimate | None:
    sides = [_keyed(cells.where(**{axis: label}), axis, measure) for label in (one, other)]
    return paired_estimate(sides[0], sides[1], POINTS)


def _effect_rows(claims: Sequence[Claim]) -> Iterator[tuple[Entry, ...]]:
    found = {claim.name: claim.estimate for claim in claims}
    for name, at_peak in found.items():
        if f"{name}/end" in found:
            yield name, at_peak, found[f"{name}/end"], found.get(f"{name}/area"), at_peak.num


def _keyed(cells: Cells, axis: str, measure: Measure) -> dict[tuple[int, Labels], float]:
    """A measure by the seed and all other labels."""
    found = {}
    for one in cells.runs:
        rest = tuple(sorted((name, label) for name, label in one.labels.items() if name != axis))
        value = measure(one.run)
        if value is not None:
            found[one.seed, rest] = value
    return found
