"""Reward variance as a signal: where it lies, what noise does to it, and what it predicts.

- Table 6: train on one quartile of reward variance only.
- Figure 9: the filter's gain against the stochasticity of the environment, with luck shared and not.
- Table 8: does Std(RV)/Mean(RV) before training tell what the filter will gain, over all cells run?
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

from ragen2.experiments.cells import (
    ENTROPY,
    MI,
    NONE,
    POINTS,
    SUCCESS,
    CellRun,
    Cells,
    area,
    average,
    difference,
    filter_gain,
    filters,
    final,
    late,
    level,
    peak,
    require_axes,
    seed_gains,
    success_claims,
)
from ragen2.experiments.charts import lines_figure, scatter_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import (
    ValuePair,
    clustered_spearman,
    mean_estimate,
    spearman_estimate,
)
from ragen2.filtering import TopP
from ragen2.reports.figures import Figure, NamedFigure
from ragen2.reports.load import Run

MEASURES = (
    ("success", peak(SUCCESS), POINTS, "points"),
    ("success/end", final(SUCCESS), POINTS, "points"),
    ("success/area", area(SUCCESS), POINTS, "points"),
    ("mi", late(MI), 1.0, "nats per token"),
    ("entropy", late(ENTROPY), 1.0, "nats per token"),
)


def analyse_quartiles(cells: Cells) -> Findings:
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
            "area, %",
            "MI",
            "H(Z|X)",
        ),
        tuple(rows),
        digits=3,
    )
    return Findings([table], claims, figures)


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


SLIP = "env.slip"


def analyse_noise(cells: Cells) -> Findings:
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
        for arm in arms:
            find = partial(filter_gain, mine, arm)
            claims += success_claims(f"gain/{luck}/{slip}/{arm}", find)
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


RATIO, VARIANCE = "reward/variance_std_over_mean", "reward/variance"
THE_FILTER = TopP(mass=0.9)
"""The paper's; other strengths and definitions are other experiments'."""
THRESHOLD = 0.75
"""Half-way between the paper's cells that gain (1.16, 1.29) and the one that does not (0.33)."""


@dataclass(frozen=True, slots=True)
class FilteredPair:
    """A run with a filter and the one that is the same without."""

    cell: str
    seed: int
    ratio: float
    gain: float
    """Points of peak held-out success."""


def analyse_predictor(cells: Cells) -> Findings:
    """Every pair of runs whose settings are equal but for the filter."""
    pairs = find_pairs([*cells.runs, *cells.others])
    by_cell: dict[str, list[FilteredPair]] = {}
    for pair in pairs:
        by_cell.setdefault(pair.cell, []).append(pair)
    rows = []
    means: list[tuple[float, float]] = []
    for cell, mine in by_cell.items():
        ratio = mean_estimate([one.ratio for one in mine])
        gain = mean_estimate([one.gain for one in mine])
        if ratio is not None and gain is not None:
            rows.append((cell, len(mine), ratio, gain))
            means.append((ratio.value, gain.value))
    claims = []
    # Seeds of one cell have nearly the same ratio: cells are what varies, and what is counted.
    by_pair = [[(one.ratio, one.gain) for one in mine] for mine in by_cell.values()]
    over_pairs = clustered_spearman([by_pair], "predictor pairs", "cells").total
    over_cells = spearman_estimate([means], "predictor cells", "cells")
    for name, found in (("rho/pairs", over_pairs), ("rho/cells", over_cells)):
        claims += claimed(name, found, "rank correlation")
    for name, gains in (
        ("gain/high", [gain for ratio, gain in means if ratio >= THRESHOLD]),
        ("gain/low", [gain for ratio, gain in means if ratio < THRESHOLD]),
    ):
        found = mean_estimate(gains, "t over cells")
        claims += claimed(name, found, "points", 1)
    points: dict[str, list[tuple[float, float]]] = {}
    for one in pairs:
        points.setdefault(one.cell.partition(" ")[0], []).append((one.ratio, one.gain))
    figure = scatter_figure(
        "Ratio before training, gain after", points, "Std(RV)/Mean(RV), first batch", "gain, points"
    )
    table = Table(
        "Std(RV)/Mean(RV) of the first batch, and the filter's gain",
        ("cell", "pairs", "ratio", "gain, points"),
        tuple(rows),
    )
    note = (
        f"High and low are at least and below {THRESHOLD}, half-way between the paper's examples."
    )
    return Findings([table], claims, [NamedFigure("predictor", [figure])], [note])


def find_pairs(runs: list[CellRun]) -> list[FilteredPair]:
    """Runs with the paper's filter, each beside the unfiltered run of the same settings and seed."""
    distinct = {one.name: one for one in runs}
    plain = {
        _key(one.run.settings): one
        for one in distinct.values()
        if one.run.settings["filter"]["kind"] == "keep_all"
    }
    found = []
    for one in distinct.values():
        other = plain.get(_key(one.run.settings))
        if other is None or not _is_the_filter(one.run.settings["filter"]):
            continue
        # The first batch is the same in both: same weights, same tasks, same streams.
        ratio = _first_ratio(other.run)
        ends = peak(SUCCESS)(one.run), peak(SUCCESS)(other.run)
        if ratio is None or ends[0] is None or ends[1] is None:
            continue
        settings = one.run.settings
        found.append(
            FilteredPair(
                cell=f"{settings['env']['kind']} {settings['algorithm']['kind']} {_key(settings)[-1]}",
                seed=one.seed,
                ratio=ratio,
                gain=POINTS * (ends[0] - ends[1]),
            )
        )
    return found


def _first_ratio(run: Run) -> float | None:
    """Of the first batch alone; it has none where all rewards are equal."""
    steps, ratios = run.series(VARIANCE).steps, run.series(RATIO)
    return dict(zip(ratios.steps, ratios.values, strict=True)).get(steps[0]) if steps else None


def _is_the_filter(settings: Mapping[str, Any]) -> bool:
    return bool(settings["kind"] == THE_FILTER.kind and TopP.model_validate(settings) == THE_FILTER)


def _key(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Everything of a run but its filter, wherever its model lies; the last part names it in short."""
    rest = {name: value for name, value in settings.items() if name not in {"filter", "seed"}}
    model = dict(settings.get("model", {}))
    rest["model"] = model | {"path": PurePath(str(model.get("path", ""))).name}
    text = json.dumps(rest, sort_keys=True, default=str)
    short = hashlib.blake2b(text.encode(), digest_size=2).hexdigest()
    return (text, str(settings.get("seed", 0)), short)
