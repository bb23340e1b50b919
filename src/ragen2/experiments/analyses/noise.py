"""Figure 9: the filter's gain against the stochasticity of the environment, with luck shared and not."""

from __future__ import annotations

from ragen2.experiments.cells import (
    ENTROPY,
    MI,
    NONE,
    POINTS,
    SUCCESS,
    Cells,
    average,
    filter_gain,
    filters,
    late,
    level,
    peak,
    require_axes,
    seed_gains,
)
from ragen2.experiments.charts import lines_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import ValuePair, spearman_estimate
from ragen2.reports.figures import Figure, NamedFigure

SLIP = "env.slip"


def analyse(cells: Cells) -> Findings:
    """One row per slip and luck: success, gain of each filter, what the variance is made of, MI."""
    require_axes(cells, SLIP, "luck", "filter")
    arms = filters(cells)
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    for (luck, slip), mine in cells.groups("luck", SLIP):
        plain = mine.where(filter=NONE)
        gains = [filter_gain(mine, arm) for arm in arms]
        rows.append(
            (
                luck,
                slip,
                level(plain, peak(SUCCESS), POINTS),
                *gains,
                level(plain, average("reward/variance")),
                level(plain, average("reward/variance_std_over_mean")),
                level(plain, late(MI)),
                level(plain, late(ENTROPY)),
            )
        )
        for arm, gain in zip(arms, gains, strict=True):
            claims += claimed(f"gain/{luck}/{slip}/{arm}", gain, "points", 1)
    for (luck,), mine in cells.groups("luck"):
        for arm in arms:
            trend = spearman_estimate([_gains(mine, arm)], f"noise {luck} {arm}")
            claims += claimed(f"trend/{luck}/{arm}", trend, "rank correlation")
        for name, metric in (("mi", MI), ("entropy", ENTROPY)):
            trend = spearman_estimate([_levels(mine, metric)], f"noise {luck} {name}")
            claims += claimed(f"trend/{luck}/{name}", trend, "rank correlation")
    columns = (
        "luck",
        "slip",
        "peak success without, %",
        *(f"gain of {arm}, points" for arm in arms),
        "reward variance",
        "Std(RV)/Mean(RV)",
        "MI",
        "H(Z|X)",
    )
    return Findings(
        [Table("Filter and stochasticity", columns, tuple(rows))],
        claims,
        [NamedFigure("noise", [_figure(cells, arm) for arm in arms])],
        ["Shared luck: all rollouts of a prompt meet the same slips, as in the reference."],
    )


def _gains(cells: Cells, arm: str) -> list[ValuePair]:
    """Slip and gain of each seed."""
    found = []
    for (slip,), mine in cells.groups(SLIP):
        found += [(float(slip), gain) for gain in seed_gains(mine, arm).values()]
    return found


def _levels(cells: Cells, metric: str) -> list[ValuePair]:
    plain = cells.where(filter=NONE)
    found = [(float(one.labels[SLIP]), late(metric)(one.run)) for one in plain.runs]
    return [(slip, value) for slip, value in found if value is not None]


def _figure(cells: Cells, arm: str) -> Figure:
    lines = {
        f"{luck} luck": [
            (float(slip), filter_gain(here, arm)) for (slip,), here in mine.groups(SLIP)
        ]
        for (luck,), mine in cells.groups("luck")
    }
    return lines_figure(f"Gain of {arm}", lines, "slip", "points of success")
