"""Table 4: peak held-out success without a filter, and what the filter adds, by algorithm, model and task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ragen2.experiments.cells import (
    MI,
    NONE,
    POINTS,
    RETRIEVAL,
    SUCCESS,
    Cells,
    average,
    averaged,
    filter_gain,
    final,
    first,
    first_filter,
    late,
    level,
    peak,
    require_axes,
)
from ragen2.experiments.charts import estimates_figure
from ragen2.experiments.findings import Claim, Findings, Table
from ragen2.experiments.intervals import Estimate, paired_estimate
from ragen2.reports.figures import NamedFigure


def analyse(cells: Cells) -> Findings:
    """Gains by row (algorithm and model) and task, their average, and what goes with them."""
    require_axes(cells, "task", "filter")
    arm = first_filter(cells)
    rows = list(_rows(cells))
    gains = {
        (name, task): filter_gain(mine.where(task=task), arm)
        for name, mine in rows
        for task in mine.axis("task")
    }
    averages = {name: _average_gain(mine, arm) for name, mine in rows}
    averages["all"] = _average_gain_of(_of_one_model(rows), arm)
    tables = [_success_table(rows, gains, averages), _detail_table(rows, arm)]
    claims = [
        Claim(f"gain/{name}/{task}", one, "points", 1)
        for (name, task), one in gains.items()
        if one is not None
    ]
    claims += [
        Claim(f"gain/{name}/average", one, "points", 1)
        for name, one in averages.items()
        if one is not None
    ]
    drawn = [(f"{name}, {task}", one) for (name, task), one in gains.items()]
    figure = NamedFigure(
        "gains", [estimates_figure("Gain of the filter at the peak", drawn, "points of success")]
    )
    return Findings(
        tables,
        claims,
        [figure],
        ["A peak is the best of several noisy evaluations, for both arms alike."],
    )


def _rows(cells: Cells) -> Iterator[tuple[str, Cells]]:
    """One row per planned pair of model and algorithm; a block without a list of models names none."""
    for key in dict.fromkeys(map(_key, cells.planned)):
        mine = [one for one in cells.runs if _key(one.labels) == key]
        planned = [labels for labels in cells.planned if _key(labels) == key]
        yield "/".join(part for part in key if part) or "all", Cells(mine, plan=planned)


def _of_one_model(rows: list[tuple[str, Cells]]) -> list[Cells]:
    """Rows that differ by their algorithm alone; all of them where each names a model."""
    found = [mine for _, mine in rows if not mine.planned_axis("model")]
    return found or [mine for _, mine in rows]


def _key(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("model", ""), labels.get("algorithm", "")


def _average_gain(cells: Cells, arm: str) -> Estimate | None:
    return _average_gain_of([cells], arm)


def _average_gain_of(rows: list[Cells], arm: str) -> Estimate | None:
    """Gain averaged over tasks (and rows) inside each seed, so that seeds stay the unit.

    None where a planned task has no run: an average over fewer would be another number.
    """
    arms = []
    for label in (arm, NONE):
        parts = [
            mine.where(task=task, filter=label).by_seed(peak(SUCCESS))
            for mine in rows
            for task in mine.planned_axis("task")
        ]
        arms.append(averaged(parts))
    return paired_estimate(arms[0], arms[1], POINTS)


def _success_table(
    rows: list[tuple[str, Cells]],
    gains: dict[tuple[str, str], Estimate | None],
    averages: dict[str, Estimate | None],
) -> Table:
    tasks = list(dict.fromkeys(task for _, task in gains))
    columns = ["variant"]
    for task in tasks:
        columns += [task, f"{task} gain"]
    body = []
    for name, mine in rows:
        row: list[str | Estimate | None] = [name]
        for task in tasks:
            plain = mine.where(task=task, filter=NONE)
            row += [level(plain, peak(SUCCESS), POINTS), gains.get((name, task))]
        body.append((*row, averages[name]))
    empty: list[None] = [None] * (2 * len(tasks))
    body.append(("all algorithms", *empty, averages["all"]))
    title = "Peak success without a filter, %, and the filter's gain, points"
    return Table(title, (*columns, "average gain"), tuple(body), digits=1)


def _detail_table(rows: list[tuple[str, Cells]], arm: str) -> Table:
    body = []
    for name, mine in rows:
        for task in mine.axis("task"):
            here = mine.where(task=task)
            filtered, plain = here.where(filter=arm), here.where(filter=NONE)
            body.append(
                (
                    name,
                    task,
                    len(here),
                    level(plain, first(SUCCESS), POINTS),
                    level(plain, final(SUCCESS), POINTS),
                    filter_gain(here, arm, at_peak=False),
                    level(filtered, average("filter/kept_ratio")),
                    level(plain, late(RETRIEVAL)),
                    level(filtered, late(RETRIEVAL)),
                    level(plain, late(MI)),
                    level(filtered, late(MI)),
                )
            )
    columns = (
        "variant",
        "task",
        "runs",
        "start, %",
        "end without, %",
        "gain at the end, points",
        "prompts kept",
        "retrieval above chance without",
        "with",
        "MI without, nats per token",
        "MI with",
    )
    return Table("At the last step", columns, tuple(body))
