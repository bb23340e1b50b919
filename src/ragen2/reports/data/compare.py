"""Several runs side by side: success with intervals, what the filter changed, what goes with success."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ragen2.diagnostics.statistics.rank_test import rank_test
from ragen2.reports.data.charts import token_unit
from ragen2.reports.data.numbers import short
from ragen2.reports.load import Run
from ragen2.reports.verdict import judge

SUCCESS = ("eval/success", "rollout/success", "reward/mean")
"""What runs are compared by: the first that any of them has."""
COLUMNS = (
    ("final retrieval", "retrieval_accuracy"),
    ("final I(X;Z), nats per token", "mi_estimate"),
    ("final H(Z|X), nats per token", "conditional_entropy"),
)
UNFILTERED = "keep_all"


@dataclass(frozen=True, slots=True)
class StepValue:
    """A value, its 95% interval where it has one, and the step it is of."""

    value: float
    low: float | None = None
    high: float | None = None
    step: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """As the page takes it."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        return {name: short(value) for name, value in numbers.items()} | {"step": self.step}


def compare_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Two runs or more as the page takes them; run ``n`` has the id ``rn``."""
    success = success_metric(runs)
    correlations = [
        one
        for name, metric in (("I(X;Z)", "mi_estimate"), ("H(Z|X)", "conditional_entropy"))
        for one in _correlations(runs, success, name, metric)
    ]
    notes = [
        "Peaks are the best of several noisy values, so they are a little too high; intervals are those "
        "of the single value."
    ]
    return {
        "success": success,
        "columns": [label for label, _ in COLUMNS],
        "table": [_row(run, f"r{number}", success) for number, run in enumerate(runs)],
        "filter_delta": filter_deltas(runs, success),
        "correlations": correlations,
        "notes": notes,
    }


def success_metric(runs: Sequence[Run]) -> str:
    """The metric that runs are compared by."""
    recorded = {name for run in runs for name in run.recorded}
    return next((name for name in SUCCESS if name in recorded), SUCCESS[0])


def peak(run: Run, metric: str) -> StepValue | None:
    """The largest value, the earliest where there are several."""
    found = _estimates(run, metric)
    return max(found, key=lambda one: one.value) if found else None


def final(run: Run, metric: str) -> StepValue | None:
    """The last value."""
    found = _estimates(run, metric)
    return found[-1] if found else None


def difference(one: StepValue | None, other: StepValue | None) -> StepValue | None:
    """``one`` less ``other``; with Newcombe's interval (1998, method 10), which keeps their lopsidedness."""
    if one is None or other is None:
        return None
    value = one.value - other.value
    ends = (one.low, one.high, other.low, other.high)
    if any(end is None for end in ends):
        return StepValue(value)
    low1, high1, low2, high2 = (float(end or 0.0) for end in ends)
    return StepValue(
        value,
        value - math.hypot(one.value - low1, high2 - other.value),
        value + math.hypot(high1 - one.value, other.value - low2),
    )


def filter_deltas(runs: Sequence[Run], success: str) -> list[dict[str, Any]]:
    """Pairs of runs whose settings are equal but for the filter; an unfiltered one is ``without``."""
    found = []
    for (i, one), (j, other) in combinations(enumerate(runs), 2):
        if one.audit or other.audit or _without_filter(one) != _without_filter(other):
            continue
        if one.settings.get("filter") == other.settings.get("filter"):
            continue
        (a, first), (b, second) = (i, one), (j, other)
        if _filter_kind(first) == UNFILTERED:
            (a, first), (b, second) = (b, second), (a, first)
        peaks = difference(peak(first, success), peak(second, success))
        finals = difference(final(first, success), final(second, success))
        found.append(
            {
                "with": f"r{a}",
                "without": f"r{b}",
                "differs": _differs(first, second),
                "peak": peaks.as_dict() if peaks else None,
                "final": finals.as_dict() if finals else None,
                "text": _delta_words(finals, success),
            }
        )
    return found


def _row(run: Run, run_id: str, success: str) -> dict[str, Any]:
    best, last, verdict = peak(run, success), final(run, success), judge(run)
    return {
        "run": run_id,
        "verdict": verdict.word,
        "tone": verdict.tone,
        "peak": best.as_dict() if best else None,
        "final": last.as_dict() if last else None,
        "cells": [_cell(final(run, f"collapse/{run.main_scope}/{name}")) for _, name in COLUMNS],
    }


def _cell(estimate: StepValue | None) -> str:
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3g}"
    return f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"


def _estimates(run: Run, metric: str) -> list[StepValue]:
    return [
        StepValue(
            record.metrics[metric],
            record.metrics.get(f"{metric}_low"),
            record.metrics.get(f"{metric}_high"),
            record.step,
        )
        for record in run.records
        if metric in record.metrics
    ]


def _without_filter(run: Run) -> dict[str, Any]:
    """Settings that decide a run, but for its filter; where it was logged to decides nothing."""
    return {
        name: value for name, value in run.settings.items() if name not in {"filter", "logging"}
    }


def _filter_kind(run: Run) -> str:
    settings = run.settings.get("filter")
    return str(settings.get("kind", "")) if isinstance(settings, dict) else ""


def _differs(first: Run, second: Run) -> str:
    """Settings of the two filters that are not the same."""
    one, other = (run.settings.get("filter", {}) for run in (first, second))
    if not isinstance(one, dict) or not isinstance(other, dict):
        return "filter"
    if one.get("kind") != other.get("kind"):
        return f"filter {one.get('kind')} against {other.get('kind')}"
    names = [name for name in one | other if one.get(name) != other.get(name)]
    return ", ".join(f"filter.{name} {one.get(name)} against {other.get(name)}" for name in names)


def _delta_words(finals: StepValue | None, success: str) -> str:
    if finals is None:
        return f"{success} was not recorded by both"
    if finals.low is None or finals.high is None:
        return f"final {success} differs by {finals.value:+.3g}"
    is_clear = finals.low > 0.0 or finals.high < 0.0
    how = "beyond chance" if is_clear else "within what chance allows"
    return f"final {success} differs by {finals.value:+.3g} ({finals.low:+.3g} to {finals.high:+.3g}), {how}"


@dataclass(frozen=True, slots=True)
class _Point:
    run: int
    step: int
    x: float
    y: float


def _correlations(
    runs: Sequence[Run], success: str, name: str, metric: str
) -> list[dict[str, Any]]:
    """Over all checkpoints that measured both, and over the runs' last ones."""
    points = [
        _Point(number, record.step, record.metrics[full], record.metrics[success])
        for number, run in enumerate(runs)
        for full in [f"collapse/{run.main_scope}/{metric}"]
        for record in run.records
        if full in record.metrics and success in record.metrics
    ]
    last = list({point.run: point for point in points}.values())
    unit = token_unit(runs[0])
    return [
        entry
        for over, shown in (("checkpoints", points), ("runs", last))
        if (entry := _correlation(shown, over, name, metric, unit)) is not None
    ]


def _correlation(
    points: Sequence[_Point], over: str, name: str, metric: str, unit: str
) -> dict[str, Any] | None:
    found = rank_test([point.x for point in points], [point.y for point in points])
    if found is None:
        return None
    return {
        "name": f"{name} and success",
        "metric": metric,
        "rho": short(found.rho),
        "low": short(found.low),
        "high": short(found.high),
        "p": short(found.p_value),
        "n": found.num,
        "over": over,
        "text": _correlation_words(over),
        "x_unit": unit,
        "points": [
            {"run": f"r{point.run}", "step": point.step, "x": short(point.x), "y": short(point.y)}
            for point in points
        ],
    }


def _correlation_words(over: str) -> str:
    if over == "runs":
        return "One point per run: its last checkpoint that measured both."
    return "One point per checkpoint. Those of one run are alike, so interval and p-value are too confident."
