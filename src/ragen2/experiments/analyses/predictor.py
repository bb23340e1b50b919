"""Table 8: does Std(RV)/Mean(RV) before training tell what the filter will gain, over all cells run?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ragen2.experiments.cells import POINTS, SUCCESS, CellRun, Cells, peak
from ragen2.experiments.charts import scatter_figure
from ragen2.experiments.findings import Findings, Table, claimed
from ragen2.experiments.intervals import (
    grouped_spearman_estimate,
    mean_estimate,
    spearman_estimate,
)
from ragen2.filtering import TopP
from ragen2.reports.figures import NamedFigure
from ragen2.reports.load import Run

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


def analyse(cells: Cells) -> Findings:
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
    over_pairs = grouped_spearman_estimate(by_pair, "predictor pairs", "cells")
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
