"""What happens in the course of a run: the order in which MI, entropy, success and the links fall.

- Figures 5 and 7: does MI fall before success does, does entropy miss it, does reasoning shorten?
- X -> Z -> A during collapse: which link breaks, and in which order?
- MI by turn position: where does collapse start? And is a single turn any different?
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ragen2.diagnostics.statistics.trends import departure, trend
from ragen2.experiments.analyses.proxies import OF_ARMS, success_table
from ragen2.experiments.cells import (
    ENTROPY,
    MI,
    NONE,
    RETRIEVAL,
    SUCCESS,
    Cells,
    change,
    difference,
    early,
    final,
    first,
    gain,
    late,
    level,
    require_axes,
)
from ragen2.experiments.charts import curves_figure, lines_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import Estimate, mean_estimate, paired_estimate
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


def analyse_dynamics(cells: Cells) -> Findings:
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
            "at which a quarter of the whole fall is behind it.",
            OF_ARMS,
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


LINKS = (
    ("input to reasoning", RETRIEVAL, "retrieval above chance"),
    (
        "reasoning to action",
        "flow/first_turn/reasoning_action_swap_seq",
        "nats lost with another's reasoning",
    ),
    ("input to action", "flow/first_turn/input_action", "I(X;A), nats"),
)
HALF = 0.5


def analyse_chain(cells: Cells) -> Findings:
    """Each link at the start and at the end, its change, and when half of it was lost."""
    require_axes(cells, "filter")
    arms = cells.axis("filter")
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    for arm in arms:
        mine = cells.where(filter=arm)
        for name, metric, unit in LINKS:
            found = level(mine, change(metric))
            rows.append(
                (
                    arm,
                    name,
                    unit,
                    level(mine, first(metric)),
                    level(mine, final(metric)),
                    found,
                    half_lost(mine, metric),
                )
            )
            claims += claimed(f"change/{arm}/{name}", found, unit, 3)
    for name, metric, unit in LINKS:
        for arm in arms:
            found = difference(cells, "filter", arm, NONE, change(metric)) if arm != NONE else None
            claims += claimed(f"saved/{arm}/{name}", found, unit, 3)
    shown = cells.split("filter")
    figure = NamedFigure(
        "chain",
        [curves_figure(name, shown, metric, unit) for name, metric, unit in LINKS]
        + [curves_figure("held-out success", shown, SUCCESS, "share of tasks")],
    )
    columns = ("filter", "link", "unit", "start", "end", "change", "runs that lost half, and when")
    return Findings(
        [Table("The links of X -> Z -> A", columns, tuple(rows), digits=3)], claims, [figure]
    )


def half_lost(cells: Cells, metric: str) -> str:
    """How many runs ended with less than half of what a link was at first, and the steps it fell below."""
    steps = []
    for one in cells.runs:
        series = one.run.series(metric)
        if (
            not series.values
            or series.values[0] <= 0.0
            or series.values[-1] > HALF * series.values[0]
        ):
            continue
        below = [value <= HALF * series.values[0] for value in series.values]
        place = len(below) - 1
        while place and below[place - 1]:
            place -= 1
        steps.append(series.steps[place])
    return f"{len(steps)} of {len(cells)}" + (
        f": {', '.join(map(str, sorted(steps)))}" if steps else ""
    )


POSITION = re.compile(r"collapse/(?:first_turn|turn_(\d+))/mi_estimate")
MULTI, SINGLE = "multi", "single"


def analyse_turns(cells: Cells) -> Findings:
    """MI early and late at each position, the change, and single-turn against multi-turn episodes."""
    require_axes(cells, "task", "turns", "regulariser")
    rows: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    figures = []
    for (task, turns, pressure), mine in cells.groups("task", "turns", "regulariser"):
        where = f"{task}/{turns}/{pressure}"
        points = []
        for position in positions(mine):
            metric = mi_at(position)
            change_here = level(mine, change(metric))
            rows.append(
                (
                    task,
                    turns,
                    pressure,
                    position,
                    level(mine, early(metric)),
                    level(mine, late(metric)),
                    change_here,
                    _onset(mine, metric),
                )
            )
            points.append((float(position), change_here))
            claims += claimed(f"change/{where}/{position}", change_here, "nats per token", 3)
        last = positions(mine)[-1:]
        if last and last[0] > 1:
            found = _last_less_first(mine, mi_at(last[0]))
            claims += claimed(f"last_less_first/{where}", found, "nats per token", 3)
            figures.append(
                NamedFigure(f"turns-{task}-{pressure}", [_figure(f"{task}, {pressure}", points)])
            )
    for (task, pressure), mine in cells.groups("task", "regulariser"):
        found = paired_estimate(
            mine.where(turns=MULTI).by_seed(change(MI)),
            mine.where(turns=SINGLE).by_seed(change(MI)),
        )
        claims += claimed(f"multi_less_single/{task}/{pressure}", found, "nats per token", 3)
    columns = (
        "task",
        "turns",
        "regulariser",
        "position",
        "MI early",
        "MI late",
        "change",
        "falls from step",
    )
    note = (
        "Later positions have fewer episodes, and nearly every prompt there is one of its kind: intervals "
        "are wide."
    )
    return Findings(
        [Table("MI by turn position, nats per token", columns, tuple(rows), digits=3)],
        claims,
        figures,
        [note],
    )


def positions(cells: Cells) -> list[int]:
    """Turn positions at which any run measured MI; the first is 1."""
    names = {name for one in cells.runs for name in one.run.recorded}
    return sorted(int(match[1] or 1) for name in names if (match := POSITION.fullmatch(name)))


def mi_at(position: int) -> str:
    """The metric of a position."""
    return MI if position == 1 else f"collapse/turn_{position}/mi_estimate"


def _last_less_first(cells: Cells, last: str) -> Estimate | None:
    """Over the steps at which both were measured: later turns are looked at less often than the first."""
    return paired_estimate(
        cells.by_seed(change(last, beside=MI)), cells.by_seed(change(MI, beside=last))
    )


def _onset(cells: Cells, metric: str) -> Estimate | None:
    """Mean step from which MI falls, over the runs in which it clearly does."""
    found = []
    for one in cells.runs:
        series = one.run.series(metric)
        course = trend(series.values)
        if course is not None and course.p_falling <= 0.05 and course.change < 0.0:
            found.append(float(departure(series.steps, series.values, course)))
    return mean_estimate(found, "t over runs in which it falls")


def _figure(title: str, points: list[tuple[float, Estimate | None]]) -> Figure:
    return lines_figure(f"{title}: change of MI", {"change": points}, "turn", "nats per token")
