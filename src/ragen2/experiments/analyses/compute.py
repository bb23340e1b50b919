"""Table 5: prompts x group size at a fixed number of rollouts: success and time, with and without filter."""

from __future__ import annotations

from ragen2.experiments.cells import (
    NONE,
    POINTS,
    SUCCESS,
    Cells,
    Measure,
    average,
    filter_gain,
    first_filter,
    level,
    peak,
    require_axes,
    training_seconds,
)
from ragen2.experiments.charts import estimates_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import Estimate, mean_estimate
from ragen2.reports.figures import NamedFigure


def analyse(cells: Cells) -> Findings:
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
        for name, found, unit in (
            ("gain", gain, "points"),
            ("time", time, "%"),
            ("tokens", tokens, "%"),
        ):
            claims += claimed(f"{name}/{shape}", found, unit, 1)
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
