"""Dense against binary reward on the same task, and the filter against the best tuned run without one."""

from __future__ import annotations

from ragen2.experiments.cells import (
    NONE,
    POINTS,
    SUCCESS,
    Cells,
    average,
    filter_gain,
    final,
    first_filter,
    late,
    level,
    peak,
    require_axes,
    seed_gains,
)
from ragen2.experiments.charts import estimates_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import paired_estimate
from ragen2.reports.figures import NamedFigure

LR = "learner.lr"
TUNING = "tuning"
TRAINED = "rollout/success"
"""What rates are chosen by: success on training tasks of the tuning seeds; nothing held out is looked at."""


def analyse_rewards(cells: Cells) -> Findings:
    """Gains under each reward; then each arm at its own best learning rate."""
    require_axes(cells, "filter")
    arm = first_filter(cells)
    claims: list[Claim] = []
    rows: list[tuple[Entry, ...]] = []
    for (reward,), mine in cells.where(block="reward").groups("reward"):
        plain = mine.where(filter=NONE)
        gain = filter_gain(mine, arm)
        rows.append(
            (
                reward,
                len(mine),
                level(plain, peak(SUCCESS), POINTS),
                gain,
                level(plain, average("reward/variance_std_over_mean")),
                level(plain, average("reward/dead_ratio")),
            )
        )
        claims += claimed(f"gain/{reward}", gain, "points", 1)
    dense, binary = (
        seed_gains(cells.where(block="reward", reward=one), arm) for one in ("dense", "binary")
    )
    apart = paired_estimate(dense, binary, POINTS)
    claims += claimed("dense_less_binary", apart, "points of gain", 1)
    tuned, chosen = _tuned(cells, arm)
    claims += tuned
    tables = [
        Table(
            "Filter under each reward",
            (
                "reward",
                "runs",
                "peak success without, %",
                "gain, points",
                "Std(RV)/Mean(RV)",
                "dead prompts",
            ),
            tuple(rows),
        ),
        Table(
            "Each arm at each learning rate",
            (
                "filter",
                "learning rate",
                "success on tuning seeds, %",
                "peak success, %",
                "final success, %",
                "chosen",
            ),
            tuple(chosen),
            digits=1,
        ),
    ]
    drawn = [(claim.name, claim.estimate) for claim in claims]
    return Findings(
        tables,
        claims,
        [NamedFigure("rewards", [estimates_figure("Gains", drawn, "points of success")])],
        ["Learning rates are chosen on other seeds and on training tasks, for both arms alike."],
    )


def best_rate(cells: Cells, arm: str) -> str | None:
    """The learning rate with most success in training on the tuning seeds; the first where several tie."""
    there = cells.where(block=TUNING, filter=arm)
    found = {
        rate: one.value
        for (rate,), mine in there.groups(LR)
        if (one := level(mine, late(TRAINED))) is not None
    }
    return max(found, key=lambda rate: found[rate]) if found else None


def _tuned(cells: Cells, arm: str) -> tuple[list[Claim], list[tuple[Entry, ...]]]:
    rates = {label: best_rate(cells, label) for label in (arm, NONE)}
    rows: list[tuple[Entry, ...]] = []
    for label, best in rates.items():
        for (rate,), mine in cells.where(block="rates", filter=label).groups(LR):
            tuning = cells.where(block=TUNING, filter=label).where(**{LR: rate})
            rows.append(
                (
                    label,
                    rate,
                    level(tuning, late(TRAINED), POINTS),
                    level(mine, peak(SUCCESS), POINTS),
                    level(mine, final(SUCCESS), POINTS),
                    "yes" if rate == best else "",
                )
            )
    claims: list[Claim] = []
    if None not in rates.values():
        for name, measure in (("peak", peak(SUCCESS)), ("end", final(SUCCESS))):
            sides = [
                cells.where(block="rates", filter=label)
                .where(**{LR: str(rates[label])})
                .by_seed(measure)
                for label in (arm, NONE)
            ]
            found = paired_estimate(sides[0], sides[1], POINTS)
            claims += claimed(f"tuned/{name}", found, "points", 1)
    return claims, rows
