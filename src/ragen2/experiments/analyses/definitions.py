"""The four filter definitions in circulation, and DAPO's dynamic sampling against the SNR filter."""

from __future__ import annotations

from ragen2.experiments.cells import (
    MI,
    NONE,
    POINTS,
    SUCCESS,
    Cells,
    average,
    averaged,
    filter_gain,
    filters,
    late,
    level,
    peak,
    require_axes,
)
from ragen2.experiments.charts import estimates_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import Estimate, paired_estimate
from ragen2.reports.figures import NamedFigure

DECOUPLED = (
    ("rule", "top_p", "nonzero"),
    ("resampling of nonzero", "dynamic_sampling", "nonzero"),
    ("resampling of top_p", "top_p_resampled", "top_p"),
    ("SNR filter less dynamic sampling", "top_p", "dynamic_sampling"),
)
"""What is changed, with, without."""


def analyse(cells: Cells) -> Findings:
    """One row per task and filter, gains against none, and the parts of dynamic sampling one by one."""
    require_axes(cells, "task", "filter")
    arms = filters(cells)
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    for (task, arm), mine in cells.groups("task", "filter"):
        gain = None if arm == NONE else filter_gain(cells.where(task=task), arm)
        rows.append(
            (
                task,
                arm,
                len(mine),
                level(mine, peak(SUCCESS), POINTS),
                gain,
                level(mine, average("filter/kept_ratio")),
                level(mine, average("filter/rounds")),
                level(mine, late(MI)),
            )
        )
        claims += claimed(f"gain/{task}/{arm}", gain, "points", 1)
    drawn = []
    for arm in arms:
        found = _average_difference(cells, arm, NONE)
        if found is not None:
            claims.append(Claim(f"gain/average/{arm}", found, "points", 1))
            drawn.append((arm, found))
    parts: list[tuple[Entry, ...]] = []
    for name, one, other in DECOUPLED:
        found = _average_difference(cells, one, other)
        parts.append((name, one, other, found))
        claims += claimed(f"part/{name}", found, "points", 1)
    columns = (
        "task",
        "filter",
        "runs",
        "peak success, %",
        "gain, points",
        "prompts kept",
        "batches per step",
        "MI",
    )
    tables = [
        Table("Filters on the same seeds", columns, tuple(rows)),
        Table(
            "What each part does, averaged over tasks",
            ("part", "with", "without", "points"),
            tuple(parts),
            digits=1,
        ),
    ]
    figure = NamedFigure(
        "definitions",
        [estimates_figure("Gain over no filter, averaged over tasks", drawn, "points of success")],
    )
    note = (
        "Resampling plays more rollouts per step: `batches per step` says how many times as many."
    )
    return Findings(tables, claims, [figure], [note])


def _average_difference(cells: Cells, one: str, other: str) -> Estimate | None:
    """Averaged over tasks inside each seed; None where a planned task has no run."""
    sides = [
        averaged(
            [
                cells.where(task=task, filter=arm).by_seed(peak(SUCCESS))
                for task in cells.planned_axis("task")
            ]
        )
        for arm in (one, other)
    ]
    return paired_estimate(sides[0], sides[1], POINTS)
