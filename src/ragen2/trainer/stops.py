"""Early stops: a run that can no longer learn ends by itself, with a checkpoint and a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ragen2.config import Stops


@dataclass(frozen=True, slots=True)
class StopState:
    """What the rules remember from step to step; saved with the run."""

    baseline_sum: float = 0.0
    baseline_count: int = 0
    low_variance: int = 0
    empty: int = 0
    low_success: int = 0


def watch_stops(
    settings: Stops, state: StopState, metrics: Mapping[str, float]
) -> tuple[StopState, str]:
    """Fold one step's metrics in; the second value says why to stop, and is empty otherwise."""
    state = _variance(settings, state, metrics.get("reward/std"))
    if "filter/kept" in metrics:
        state = replace(state, empty=state.empty + 1 if metrics["filter/kept"] == 0.0 else 0)
    if "eval/success" in metrics:
        is_low = metrics["eval/success"] < settings.success_least
        state = replace(state, low_success=state.low_success + 1 if is_low else 0)
    reason = _reason(settings, state)
    if reason:
        # A run that is resumed after it stopped gets its whole number of steps again.
        state = replace(state, low_variance=0, empty=0, low_success=0)
    return state, reason


def _variance(settings: Stops, state: StopState, std: float | None) -> StopState:
    if std is None:
        return state
    if state.baseline_count < settings.variance_baseline:
        # A first step without any variance says nothing about what the run can have.
        if std == 0.0:
            return state
        return replace(
            state,
            baseline_sum=state.baseline_sum + std,
            baseline_count=state.baseline_count + 1,
        )
    baseline = state.baseline_sum / state.baseline_count
    is_low = std < settings.variance_share * baseline
    return replace(state, low_variance=state.low_variance + 1 if is_low else 0)


def _reason(settings: Stops, state: StopState) -> str:
    if settings.variance_steps and state.low_variance >= settings.variance_steps:
        return (
            f"reward variance collapsed: {state.low_variance} steps in a row below "
            f"{settings.variance_share:g} of the first steps' reward std"
        )
    if settings.empty_steps and state.empty >= settings.empty_steps:
        return f"the filter kept no prompt for {state.empty} steps in a row"
    if settings.success_evaluations and state.low_success >= settings.success_evaluations:
        return (
            f"held-out success below {settings.success_least:g} at {state.low_success} "
            "evaluations in a row"
        )
    return ""
