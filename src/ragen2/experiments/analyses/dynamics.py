"""Figures 5 and 7: does MI fall before success does, does entropy miss it, does reasoning shorten?"""

from __future__ import annotations

from collections.abc import Sequence

from ragen2.diagnostics.statistics.trends import departure, trend
from ragen2.experiments.analyses.correlation import success_table
from ragen2.experiments.cells import (
    ENTROPY,
    MI,
    RETRIEVAL,
    SUCCESS,
    Cells,
    change,
    gain,
    require_axes,
)
from ragen2.experiments.charts import curves_figure
from ragen2.experiments.findings import Findings, Table, claimed
from ragen2.experiments.intervals import mean_estimate
from ragen2.reports.figures import Figure, NamedFigure
from ragen2.reports.load import Run

TRAINED = "rollout/success"
"""Success in training: measured at every step, which a lead of a few steps needs."""
LENGTH = "rollout/reasoning_tokens"
SHOWN = (
    ("MI, nats per token", MI),
    ("retrieval above chance", RETRIEVAL),
    ("H(Z|X), nats per token", ENTROPY),
    ("success in training", TRAINED),
    ("reasoning, tokens", LENGTH),
)
CLEAR = 0.05
"""P-value up to which a series is said to fall."""


def analyse(cells: Cells) -> Findings:
    """Changes from the first steps to the last, who falls first, and when the warning came."""
    require_axes(cells, "task", "filter")
    changes, order, claims = [], [], []
    for (task, arm), mine in cells.groups("task", "filter"):
        found = [mean_estimate(mine.values(change(metric))) for _, metric in SHOWN]
        held_out = mean_estimate(mine.values(gain(SUCCESS)))
        changes.append((task, arm, len(mine), *found, held_out))
        for (name, _), one in zip(SHOWN, found, strict=True):
            claims += claimed(f"change/{task}/{arm}/{name.partition(',')[0]}", one, "")
        lead = mean_estimate(leads(mine), "t over runs in which both fall")
        falls = [falls_at(one.run, MI) for one in mine.runs]
        order.append((task, arm, len(mine), _count(falls), _dropped(mine), lead, _warned(mine)))
        claims += claimed(f"lead/{task}/{arm}", lead, "steps", 1)
    correlations, more = success_table(cells)
    claims += more
    names = tuple(name for name, _ in SHOWN)
    tables = [
        Table(
            "Change from the first measurements to the last",
            ("task", "filter", "runs", *names, "held-out success"),
            tuple(changes),
            digits=3,
        ),
        Table(
            "Who falls first",
            (
                "task",
                "filter",
                "runs",
                "runs whose MI falls",
                "runs whose success falls",
                "steps from MI's fall to success's",
                "runs with an early warning, first at step",
            ),
            tuple(order),
            digits=1,
        ),
        correlations,
    ]
    figures = [
        NamedFigure(f"curves-{task}", _curves(cells.where(task=task), task))
        for task in cells.axis("task")
    ]
    return Findings(
        tables,
        claims,
        figures,
        [
            "A series falls when its trend downwards has a p-value of at most 0.05; it falls from the step "
            "at which a quarter of the whole fall is behind it."
        ],
    )


def falls_at(run: Run, metric: str) -> int | None:
    """The step from which a metric falls; None where it does not clearly fall."""
    series = run.series(metric)
    found = trend(series.values)
    if found is None or found.p_falling > CLEAR or found.change >= 0.0:
        return None
    return departure(series.steps, series.values, found)


def leads(cells: Cells) -> list[float]:
    """Steps from the fall of MI to that of success, of the runs in which both fall."""
    found = [(falls_at(one.run, MI), falls_at(one.run, TRAINED)) for one in cells.runs]
    return [
        float(after - before) for before, after in found if before is not None and after is not None
    ]


def first_warning(run: Run) -> int | None:
    """The step at which the early warning first came on."""
    series = run.series("warning/level")
    return next((s for s, v in zip(series.steps, series.values, strict=True) if v > 0.0), None)


def _count(steps: Sequence[int | None]) -> int:
    return sum(step is not None for step in steps)


def _dropped(cells: Cells) -> int:
    return _count([falls_at(one.run, TRAINED) for one in cells.runs])


def _warned(cells: Cells) -> str:
    found = [step for one in cells.runs if (step := first_warning(one.run)) is not None]
    return f"{len(found)}: {', '.join(map(str, sorted(found)))}" if found else "0"


def _curves(cells: Cells, task: str) -> list[Figure]:
    arms = cells.split("filter")
    return [curves_figure(f"{task}: {name}", arms, metric, "") for name, metric in SHOWN]
