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
    late,
    level,
    peak,
    require_axes,
)
from ragen2.experiments.charts import lines_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table
from ragen2.experiments.intervals import ValuePair, spearman_estimate
from ragen2.reports.figures import Figure, NamedFigure

SLIP = "env.slip"


def analyse(cells: Cells) -> Findings:
    """A row a slip and luck: success, gain of each filter, what the variance is made of, MI."""
    require_axes(cells, SLIP, "luck", "filter")
    filters = [label for label in cells.axis("filter") if label != NONE]
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    for (luck, slip), mine in cells.groups("luck", SLIP):
        plain = mine.where(filter=NONE)
        gains = [filter_gain(mine, arm) for arm in filters]
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
        for arm, gain in zip(filters, gains, strict=True):
            if gain is not None:
                claims.append(Claim(f"gain/{luck}/{slip}/{arm}", gain, "points", 1))
    for (luck,), mine in cells.groups("luck"):
        for arm in filters:
            trend = spearman_estimate([_gains(mine, arm)], f"noise {luck} {arm}")
            if trend is not None:
                claims.append(Claim(f"trend/{luck}/{arm}", trend, "rank correlation"))
        for name, metric in (("mi", MI), ("entropy", ENTROPY)):
            trend = spearman_estimate([_levels(mine, metric)], f"noise {luck} {name}")
            if trend is not None:
                claims.append(Claim(f"trend/{luck}/{name}", trend, "rank correlation"))
    columns = (
        "luck",
        "slip",
        "peak success without, %",
        *(f"gain of {arm}, points" for arm in filters),
        "reward variance",
        "Std(RV)/Mean(RV)",
        "MI",
        "H(Z|X)",
    )
    return Findings(
        [Table("Filter and stochasticity", columns, tuple(rows))],
        claims,
        [NamedFigure("noise", [_figure(cells, arm) for arm in filters])],
        ["Shared luck: all rollouts of a prompt meet the same slips, as in the reference."],
    )


def _gains(cells: Cells, arm: str) -> list[ValuePair]:
    """Slip and gain of each seed."""
    found = []
    for (slip,), mine in cells.groups(SLIP):
        with_filter = mine.where(filter=arm).by_seed(peak(SUCCESS))
        without = mine.where(filter=NONE).by_seed(peak(SUCCESS))
        found += [
            (float(slip), with_filter[seed] - without[seed])
            for seed in sorted(with_filter.keys() & without.keys())
        ]
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
