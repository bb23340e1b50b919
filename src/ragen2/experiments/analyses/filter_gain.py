"""What the filter adds to held-out success: by task, definition, level, and at a fixed budget.

- Table 4: peak success without a filter, and its gain, by algorithm, model and task.
- The four filter definitions in circulation, and DAPO's dynamic sampling against the SNR filter.
- Table 7: dropping prompts against dropping rollouts of every prompt.
- Table 5: prompts x group size at a fixed number of rollouts: success and time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from ragen2.experiments.cells import (
    MI,
    NONE,
    POINTS,
    RETRIEVAL,
    SUCCESS,
    Cells,
    Measure,
    area,
    average,
    averaged,
    difference,
    filter_gain,
    filters,
    final,
    first,
    first_filter,
    late,
    level,
    peak,
    require_axes,
    success_claims,
    training_seconds,
)
from ragen2.experiments.charts import curves_figure, estimates_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import Estimate, mean_estimate, paired_estimate
from ragen2.reports.figures import NamedFigure


def analyse_main_table(cells: Cells) -> Findings:
    """Gains by row (algorithm and model) and task, their average, and what goes with them."""
    require_axes(cells, "task", "filter")
    arm = first_filter(cells)
    rows = list(_rows(cells))
    gains = {
        (name, task): filter_gain(mine.where(task=task), arm)
        for name, mine in rows
        for task in mine.axis("task")
    }
    averaged_rows = {name: [mine] for name, mine in rows} | {"all": _of_one_model(rows)}
    averages = {
        name: _average_gain(mine, arm, peak(SUCCESS)) for name, mine in averaged_rows.items()
    }
    tables = [_success_table(rows, gains, averages), _detail_table(rows, arm)]
    claims: list[Claim] = []
    for name, mine in rows:
        for task in mine.axis("task"):
            find = partial(filter_gain, mine.where(task=task), arm)
            claims += success_claims(f"gain/{name}/{task}", find)
    for name, several in averaged_rows.items():
        claims += success_claims(f"gain/{name}/average", partial(_average_gain, several, arm))
    drawn = [(f"{name}, {task}", one) for (name, task), one in gains.items()]
    figure = NamedFigure(
        "gains", [estimates_figure("Gain of the filter at the peak", drawn, "points of success")]
    )
    return Findings(
        tables,
        claims,
        [figure],
        [
            "A peak is the best of several noisy evaluations after step 0, for both arms alike; the area is "
            "the mean height of the curve."
        ],
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


def _average_gain(rows: list[Cells], arm: str, measure: Measure) -> Estimate | None:
    """Gain averaged over tasks (and rows) inside each seed, so that seeds stay the unit.

    None where a planned task has no run: an average over fewer would be another number.
    """
    arms = []
    for label in (arm, NONE):
        parts = [
            mine.where(task=task, filter=label).by_seed(measure)
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
                    filter_gain(here, arm, final(SUCCESS)),
                    filter_gain(here, arm, area(SUCCESS)),
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
        "gain of the area, points",
        "prompts kept",
        "retrieval above chance without",
        "with",
        "MI without, nats per token",
        "MI with",
    )
    return Table("At the last steps", columns, tuple(body))


DECOUPLED = (
    ("rule", "top_p", "nonzero"),
    ("resampling of nonzero", "dynamic_sampling", "nonzero"),
    ("resampling of top_p", "top_p_resampled", "top_p"),
    ("SNR filter less dynamic sampling", "top_p", "dynamic_sampling"),
)
"""What is changed, with, without."""


def analyse_definitions(cells: Cells) -> Findings:
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
        if arm != NONE:
            find = partial(filter_gain, cells.where(task=task), arm)
            claims += success_claims(f"gain/{task}/{arm}", find)
    for arm in arms:
        find = partial(_average_difference, cells, arm, NONE)
        claims += success_claims(f"gain/average/{arm}", find)
    found_by_name = {claim.name: claim.estimate for claim in claims}
    drawn = [(arm, found_by_name.get(f"gain/average/{arm}")) for arm in arms]
    parts: list[tuple[Entry, ...]] = []
    for name, one, other in DECOUPLED:
        parts.append((name, one, other, _average_difference(cells, one, other, peak(SUCCESS))))
        claims += success_claims(f"part/{name}", partial(_average_difference, cells, one, other))
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


def _average_difference(cells: Cells, one: str, other: str, measure: Measure) -> Estimate | None:
    """Averaged over tasks inside each seed; None where a planned task has no run."""
    sides = [
        averaged(
            [
                cells.where(task=task, filter=arm).by_seed(measure)
                for task in cells.planned_axis("task")
            ]
        )
        for arm in (one, other)
    ]
    return paired_estimate(sides[0], sides[1], POINTS)


PROMPT, TRAJECTORY = "top_p", "trajectory"


def analyse_level(cells: Cells) -> Findings:
    """One row per task and level; then prompt against trajectory level, paired by seed."""
    require_axes(cells, "task", "filter")
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    figures = []
    for (task,), mine in cells.groups("task"):
        for (arm,), here in mine.groups("filter"):
            rows.append(
                (
                    task,
                    arm,
                    len(here),
                    level(here, average("filter/kept")),
                    level(here, average("update/tokens")),
                    level(here, peak(SUCCESS), POINTS),
                    level(here, late(MI)),
                    level(here, late(RETRIEVAL)),
                )
            )
        for name, one, other in (
            ("prompt_less_trajectory", PROMPT, TRAJECTORY),
            ("prompt_less_none", PROMPT, NONE),
            ("trajectory_less_none", TRAJECTORY, NONE),
        ):
            find = partial(_apart, mine, one, other)
            claims += success_claims(f"{name}/{task}/success", find)
            information = difference(mine, "filter", one, other, late(MI))
            claims += claimed(f"{name}/{task}/mi", information, "nats per token", 3)
        arms = mine.split("filter")
        figures.append(
            NamedFigure(
                f"level-{task}",
                [
                    curves_figure(f"{task}: held-out success", arms, SUCCESS, "%", POINTS),
                    curves_figure(f"{task}: MI", arms, MI, "nats per token"),
                ],
            )
        )
    columns = (
        "task",
        "filter",
        "runs",
        "prompts kept",
        "updated tokens per step",
        "peak success, %",
        "MI",
        "retrieval above chance",
    )
    return Findings([Table("What is dropped", columns, tuple(rows))], claims, figures)


def _apart(cells: Cells, one: str, other: str, measure: Measure) -> Estimate | None:
    return difference(cells, "filter", one, other, measure, POINTS)


def analyse_compute(cells: Cells) -> Findings:
    """One row per shape: success, gain, seconds of a step, and how many tokens are updated on."""
    require_axes(cells, "shape", "filter")
    arm = first_filter(cells)
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    for (shape,), mine in cells.groups("shape"):
        plain, filtered = mine.where(filter=NONE), mine.where(filter=arm)
        gain = filter_gain(mine, arm)
        time = saved(filtered, plain, training_seconds)
        tokens = saved(filtered, plain, average("update/tokens"))
        rows.append(
            (
                shape,
                _size(mine),
                level(plain, peak(SUCCESS), POINTS),
                level(filtered, peak(SUCCESS), POINTS),
                gain,
                level(plain, training_seconds),
                level(filtered, training_seconds),
                time,
                tokens,
            )
        )
        claims += success_claims(f"gain/{shape}", partial(filter_gain, mine, arm))
        claims += claimed(f"time/{shape}", time, "%", 1)
        claims += claimed(f"tokens/{shape}", tokens, "%", 1)
    columns = (
        "shape",
        "prompts x group",
        "peak success without, %",
        "with, %",
        "gain, points",
        "step without, s",
        "with, s",
        "step time, %",
        "updated tokens, %",
    )
    drawn = [
        (claim.name.removeprefix("time/"), claim.estimate)
        for claim in claims
        if claim.name.startswith("time/")
    ]
    figure = NamedFigure(
        "time", [estimates_figure("Change of step time by the filter", drawn, "%")]
    )
    note = (
        "Step time is rollout and update, without evaluation and diagnosis. Runs that share a machine slow "
        "each other down; tokens that are updated on do not depend on that."
    )
    return Findings(
        [Table("At a fixed number of rollouts", columns, tuple(rows), digits=1)],
        claims,
        [figure],
        [note],
    )


def saved(filtered: Cells, plain: Cells, measure: Measure) -> Estimate | None:
    """Change of a cost in percent, paired by seed."""
    with_filter, without = filtered.by_seed(measure), plain.by_seed(measure)
    shared = sorted(with_filter.keys() & without.keys())
    changes = [
        100.0 * (with_filter[seed] / without[seed] - 1.0) for seed in shared if without[seed]
    ]
    return mean_estimate(changes, "t over paired seeds")


def _size(cells: Cells) -> str:
    rollout = cells.runs[0].run.settings["rollout"]
    return f"{rollout['prompts']} x {rollout['group_size']}"
