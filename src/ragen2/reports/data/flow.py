"""Information flow turn by turn: input X, reasoning Z, action A, and the links between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ragen2.diagnostics import read_chain
from ragen2.diagnostics.judging.regime import SIGNIFICANT
from ragen2.reports.data.numbers import short, spread_over
from ragen2.reports.load import Run
from ragen2.runs.record import StepRecord

MEASURED = re.compile(r"^flow/(first_turn|turn_\d+)/")
MOST_STEPS = 24


def flow_of(run: Run) -> list[dict[str, Any]]:
    """One entry per step and turn that measured it, in order."""
    steps = [record for record in run.records if _scopes(record)]
    return [
        _entry(record, scope)
        for record in spread_over(steps, MOST_STEPS)
        for scope in sorted(_scopes(record), key=_turn)
    ]


def _scopes(record: StepRecord) -> set[str]:
    return {found[1] for name in record.metrics if (found := MEASURED.match(name))}


def _turn(scope: str) -> int:
    return 1 if scope == "first_turn" else int(scope.removeprefix("turn_"))


def _entry(record: StepRecord, scope: str) -> dict[str, Any]:
    collapse, flow = f"collapse/{scope}/", f"flow/{scope}/"
    metrics = record.metrics
    return {
        "step": record.step,
        "turn": _turn(scope),
        "label": f"turn {_turn(scope)}",
        "reading": read_chain(metrics, scope).text,
        "links": [
            _link(
                metrics,
                ("X", "Z"),
                "retrieval above chance: reasoning depends on the input",
                f"{collapse}retrieval_above_chance",
                f"{collapse}retrieval_p_value",
                "share of traces",
            ),
            _link(
                metrics,
                ("Z", "A"),
                "what the action loses after another prompt's reasoning",
                f"{flow}reasoning_action_swap_seq",
                f"{flow}reasoning_action_swap_p_value",
                "nats per answer",
            ),
            _link(
                metrics,
                ("X", "A"),
                "what the action loses under another prompt, with its own reasoning",
                f"{flow}input_action_direct_seq",
                f"{flow}input_action_direct_p_value",
                "nats per answer",
            ),
            _link(
                metrics,
                ("X", "A"),
                "I(X;A): actions depend on the input at all",
                f"{flow}input_action",
                f"{flow}input_action_p_value",
                "nats per answer",
            ),
        ],
    }


def _link(
    metrics: Mapping[str, float],
    ends: tuple[str, str],
    name: str,
    metric: str,
    p_metric: str,
    unit: str,
) -> dict[str, Any]:
    value, p_value = metrics.get(metric), metrics.get(p_metric)
    is_measured = value is not None and p_value is not None
    return {
        "from": ends[0],
        "to": ends[1],
        "name": name,
        "metric": metric,
        "value": short(value),
        "low": short(metrics.get(f"{metric}_low")),
        "high": short(metrics.get(f"{metric}_high")),
        "p": short(p_value),
        "unit": unit,
        "seen": (value or 0.0) > 0.0 and (p_value or 0.0) <= SIGNIFICANT if is_measured else None,
    }
