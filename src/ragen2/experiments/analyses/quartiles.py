"""Table 6: train on one quartile of reward variance only."""

from __future__ import annotations

from collections.abc import Sequence

from ragen2.experiments.cells import (
    ENTROPY,
    MI,
    POINTS,
    SUCCESS,
    Cells,
    average,
    difference,
    final,
    late,
    level,
    peak,
    require_axes,
)
from ragen2.experiments.charts import lines_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import spearman_estimate
from ragen2.reports.figures import NamedFigure

MEASURES = (
    ("success", peak(SUCCESS), POINTS, "points"),
    ("end", final(SUCCESS), POINTS, "points"),
    ("mi", late(MI), 1.0, "nats per token"),
    ("entropy", late(ENTROPY), 1.0, "nats per token"),
)


def analyse(cells: Cells) -> Findings:
    """One row per quartile (1 has most variance), the first against the last, and the trend over all four."""
    require_axes(cells, "task", "quartile")
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    figures = []
    for (task,), mine in cells.groups("task"):
        for (quartile,), here in mine.groups("quartile"):
            found = [level(here, measure, factor) for _, measure, factor, _ in MEASURES]
            rows.append(
                (task, quartile, len(here), level(here, average("reward/variance")), *found)
            )
        names = [label for label in mine.planned_axis("quartile") if label.isdigit()]
        claims += _claims(task, mine, names)
        line = {
            task: [(float(q), level(mine.where(quartile=q), peak(SUCCESS), POINTS)) for q in names]
        }
        figures.append(
            NamedFigure(
                f"quartiles-{task}",
                [
                    lines_figure(
                        f"{task}: trained on one quartile",
                        line,
                        "quartile, 1 has most variance",
                        "peak success, %",
                    )
                ],
            )
        )
    table = Table(
        "Trained on one quartile of reward variance",
        (
            "task",
            "quartile",
            "runs",
            "mean RV of the batch",
            "peak success, %",
            "success at the end, %",
            "MI",
            "H(Z|X)",
        ),
        tuple(rows),
        digits=3,
    )
    note = "A run that only loses has its peak before the first step; the end tells more there."
    return Findings([table], claims, figures, [note])


def _claims(task: str, cells: Cells, names: Sequence[str]) -> list[Claim]:
    """The first quartile less the last, and the trend; nothing where a planned quartile has no run."""
    if not names or not set(names) <= set(cells.axis("quartile")):
        return []
    claims: list[Claim] = []
    for name, measure, factor, unit in MEASURES:
        apart = difference(cells, "quartile", names[0], names[-1], measure, factor)
        claims += claimed(f"first_less_last/{task}/{name}", apart, unit, 1 if factor > 1 else 3)
        pairs = [
            (float(one.labels["quartile"]), value)
            for one in cells.runs
            if one.labels["quartile"] in names and (value := measure(one.run)) is not None
        ]
        trend = spearman_estimate([pairs], f"quartiles {task} {name}")
        claims += claimed(f"trend/{task}/{name}", trend, "rank correlation")
    return claims
