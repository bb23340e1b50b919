"""Dense against binary reward on the same task, and the filter against the best tuned run without one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ragen2.experiments.cells import (
    NONE,
    POINTS,
    SUCCESS,
    Cells,
    Measure,
    average,
    filter_gain,
    final,
    first_filter,
    late,
    level,
    peak,
    require_axes,
    seed_gains,
    success_claims,
)
from ragen2.experiments.charts import estimates_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table
from ragen2.experiments.intervals import Estimate, paired_estimate
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
        claims += success_claims(f"gain/{reward}", partial(filter_gain, mine, arm))
    claims += success_claims("dense_less_binary", partial(_dense_less_binary, cells, arm))
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


def _dense_less_binary(cells: Cells, arm: str, measure: Measure) -> Estimate | None:
    sides = [
        seed_gains(cells.where(block="reward", reward=one), arm, measure)
        for one in ("dense", "binary")
    ]
    return paired_estimate(sides[0], sides[1], POINTS)


def best_rate(cells: Cells, arm: str) -> str | None:
    """The learning rate with most success in training on the tuning seeds; the first where several tie."""
    there = cells.where(block=TUNING, filter=arm)
    found = {
        rate: one.value
        for (rate,), mine in there.groups(LR)
        if (one := level(mine, late(TRAINED))) is not None
    }
    return max(found, key=lambda rate: found[rate]) if found else None


def _mark(rate: str, best: str | None, tried: Sequence[str]) -> str:
    """Whether it was chosen, and whether better ones may lie beyond the list."""
    if rate != best:
        return ""
    ends = [min(tried, key=float), max(tried, key=float)]
    return "yes, at the edge of the list" if rate in ends and len(tried) > 1 else "yes"


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
                    _mark(rate, best, cells.where(block=TUNING, filter=label).axis(LR)),
                )
            )

    def tuned(measure: Measure) -> Estimate | None:
        sides = [
            cells.where(block="rates", filter=label).where(**{LR: str(rate)}).by_seed(measure)
            for label, rate in rates.items()
        ]
        return paired_estimate(sides[0], sides[1], POINTS)

    return ([] if None in rates.values() else success_claims("tuned", tuned)), rows
