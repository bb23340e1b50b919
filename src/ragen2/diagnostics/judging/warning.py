"""Early warning of collapse: a sequential test on MI and retrieval, with hysteresis.

For each signal x, scaled so that its null is 0, with baseline b, noise s, tolerated share d of the
baseline and threshold h, Page's CUSUM sums up what is lost beyond the tolerated:

    drop_t = clip( ((1 - d) b - x_t) / s, -LARGEST, LARGEST )      in noise scales
    S_t    = min( CAP h, max( 0, S_(t-1) + drop_t - SLACK ) )

A third sum needs no baseline: it adds ``log(p_t / FLOOR)`` with p_t the p-value of the permutation null,
so reasoning that stays at chance is an alarm whatever came before. The alarm is raised when the largest
sum reaches h, and cleared when all are below ``clear`` times h again. The state is a value that goes in
with the metrics and comes out, so that a run is resumed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from ragen2.component import Settings
from ragen2.diagnostics.judging.regime import can_tell
from ragen2.diagnostics.statistics.resampling import Z95

LARGEST = 3.0
"""No single measurement counts for more noise scales than this, so that one outlier is no alarm."""
SLACK = 0.5
"""Noise scales taken off at each measurement; best against drops of twice this much (Page 1954)."""
CAP = 1.5
"""A sum stops at this multiple of the threshold, so that a recovered run is cleared in finite time."""
LEVEL_DECAY = 0.9
"""Of the moving average that the baseline rises to."""
FLOOR = 0.05
"""P-values above this are evidence of chance, those below it against."""


@dataclass(frozen=True, slots=True)
class SignalState:
    """What is remembered of one signal."""

    num: int = 0
    """Measurements so far."""
    baseline: float = 0.0
    """Mean of the first ones; later it follows ``level`` upwards, never downwards."""
    level: float = 0.0
    """Moving average."""
    last: float = 0.0
    squares: float = 0.0
    """Sum of half the squared differences between successive values: their noise, free of drift."""
    errors: float = 0.0
    """Sum of the squared standard errors that the intervals give."""
    drop: float = 0.0
    """Newest drop below the tolerated, in noise scales."""
    statistic: float = 0.0
    """Sum of drops."""


@dataclass(frozen=True, slots=True)
class WarningState:
    """Everything the rule remembers; plain numbers, so it is saved and resumed exactly."""

    mi: SignalState = SignalState()
    retrieval: SignalState = SignalState()
    floor: float = 0.0
    is_known: bool = False
    """The baseline was given, so nothing is learnt."""
    is_raised: bool = False
    held: int = 0
    """Measurements that the alarm has been on for."""
    statistic: float = 0.0
    """Largest of the three sums, in units of the threshold."""
    reason: str = ""
    """Why the alarm is on; empty while it is off."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of a signal, scaled so that its null value is 0."""

    value: float
    error: float
    """Standard error from its interval; 0 when it has none."""


class EarlyWarning(Settings):
    """When a fall of MI or retrieval is an alarm."""

    baseline: int = Field(5, ge=1, description="first measurements, which make the baseline")
    tolerated: float = Field(
        0.3, ge=0.0, lt=1.0, description="share of the baseline that may be lost without an alarm"
    )
    threshold: float = Field(
        4.0, gt=0.0, description="sum of drops, in noise scales, that raises the alarm"
    )
    clear: float = Field(
        0.2, gt=0.0, lt=1.0, description="share of the threshold below which the alarm is cleared"
    )
    dwell: int = Field(3, ge=1, description="measurements that an alarm stays on at least")

    def start(self, known: Sequence[Mapping[str, float]] = ()) -> WarningState:
        """The state before the first measurement; ``known`` ones, if any, are the baseline."""
        state = WarningState(is_known=bool(known))
        for metrics in known:
            state = replace(
                state,
                mi=_learn(state.mi, _mi_measurement(metrics)),
                retrieval=_learn(state.retrieval, _retrieval_measurement(metrics)),
            )
        return state

    def update(self, state: WarningState, metrics: Mapping[str, float]) -> WarningState:
        """Take one measurement as ``measure`` returned it; one that compares nothing changes nothing."""
        if metrics.get("num_prompts", 0.0) < 2.0:
            return state
        mi = self._follow(state.mi, _mi_measurement(metrics), is_known=state.is_known)
        retrieval = self._follow(
            state.retrieval, _retrieval_measurement(metrics), is_known=state.is_known
        )
        floor = self._sum(state.floor, _floor_drop(metrics))
        return self._judge(replace(state, mi=mi, retrieval=retrieval, floor=floor))

    def _follow(self, signal: SignalState, found: Measurement, *, is_known: bool) -> SignalState:
        if signal.num < self.baseline and not is_known:
            return _learn(signal, found)
        drop = (1.0 - self.tolerated) * signal.baseline - found.value
        # Where nothing ever varied, any drop is as large as a drop can count.
        noise = math.sqrt(_noise(signal, found)) or abs(drop) / LARGEST or 1.0
        clipped = min(LARGEST, max(-LARGEST, drop / noise))
        level = LEVEL_DECAY * signal.level + (1.0 - LEVEL_DECAY) * found.value
        return replace(
            _remember(signal, found, largest=LARGEST * math.sqrt(2.0) * noise),
            baseline=max(signal.baseline, level),
            level=level,
            drop=clipped,
            statistic=self._sum(signal.statistic, clipped - SLACK),
        )

    def _sum(self, before: float, change: float) -> float:
        return min(CAP * self.threshold, max(0.0, before + change))

    def _judge(self, state: WarningState) -> WarningState:
        """Raise, clear, or leave as it is."""
        statistic = max(state.mi.statistic, state.retrieval.statistic, state.floor) / self.threshold
        if not state.is_raised and statistic >= 1.0:
            reason = _reason(state, self.threshold)
            return replace(state, statistic=statistic, is_raised=True, held=1, reason=reason)
        if state.is_raised and statistic < self.clear and state.held >= self.dwell:
            return replace(state, statistic=statistic, is_raised=False, held=0, reason="")
        held = state.held + 1 if state.is_raised else 0
        return replace(state, statistic=statistic, held=held)


def _reason(state: WarningState, threshold: float) -> str:
    """What raised the alarm, for a reader who has not seen the curve; a fall says more than chance."""
    mi, retrieval = state.mi, state.retrieval
    if max(mi.statistic, retrieval.statistic) < threshold:
        return "retrieval and mutual information are at chance"
    if mi.statistic >= retrieval.statistic:
        return f"mutual information fell to {mi.last:.3g} from a baseline of {mi.baseline:.3g} nats per token"
    return (
        f"retrieval above chance fell to {retrieval.last:.2f} from a baseline of "
        f"{retrieval.baseline:.2f} (1 is perfect, 0 is chance)"
    )


def _mi_measurement(metrics: Mapping[str, float]) -> Measurement:
    return Measurement(metrics["mi_estimate"], _error(metrics, "mi_estimate"))


def _retrieval_measurement(metrics: Mapping[str, float]) -> Measurement:
    """Retrieval as the share of what is above chance: 0 at chance, 1 when perfect, for any P."""
    above_chance = 1.0 - metrics["retrieval_chance"]
    value = (metrics["retrieval_accuracy"] - metrics["retrieval_chance"]) / above_chance
    return Measurement(value, _error(metrics, "retrieval_accuracy") / above_chance)


def _error(metrics: Mapping[str, float], name: str) -> float:
    if f"{name}_low" not in metrics:
        return 0.0
    return (metrics[f"{name}_high"] - metrics[f"{name}_low"]) / (2.0 * Z95)


def _floor_drop(metrics: Mapping[str, float]) -> float:
    """How far the better of the two p-values is evidence of chance; 0 when the batch cannot tell."""
    if "retrieval_p_value" not in metrics:
        return 0.0
    if not can_tell(metrics["num_traces"], metrics["num_prompts"]):
        return 0.0
    return math.log(min(metrics["retrieval_p_value"], metrics["mi_p_value"]) / FLOOR)


def _learn(signal: SignalState, found: Measurement) -> SignalState:
    after = _remember(signal, found)
    mean = signal.baseline + (found.value - signal.baseline) / after.num
    return replace(after, baseline=mean, level=mean)


def _remember(signal: SignalState, found: Measurement, *, largest: float = math.inf) -> SignalState:
    """Count a measurement; its step counts as noise up to ``largest``, so that a fall hides no fall."""
    step = min(largest, abs(found.value - signal.last)) if signal.num else 0.0
    return replace(
        signal,
        num=signal.num + 1,
        last=found.value,
        squares=signal.squares + step**2 / 2.0,
        errors=signal.errors + found.error**2,
    )


def _noise(signal: SignalState, found: Measurement) -> float:
    """Variance of a measurement: what successive ones differ by, or what the intervals say if more."""
    seen = signal.squares / max(1, signal.num - 1)
    said = signal.errors / signal.num
    return max(seen, said, found.error**2)
