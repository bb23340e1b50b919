"""Question 4 of the examination: is reasoning about its prompt, how much of it, since when, was it ever?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.diagnostics.judging.answers import Answer, Question, Status
from ragen2.diagnostics.judging.causes import Cause
from ragen2.diagnostics.judging.detectors import LATEST, StepMetrics, entropy_gaming
from ragen2.diagnostics.judging.regime import Regime, regime

COLLAPSED = {Regime.TEMPLATE_COLLAPSE, Regime.LOW_ENTROPY_COLLAPSE}
SCORES = ("retrieval_p_value", "mi_p_value", "conditional_entropy_seq", "num_traces", "num_prompts")
LEFT = 0.7
"""Part of the share at the start below which part of the reasoning has collapsed."""


@dataclass(frozen=True, slots=True)
class Period:
    """Steps in which grounding stayed the same, pooled."""

    first_step: int
    last_step: int
    regime: str
    share: float
    low: float
    high: float
    num_steps: int


def is_reasoning_grounded(records: Sequence[StepMetrics], scope: str) -> Answer:
    """How much of the reasoning depends on its prompt now, against what it once was."""
    ask, metric = Question.GROUNDED, f"collapse/{scope}/retrieval_accuracy"
    found = periods(records, scope)
    if not found:
        return Answer(ask, Status.UNKNOWN, _why_not_measured(records, scope))
    now, before = found[-1], found[:-1]
    text = f"{_percent(now.share)} of reasoning traces are about their prompt"
    best = max(before, key=lambda one: one.share, default=None)
    if best is not None and best.share > now.high:
        text += f", {_percent(best.share)} at step {best.first_step} to {best.last_step}"
    sure = (
        f"95% interval {_percent(now.low)} to {_percent(now.high)}, over {now.num_steps} "
        f"step{'s' if now.num_steps > 1 else ''}."
    )
    if now.regime == Regime.UNDECIDED:
        why = "Too few traces were scored to tell whether reasoning is about its prompt."
        return Answer(ask, Status.UNKNOWN, why, metric=metric)
    cause = _cause(records, now, before)
    status = Status.YES if cause is None else Status.NO
    since = now.first_step if cause is not None else None
    return Answer(ask, status, f"{text}.", sure, since, cause, metric)


def _cause(records: Sequence[StepMetrics], now: Period, before: Sequence[Period]) -> Cause | None:
    if now.regime in {"partial", "weak"}:
        return Cause.PARTIAL_COLLAPSE
    if now.regime not in COLLAPSED:
        return None
    if all(one.regime in {*COLLAPSED, Regime.UNDECIDED} for one in before):
        return Cause.NEVER_GROUNDED
    if now.regime == Regime.LOW_ENTROPY_COLLAPSE:
        return Cause.LOW_ENTROPY_COLLAPSE
    gamed = entropy_gaming(records) is not None
    return Cause.ENTROPY_GAMING if gamed else Cause.TEMPLATE_COLLAPSE


def periods(records: Sequence[StepMetrics], scope: str) -> list[Period]:
    """Stretches of equal regime, after a running majority of five steps."""
    prefix = f"collapse/{scope}/"
    scored: list[tuple[int, dict[str, float]]] = []
    for record in records:
        plain = {
            name.removeprefix(prefix): value
            for name, value in record.metrics.items()
            if name.startswith(prefix)
        }
        if plain.keys() >= set(SCORES):
            scored.append((record.step, plain))
    if not scored:
        return []
    names = _smoothed(_named([plain for _, plain in scored]))
    starts = [0, *(i for i in range(1, len(names)) if names[i] != names[i - 1])]
    ends = [*starts[1:], len(names)]
    return [
        _pooled(names[start], scored[start:end]) for start, end in zip(starts, ends, strict=True)
    ]


def _named(scored: Sequence[Mapping[str, float]]) -> list[str]:
    """The regime of each step; ``partial`` where much of the start's share is gone."""
    shares = [_share(plain, "") for plain in scored]
    start = float(np.median(shares[: max(1, min(LATEST, len(shares) // 3))]))
    return [
        "partial" if (named := regime(plain)) not in COLLAPSED and share < LEFT * start else named
        for plain, share in zip(scored, shares, strict=True)
    ]


def _smoothed(names: Sequence[str]) -> list[str]:
    """Each name replaced by the commonest of the five around it; its own wins a tie."""
    found = []
    for index, name in enumerate(names):
        near = list(names[max(0, index - 2) : index + 3])
        found.append(max([name, *near], key=near.count))
    return found


def _pooled(name: str, scored: Sequence[tuple[int, Mapping[str, float]]]) -> Period:
    shares = np.array(
        [[_share(plain, end) for end in ("", "_low", "_high")] for _, plain in scored]
    )
    mean = float(shares[:, 0].mean())
    half = float((shares[:, 2] - shares[:, 1]).mean()) / 2.0 / np.sqrt(len(scored))
    return Period(
        scored[0][0],
        scored[-1][0],
        name,
        mean,
        max(0.0, mean - half),
        min(1.0, mean + half),
        len(scored),
    )


def _share(plain: Mapping[str, float], end: str) -> float:
    """The grounded share; where it was not measured, what retrieval has of all above chance."""
    if "grounded_share" in plain:
        return plain[f"grounded_share{end}"]
    chance = plain["retrieval_chance"]
    found = plain.get(f"retrieval_accuracy{end}", plain["retrieval_accuracy"])
    return max(0.0, (found - chance) / (1.0 - chance))


def _why_not_measured(records: Sequence[StepMetrics], scope: str) -> str:
    for record in reversed(records):
        for name, why in getattr(record, "absent", {}).items():
            if name.startswith(f"collapse/{scope}"):
                return f"Reasoning was not compared across prompts: {why}."
    return "No step compared reasoning across prompts."


def _percent(share: float) -> str:
    return f"{share:.0%}"
