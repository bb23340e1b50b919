"""Charts of reasoning scope by scope: turn positions side by side, whole trajectories, the probe set."""

from __future__ import annotations

from dataclasses import replace

from ragen2.diagnostics.collapse import FIRST_TURN, measured_scopes
from ragen2.reports.figures import COLOURS, Chart, draw
from ragen2.reports.load import Run, Series

NAMES = {"trajectory": "all turns", "probe": "probe set"}


def scope_charts(run: Run) -> list[str]:
    """Retrieval and MI of each scope that the run measured beyond the first turn, in reading order."""
    scopes = measured_scopes(name for record in run.records for name in record.metrics)
    turns = [scope for scope in scopes if scope.startswith("turn_")]
    charts = []
    if turns:
        positions = _spread([FIRST_TURN, *turns] if FIRST_TURN in scopes else turns)
        charts += _pair(run, positions, "by turn")
    for scope in (scope for scope in scopes if scope in NAMES):
        charts += _pair(run, [scope], NAMES[scope])
    return charts


def scope_label(scope: str) -> str:
    """``turn_3`` as ``turn 3``; the first turn is turn 1 among the others."""
    return "turn 1" if scope == FIRST_TURN else scope.replace("_", " ")


def _pair(run: Run, scopes: list[str], words: str) -> list[str]:
    """Retrieval against chance, and MI against its bound."""
    return [
        draw(
            Chart(
                f"{title}, {words}",
                [_series(run, scope, metric, is_alone=len(scopes) == 1) for scope in scopes],
                guides=[run.series(f"collapse/{scope}/{guide}", label) for scope in scopes],
                unit=unit,
                floor=0.0,
                ceiling=ceiling,
            )
        )
        for title, metric, guide, label, unit, ceiling in (
            ("Retrieval", "retrieval_accuracy", "retrieval_chance", "chance", "", 1.0),
            ("I(X;Z)", "mi_estimate", "mi_bound", "bound log P", "nats a token", None),
        )
    ]


def _series(run: Run, scope: str, metric: str, *, is_alone: bool) -> Series:
    """One scope's line; several in a chart go without bands, which would cover each other."""
    found = run.series(f"collapse/{scope}/{metric}", scope_label(scope))
    return found if is_alone else replace(found, low=(), high=())


def _spread(scopes: list[str]) -> list[str]:
    """At most as many as there are colours, evenly over the positions, both ends among them."""
    if len(scopes) <= COLOURS:
        return scopes
    return [scopes[round(i * (len(scopes) - 1) / (COLOURS - 1))] for i in range(COLOURS)]
