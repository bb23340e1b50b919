"""Early warning: is grounding being lost? A sequential test on MI and retrieval, with hysteresis.

With x each signal, scaled so that its null is 0, and b its baseline carried over to the batch's number of
prompts, u is the share of the baseline that is left, averaged over the signals. Page's CUSUM sums what is
lost beyond the tolerated share d, in noise scales s:

    u_t    = mean( x_t / b )
    d      = max( tolerated, min( WIDEST, REACH w ) )              w: the run's own persistent wander
    drop_t = clip( (1 - d - u_t) / s, -LARGEST, LARGEST )
    S_t    = min( CAP h, max( 0, S_(t-1) + drop_t - SLACK ) )

Healthy runs wander, and neighbouring measurements are alike. A sum of such values reaches any threshold
sooner or later, so what is tolerated follows w, the root of the lag-1 autocovariance of u: independent noise
adds nothing to it. It starts from the ``wander`` that is expected. The alarm is raised when S reaches h, and
cleared when S is below ``clear`` times h again.

There is no loss where nothing was: p-values of the permutation nulls decide whether a run was ever grounded.
The state is a value that goes in with the metrics and comes out, so that a run is resumed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from ragen2.component import Settings
from ragen2.diagnostics.judging.regime import SIGNIFICANT
from ragen2.diagnostics.statistics.resampling import Z95

LARGEST = 3.0
"""No single measurement counts for more noise scales than this, so that one outlier is no alarm."""
SLACK = 0.5
"""Noise scales taken off at each measurement; best against drops of twice this much (Page 1954)."""
CAP = 1.5
"""A sum stops at this multiple of the threshold, so that a recovered run is cleared in finite time."""
LEVEL_DECAY = 0.97
"""Of the moving average that the baseline rises to: slower than healthy wander."""
EXPECTED_WEIGHT = 40
"""Measurements that the expected wander counts for. This, ``REACH`` and ``WIDEST`` were chosen on simulated
runs, others than those the docs report on (benchmarks/early_warning.py)."""
REACH = 3.25
"""Spreads of wander that are tolerated."""
WIDEST = 0.65
"""Share of the baseline that is tolerated at most on account of wander: a collapse loses more."""
FLOOR = 0.05
"""P-values above this are evidence of chance, those below it of grounding."""
DECIDED = 4.0
"""Sum of log(FLOOR / p) from which grounding, or its absence, counts as shown."""
NO_GROUNDING = 0.1
"""Retrieval above chance, as a share of the possible, that a run never grounded stays below (95%)."""

Kind = Literal["", "grounding_lost", "never_grounded"]
KINDS: tuple[Kind, ...] = ("grounding_lost", "never_grounded")
"""What the rule can say; the first is an alarm."""


@dataclass(frozen=True, slots=True)
class SignalState:
    """What is remembered of one signal."""

    baseline: float = 0.0
    """Mean of the first measurements, at the number of prompts of the first; it rises, it never falls."""
    variance: float = 0.0
    """Of that mean, from the intervals."""
    here: float = 0.0
    """The baseline at the present number of prompts."""
    level: float = 0.0
    """Moving average at the present number of prompts."""
    last: float = 0.0


@dataclass(frozen=True, slots=True)
class WarningState:
    """Everything the rule remembers; plain numbers, so it is saved and resumed exactly."""

    num: int = 0
    """Measurements so far."""
    prompts: float = 0.0
    """Number of prompts that the baseline is for."""
    prompts_now: float = 0.0
    mi: SignalState = SignalState()
    retrieval: SignalState = SignalState()
    is_known: bool = False
    """The baseline was given, so nothing is learnt."""
    left: float | None = None
    """Share of the baseline that the newest measurement left; None before there is one to compare with."""
    steps: int = 0
    """Successive shares that noise was learnt from."""
    squares: float = 0.0
    """Sum of half their squared differences: their noise, free of drift."""
    pairs: int = 0
    """Successive shares that wander was learnt from."""
    products: float = 0.0
    """Sum of the products of their distances from 1: the variance of what persists."""
    evidence: float = 0.0
    """Sum of log(FLOOR / p): at ``DECIDED`` the run is grounded, at minus that it is at chance."""
    is_grounded: bool = False
    """The run was shown to be grounded at some time, so grounding can be lost."""
    above_chance: float = 0.0
    """Mean retrieval above chance since the start, as a share of the possible, weighted by precision."""
    precision: float = 0.0
    """Sum of one over its variance under chance."""
    is_raised: bool = False
    held: int = 0
    """Measurements that the alarm has been on for."""
    statistic: float = 0.0
    """The sum of drops, in units of the threshold."""
    kind: Kind = ""
    """``grounding_lost`` while the alarm is on; ``never_grounded`` is no alarm: nothing was lost."""
    reason: str = ""
    """The kind in words, with its numbers."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of a signal, scaled so that its null value is 0."""

    value: float
    error: float
    """Standard error from its interval; 0 when it has none."""


class EarlyWarning(Settings):
    """When a fall of MI and retrieval is an alarm."""

    baseline: int = Field(5, ge=1, description="first measurements, which make the baseline")
    tolerated: float = Field(
        0.3,
        ge=0.0,
        lt=1.0,
        description="share of the baseline that may be lost without an alarm; more in a run that wanders",
    )
    wander: float = Field(
        0.2,
        ge=0.0,
        lt=1.0,
        description="spread of healthy wander, as a share of the baseline, that is expected until the "
        "run has shown its own; less finds smaller losses and raises more false alarms",
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
        state = WarningState()
        for metrics in known:
            state = _learn(_weigh(state, metrics), metrics)
        # A single reference may be too small to decide; it was given as what grounded reasoning looks like.
        is_grounded = state.is_grounded or (bool(known) and state.evidence > 0.0)
        return replace(state, is_known=bool(known), is_grounded=is_grounded)

    def update(self, state: WarningState, metrics: Mapping[str, float]) -> WarningState:
        """Take one measurement as ``measure`` returned it; one that compares nothing changes nothing."""
        if metrics.get("num_prompts", 0.0) < 2.0:
            return state
        state = _weigh(state, metrics)
        if state.num < self.baseline and not state.is_known:
            state = _learn(state, metrics)
        else:
            state = self._compare(_moved(state, metrics["num_prompts"]), metrics)
        return self._judge(state)

    def _compare(self, state: WarningState, metrics: Mapping[str, float]) -> WarningState:
        """What is left of the baseline, and what that adds to the sum."""
        left = share_left(state, metrics)
        if state.is_grounded and left is not None:
            tolerated = max(self.tolerated, min(WIDEST, REACH * _wander(state, self.wander)))
            drop = 1.0 - tolerated - left.value
            # Wander grows with its level, so at the line it is smaller; where nothing ever varied, any drop
            # is as large as a drop can count.
            noise = max(left.error, (1.0 - tolerated) * _noise(state)) or abs(drop) / LARGEST or 1.0
            change = min(LARGEST, max(-LARGEST, drop / noise)) - SLACK
            sum_before = state.statistic * self.threshold
            statistic = min(CAP, max(0.0, sum_before + change) / self.threshold)
            state = replace(_vary(state, left, self.wander), statistic=statistic)
        mi, retrieval = (
            _follow(signal, one.value, is_home=state.prompts_now == state.prompts)
            for signal, one in zip((state.mi, state.retrieval), _measurements(metrics), strict=True)
        )
        left_now = None if left is None else left.value
        return replace(state, num=state.num + 1, mi=mi, retrieval=retrieval, left=left_now)

    def _judge(self, state: WarningState) -> WarningState:
        """Raise, clear, or leave as it is; say once that a run was never grounded."""
        if state.is_raised:
            if state.statistic < self.clear and state.held >= self.dwell:
                return replace(state, is_raised=False, held=0, kind="", reason="")
            return replace(state, held=state.held + 1)
        if state.statistic >= 1.0:
            return replace(
                state, is_raised=True, held=1, kind="grounding_lost", reason=_loss(state)
            )
        if not state.kind and state.num >= self.baseline and _is_at_chance(state):
            return replace(state, kind="never_grounded", reason=_absence(state))
        return state


def _weigh(state: WarningState, metrics: Mapping[str, float]) -> WarningState:
    """Count a measurement's evidence of grounding or of chance; without p-values grounding is assumed.

    A run that was never grounded and becomes so begins anew: what it was before is no baseline.
    """
    if "retrieval_p_value" not in metrics or "mi_p_value" not in metrics:
        return replace(state, is_grounded=True)
    if not _can_tell(metrics["num_traces"], metrics["num_prompts"]):
        return state
    better = min(metrics["retrieval_p_value"], metrics["mi_p_value"])
    evidence = min(DECIDED, max(-DECIDED, state.evidence + math.log(FLOOR / better)))
    is_grounded = state.is_grounded or evidence >= DECIDED
    if is_grounded and state.kind == "never_grounded":
        return WarningState(evidence=evidence, is_grounded=True)
    chance = metrics["retrieval_chance"]
    precision = state.precision + metrics["num_traces"] * (1.0 - chance) / chance
    change = _retrieval(metrics).value - state.above_chance
    weight = (precision - state.precision) / precision
    return replace(
        state,
        evidence=evidence,
        is_grounded=is_grounded,
        above_chance=state.above_chance + weight * change,
        precision=precision,
    )


def _is_at_chance(state: WarningState) -> bool:
    """Whether the run was never grounded, and its batches could have shown it."""
    if state.is_grounded or state.evidence > -DECIDED:
        return False
    return _highest_above_chance(state) < NO_GROUNDING


def _highest_above_chance(state: WarningState) -> float:
    return state.above_chance + Z95 / math.sqrt(state.precision)


def _learn(state: WarningState, metrics: Mapping[str, float]) -> WarningState:
    """Fold a measurement into the baseline, which is for the number of prompts of the first one."""
    prompts_now = metrics["num_prompts"]
    prompts, num = state.prompts or prompts_now, state.num + 1
    mi, retrieval = _measurements(metrics)

    def mean(signal: SignalState, found: Measurement, carried: float) -> SignalState:
        baseline = signal.baseline + (carried - signal.baseline) / num
        variance = ((num - 1) ** 2 * signal.variance + found.error**2) / num**2
        return SignalState(baseline, variance, baseline, baseline, found.value)

    return replace(
        state,
        num=num,
        prompts=prompts,
        prompts_now=prompts,
        mi=mean(state.mi, mi, carry_mi(mi.value, prompts_now, prompts)),
        retrieval=mean(
            state.retrieval, retrieval, carry_retrieval(retrieval.value, prompts_now, prompts)
        ),
    )


def _moved(state: WarningState, prompts: float) -> WarningState:
    """The baselines at another number of prompts; what is not known there is learnt anew."""
    if prompts == state.prompts_now:
        return state
    at_mi = carry_mi(state.mi.baseline, state.prompts, prompts)
    at_retrieval = carry_retrieval(state.retrieval.baseline, state.prompts, prompts)
    return replace(
        state,
        prompts_now=prompts,
        left=None,
        mi=replace(state.mi, here=at_mi, level=at_mi),
        retrieval=replace(state.retrieval, here=at_retrieval, level=at_retrieval),
    )


def carry_mi(value: float, prompts: float, target: float) -> float:
    """The least MI that a batch of ``target`` prompts shows where one of ``prompts`` shows ``value``.

    With rivals of equal distance, MI is ``-log(1/P + (1 - 1/P) m)``, m the likelihood of a trace under
    another prompt relative to its own. From more prompts to fewer that is concave, so traces that differ give
    less, down to the share of the bound log P that a mixture of all and nothing keeps.
    """
    if prompts == target or value <= 0.0:
        return value
    other = max(0.0, (math.exp(-value) - 1.0 / prompts) / (1.0 - 1.0 / prompts))
    even = -math.log(1.0 / target + (1.0 - 1.0 / target) * other)
    return min(even, value * math.log(target) / math.log(prompts))


def carry_retrieval(value: float, prompts: float, target: float) -> float:
    """The least share above chance at ``target`` prompts where a batch of ``prompts`` shows ``value``.

    With fewer rivals it does not fall. With more, a trace whose own prompt beats each rival with the same
    chance wins against all with that chance to the power of their number; traces that differ win more often.
    """
    if target <= prompts or value <= 0.0:
        return value
    accuracy = 1.0 / prompts + value * (1.0 - 1.0 / prompts)
    won = math.pow(accuracy, (target - 1.0) / (prompts - 1.0))
    return min(value, max(0.0, (won - 1.0 / target) / (1.0 - 1.0 / target)))


def share_left(state: WarningState, metrics: Mapping[str, float]) -> Measurement | None:
    """Share of the baseline that a measurement leaves; None where no baseline is above 0 for certain.

    It must have the number of prompts that the state is at.
    """
    shares = [
        Measurement(one.value / signal.here, one.error / signal.here)
        for signal, one in zip((state.mi, state.retrieval), _measurements(metrics), strict=True)
        if signal.here > 0.0 and signal.baseline > Z95 * math.sqrt(signal.variance)
    ]
    if not shares:
        return None
    return Measurement(
        sum(one.value for one in shares) / len(shares),
        sum(one.error for one in shares) / len(shares),
    )


def _follow(signal: SignalState, value: float, *, is_home: bool) -> SignalState:
    """Let the baseline rise to the moving average; at another number of prompts only while it lasts."""
    level = LEVEL_DECAY * signal.level + (1.0 - LEVEL_DECAY) * value
    here = max(signal.here, level)
    return replace(
        signal, baseline=here if is_home else signal.baseline, here=here, level=level, last=value
    )


def _vary(state: WarningState, left: Measurement, expected: float) -> WarningState:
    """Learn noise and wander from two successive shares, each up to a limit, so that a fall hides no fall.

    Away from the baseline's number of prompts its value is a least one: distances from it tell nothing.
    """
    last = state.left
    if last is None:
        return state
    noise = max(left.error, _noise(state))
    step = abs(left.value - last)
    largest = LARGEST * math.sqrt(2.0) * noise or step
    squares = state.squares + min(largest, step) ** 2 / 2.0
    state = replace(state, steps=state.steps + 1, squares=squares)
    if state.prompts_now != state.prompts:
        return state
    limit = LARGEST * max(noise, _wander(state, expected))
    before, now = (min(limit, max(-limit, one - 1.0)) for one in (last, left.value))
    return replace(state, pairs=state.pairs + 1, products=state.products + before * now)


def _noise(state: WarningState) -> float:
    """Spread of a share about its neighbours."""
    return math.sqrt(state.squares / state.steps) if state.steps else 0.0


def _wander(state: WarningState, expected: float) -> float:
    """Spread of what persists from one share to the next; independent noise adds nothing to it."""
    total = EXPECTED_WEIGHT * expected**2 + max(0.0, state.products)
    return math.sqrt(total / (EXPECTED_WEIGHT + state.pairs))


def _measurements(metrics: Mapping[str, float]) -> tuple[Measurement, Measurement]:
    """MI in nats per token, and retrieval."""
    mi = Measurement(metrics["mi_estimate"], _error(metrics, "mi_estimate"))
    return mi, _retrieval(metrics)


def _retrieval(metrics: Mapping[str, float]) -> Measurement:
    """Retrieval as the share of what is above chance: 0 at chance, 1 when perfect, for any P."""
    above_chance = 1.0 - metrics["retrieval_chance"]
    value = (metrics["retrieval_accuracy"] - metrics["retrieval_chance"]) / above_chance
    return Measurement(value, _error(metrics, "retrieval_accuracy") / above_chance)


def _error(metrics: Mapping[str, float], name: str) -> float:
    if f"{name}_low" not in metrics:
        return 0.0
    return (metrics[f"{name}_high"] - metrics[f"{name}_low"]) / (2.0 * Z95)


def _loss(state: WarningState) -> str:
    """What raised the alarm, for a reader who has not seen the curve."""
    mi, retrieval = state.mi, state.retrieval
    return (
        f"grounding is being lost: mutual information fell to {mi.last:.3g} from a baseline of "
        f"{mi.here:.3g} nats per token, retrieval above chance to {retrieval.last:.2f} from "
        f"{retrieval.here:.2f} (1 is perfect, 0 is chance)"
    )


def _absence(state: WarningState) -> str:
    return (
        "reasoning was never grounded, so there is nothing to lose: since the first of "
        f"{state.num} measurements it is at chance, with at most "
        f"{_highest_above_chance(state):.0%} of the possible retrieval above it (95%)"
    )


def _can_tell(num_traces: float, num_prompts: float) -> bool:
    """Whether perfect retrieval would be significant: its chance is one in the number of assignments."""
    each = num_traces / num_prompts
    log_chance = num_prompts * math.lgamma(each + 1.0) - math.lgamma(num_traces + 1.0)
    return log_chance <= math.log(SIGNIFICANT)
