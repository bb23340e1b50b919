"""Question 4 of the examination: is reasoning about its prompt, how much of it, since when, was it ever?"""

from __future__ import annotations

from collections.abc import Sequence

from ragen2.diagnostics.base import StepMetrics
from ragen2.diagnostics.judging.answers import Answer, Question, Status
from ragen2.diagnostics.judging.causes import Cause
from ragen2.diagnostics.judging.detectors import entropy_gaming
from ragen2.diagnostics.judging.periods import ONE_SIDED, Period, periods
from ragen2.diagnostics.judging.regime import COLLAPSED, GROUNDED, Regime

GAMED = 1.5
"""Rise of entropy beside falling information from which the entropy is sought for its own sake."""


def is_reasoning_grounded(records: Sequence[StepMetrics], scope: str) -> Answer:
    """How much of the reasoning depends on its prompt now, against what it once was."""
    ask, metric = Question.GROUNDED, f"collapse/{scope}/grounded_share"
    found = periods(records, scope)
    if not found:
        return Answer(ask, Status.UNKNOWN, _why_not_measured(records, scope))
    now = found[-1]
    if now.regime is Regime.UNDECIDED:
        text = (
            f"{now.num_traces} traces of {now.num_prompts} prompts cannot tell whether reasoning is about "
            f"its prompt (95% interval {now.low:.0%} to {now.high:.0%} of traces); about "
            f"{now.traces_needed:,} would."
        )
        if now.is_one_sided:
            text = f"It is not known whether reasoning is about its prompt: {ONE_SIDED}."
        return Answer(ask, Status.UNKNOWN, text, metric=metric)
    before = [one for one in found if one.last_step < now.since]
    best = max(before, key=lambda one: one.share, default=now)
    text = now.what
    if best.low > now.high and now.as_at is None:
        text += f", {best.share:.0%} at step {best.first_step} to {best.last_step}"
    steps = f"{now.num_steps} step{'' if now.num_steps == 1 else 's'}"
    sure = (
        f"95% interval {now.low:.0%} to {now.high:.0%}, from {now.num_traces} traces of {steps}; a share of "
        f"{now.detectable:.0%} would have shown."
    )
    cause = _cause(records, now, before)
    if cause is None:
        return Answer(ask, Status.YES, f"{text}.", sure, metric=metric)
    return Answer(ask, Status.NO, f"{text}.", sure, now.since, cause, metric)


def _cause(records: Sequence[StepMetrics], now: Period, before: Sequence[Period]) -> Cause | None:
    if now.regime in GROUNDED:
        return None
    if now.regime not in COLLAPSED:
        return Cause.PARTIAL_COLLAPSE
    if all(one.regime in {*COLLAPSED, Regime.UNDECIDED} for one in before):
        return Cause.NEVER_GROUNDED
    if now.regime is Regime.LOW_ENTROPY_COLLAPSE:
        return Cause.LOW_ENTROPY_COLLAPSE
    return Cause.ENTROPY_GAMING if _is_gamed(records) else Cause.TEMPLATE_COLLAPSE


def _is_gamed(records: Sequence[StepMetrics]) -> bool:
    """Whether entropy rose by far more than lost information makes it: half of what it was."""
    found = entropy_gaming(records)
    if found is None:
        return False
    return found.evidence["entropy_end"] >= GAMED * found.evidence["entropy_start"]


def _why_not_measured(records: Sequence[StepMetrics], scope: str) -> str:
    for record in reversed(records):
        for name, why in getattr(record, "absent", {}).items():
            if name.startswith(f"collapse/{scope}"):
                return f"Reasoning was not compared across prompts: {why}."
    return "No step compared reasoning across prompts."
