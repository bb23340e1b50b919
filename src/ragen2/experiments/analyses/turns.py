"""MI by turn position: where does collapse start? And is a single turn any different?"""

from __future__ import annotations

import re

from ragen2.diagnostics.statistics.trends import departure, trend
from ragen2.experiments.cells import MI, Cells, change, early, late, level, require_axes
from ragen2.experiments.charts import lines_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import Estimate, mean_estimate, paired_estimate
from ragen2.reports.figures import Figure, NamedFigure

POSITION = re.compile(r"collapse/(?:first_turn|turn_(\d+))/mi_estimate")
MULTI, SINGLE = "multi", "single"


def analyse(cells: Cells) -> Findings:
    """MI early and late at each position, the change, and single-turn against multi-turn episodes."""
    require_axes(cells, "task", "turns", "regulariser")
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    figures = []
    for (task, turns, pressure), mine in cells.groups("task", "turns", "regulariser"):
        where = f"{task}/{turns}/{pressure}"
        points = []
        for position in positions(mine):
            metric = mi_at(position)
            change_here = level(mine, change(metric))
            rows.append(
                (
                    task,
                    turns,
                    pressure,
                    position,
                    level(mine, early(metric)),
                    level(mine, late(metric)),
                    change_here,
                    _onset(mine, metric),
                )
            )
            points.append((float(position), change_here))
            claims += claimed(f"change/{where}/{position}", change_here, "nats per token", 3)
        last = positions(mine)[-1:]
        if last and last[0] > 1:
            found = _last_less_first(mine, mi_at(last[0]))
            claims += claimed(f"last_less_first/{where}", found, "nats per token", 3)
            figures.append(
                NamedFigure(f"turns-{task}-{pressure}", [_figure(f"{task}, {pressure}", points)])
            )
    for (task, pressure), mine in cells.groups("task", "regulariser"):
        found = paired_estimate(
            mine.where(turns=MULTI).by_seed(change(MI)),
            mine.where(turns=SINGLE).by_seed(change(MI)),
        )
        claims += claimed(f"multi_less_single/{task}/{pressure}", found, "nats per token", 3)
    columns = (
        "task",
        "turns",
        "regulariser",
        "position",
        "MI early",
        "MI late",
        "change",
        "falls from step",
    )
    note = (
        "Later positions have fewer episodes, and nearly every prompt there is one of its kind: intervals "
        "are wide."
    )
    return Findings(
        [Table("MI by turn position, nats per token", columns, tuple(rows), digits=3)],
        claims,
        figures,
        [note],
    )


def positions(cells: Cells) -> list[int]:
    """Turn positions at which any run measured MI; the first is 1."""
    names = {name for one in cells.runs for name in one.run.recorded}
    return sorted(int(match[1] or 1) for name in names if (match := POSITION.fullmatch(name)))


def mi_at(position: int) -> str:
    """The metric of a position."""
    return MI if position == 1 else f"collapse/turn_{position}/mi_estimate"


def _last_less_first(cells: Cells, last: str) -> Estimate | None:
    """Over the steps at which both were measured: later turns are looked at less often than the first."""
    return paired_estimate(
        cells.by_seed(change(last, beside=MI)), cells.by_seed(change(MI, beside=last))
    )


def _onset(cells: Cells, metric: str) -> Estimate | None:
    """Mean step from which MI falls, over the runs in which it clearly does."""
    found = []
    for one in cells.runs:
        series = one.run.series(metric)
        course = trend(series.values)
        if course is not None and course.p_falling <= 0.05 and course.change < 0.0:
            found.append(float(departure(series.steps, series.values, course)))
    return mean_estimate(found, "t over runs in which it falls")


def _figure(title: str, points: list[tuple[float, Estimate | None]]) -> Figure:
    return lines_figure(f"{title}: change of MI", {"change": points}, "turn", "nats per token")
