"""Template collapse itself, from a grounded start with hardly any success: without and with the filter."""

from __future__ import annotations

from functools import partial

from ragen2.experiments.analyses.dynamics import first_warning
from ragen2.experiments.analyses.proxies import OF_ARMS, success_table
from ragen2.experiments.cells import (
    ENTROPY,
    MI,
    NONE,
    POINTS,
    RETRIEVAL,
    SUCCESS,
    Cells,
    change,
    difference,
    early,
    filter_gain,
    filters,
    late,
    level,
    require_axes,
    success_claims,
)
from ragen2.experiments.charts import curves_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import share_estimate
from ragen2.reports.figures import NamedFigure
from ragen2.reports.load import Run

VALIDITY = "rollout/format_validity"
TRAINED = "rollout/success"
SHOWN = (
    ("retrieval above chance", RETRIEVAL),
    ("MI, nats per token", MI),
    ("H(Z|X), nats per token", ENTROPY),
    ("token entropy", "update/entropy"),
    ("format validity", VALIDITY),
    ("success in training", TRAINED),
)
VALID = 0.95
LOST = 0.5
"""Share of retrieval above chance that a collapsed run has lost."""
VARIED = 0.9
"""Share of its H(Z|X) that a collapsed run still has."""


def analyse_collapse(cells: Cells) -> Findings:
    """Early and late values, which runs collapsed by the paper's marks, and when the warning came."""
    require_axes(cells, "task", "filter")
    rows: list[tuple[Entry, ...]] = []
    runs: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    for (arm,), mine in cells.groups("filter"):
        for name, metric in SHOWN:
            found = level(mine, change(metric))
            rows.append(
                (arm, name, len(mine), level(mine, early(metric)), level(mine, late(metric)), found)
            )
            claims += claimed(f"change/{arm}/{name.partition(',')[0]}", found, "", 3)
        share = share_estimate([is_collapsed(one.run) for one in mine.runs])
        claims += claimed(f"collapsed/{arm}", share, "of runs")
        varied = share_estimate([stays_varied(one.run) for one in mine.runs])
        claims += claimed(f"varied/{arm}", varied, "of runs")
        runs += [_run_row(arm, one.seed, one.run) for one in mine.runs]
    for arm in filters(cells):
        for name, metric in SHOWN[:3]:
            found = difference(cells, "filter", arm, NONE, late(metric))
            claims += claimed(f"saved/{arm}/{name.partition(',')[0]}", found, "", 3)
        claims += success_claims(f"gain/{arm}", partial(filter_gain, cells, arm))
    shown = cells.split("filter")
    charts = [curves_figure(name, shown, metric, "") for name, metric in SHOWN]
    figures = [
        NamedFigure("dependence", charts[:3]),
        NamedFigure(
            "rest", [*charts[3:], curves_figure("held-out success", shown, SUCCESS, "%", POINTS)]
        ),
    ]
    correlations, more = success_table(cells)
    claims += more
    tables = [
        Table(
            "From the first steps to the last",
            ("filter", "what", "runs", "early", "late", "change"),
            tuple(rows),
            digits=3,
        ),
        Table(
            "Run by run",
            (
                "filter",
                "seed",
                "retrieval early",
                "late",
                "H(Z|X) early",
                "late",
                "validity late",
                "collapsed",
                "warning at step",
                "success lost half its gain at step",
            ),
            tuple(runs),
            digits=3,
        ),
        correlations,
    ]
    note = (
        "Collapsed: late retrieval above chance is at most half of the early one, H(Z|X) is no lower than "
        "nine tenths of the early one, and late format validity is at least 0.95."
    )
    return Findings(tables, claims, figures, [note, OF_ARMS])


def is_collapsed(run: Run) -> bool:
    """Retrieval lost, variety kept, format kept."""
    before, after, valid = early(RETRIEVAL)(run), late(RETRIEVAL)(run), late(VALIDITY)(run)
    if before is None or after is None or valid is None:
        return False
    return after <= LOST * before and stays_varied(run) and valid >= VALID


def stays_varied(run: Run) -> bool:
    """Whether H(Z|X) is about what it was, or more."""
    before, after = early(ENTROPY)(run), late(ENTROPY)(run)
    return before is not None and after is not None and after >= VARIED * before


def half_gain_lost(run: Run) -> int | None:
    """The first evaluation, after the best one, at which half of the gain over the start is gone."""
    series = run.series(SUCCESS)
    if len(series.values) < 2:
        return None
    best = max(range(len(series.values)), key=lambda place: series.values[place])
    start, top = series.values[0], series.values[best]
    if top <= start:
        return None
    after = zip(series.steps[best + 1 :], series.values[best + 1 :], strict=True)
    return next((step for step, value in after if value <= (start + top) / 2.0), None)


def _run_row(arm: str, seed: int, run: Run) -> tuple[Entry, ...]:
    return (
        arm,
        seed,
        early(RETRIEVAL)(run),
        late(RETRIEVAL)(run),
        early(ENTROPY)(run),
        late(ENTROPY)(run),
        late(VALIDITY)(run),
        "yes" if is_collapsed(run) else "no",
        first_warning(run),
        half_gain_lost(run),
    )
