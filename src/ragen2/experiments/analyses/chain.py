"""X -> Z -> A during collapse: which link breaks, and in which order?"""

from __future__ import annotations

from ragen2.experiments.cells import (
    NONE,
    RETRIEVAL,
    SUCCESS,
    Cells,
    change,
    difference,
    final,
    first,
    level,
    require_axes,
)
from ragen2.experiments.charts import curves_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.reports.figures import NamedFigure

LINKS = (
    ("input to reasoning", RETRIEVAL, "retrieval above chance"),
    (
        "reasoning to action",
        "flow/first_turn/reasoning_action_swap_seq",
        "nats lost with another's reasoning",
    ),
    ("input to action", "flow/first_turn/input_action", "I(X;A), nats"),
)
HALF = 0.5


def analyse(cells: Cells) -> Findings:
    """Each link at the start and at the end, its change, and when half of it was lost."""
    require_axes(cells, "filter")
    arms = cells.axis("filter")
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    for arm in arms:
        mine = cells.where(filter=arm)
        for name, metric, unit in LINKS:
            found = level(mine, change(metric))
            rows.append(
                (
                    arm,
                    name,
                    unit,
                    level(mine, first(metric)),
                    level(mine, final(metric)),
                    found,
                    half_lost(mine, metric),
                )
            )
            claims += claimed(f"change/{arm}/{name}", found, unit, 3)
    for name, metric, unit in LINKS:
        for arm in arms:
            found = difference(cells, "filter", arm, NONE, change(metric)) if arm != NONE else None
            claims += claimed(f"saved/{arm}/{name}", found, unit, 3)
    shown = cells.split("filter")
    figure = NamedFigure(
        "chain",
        [curves_figure(name, shown, metric, unit) for name, metric, unit in LINKS]
        + [curves_figure("held-out success", shown, SUCCESS, "share of tasks")],
    )
    columns = ("filter", "link", "unit", "start", "end", "change", "runs that lost half, and when")
    return Findings(
        [Table("The links of X -> Z -> A", columns, tuple(rows), digits=3)], claims, [figure]
    )


def half_lost(cells: Cells, metric: str) -> str:
    """How many runs ended with less than half of what a link was at first, and the steps it fell below."""
    steps = []
    for one in cells.runs:
        series = one.run.series(metric)
        if (
            not series.values
            or series.values[0] <= 0.0
            or series.values[-1] > HALF * series.values[0]
        ):
            continue
        below = [value <= HALF * series.values[0] for value in series.values]
        place = len(below) - 1
        while place and below[place - 1]:
            place -= 1
        steps.append(series.steps[place])
    return f"{len(steps)} of {len(cells)}" + (
        f": {', '.join(map(str, sorted(steps)))}" if steps else ""
    )
