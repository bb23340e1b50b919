"""Failures that show across the steps of a run: each found, dated, and reported with its numbers.

A detector reads what was recorded and nothing else. Its thresholds are those of tests (a p-value at or
below ``SIGNIFICANT`` against a null) and of the run's own beginning; where a smallest size worth reporting
is a matter of taste, it is a named constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ragen2.diagnostics.base import StepMetrics
from ragen2.diagnostics.judging.periods import periods
from ragen2.diagnostics.judging.regime import COLLAPSED, SIGNIFICANT, Regime
from ragen2.diagnostics.statistics.trends import departure, trend

Severity = Literal["warning", "severe"]

SMALLEST_SHRINKAGE = 0.1
"""Share of the reasoning's length whose loss is worth reporting."""
SMALLEST_OSCILLATION = 0.1
"""Share of turns going back and forth, beyond the null, that is worth reporting."""
SMALLEST_STUCK_RISE = 0.05
"""Rise in the share of repeated turns without effect that is worth reporting."""
SMALLEST_COPY = 0.1
"""Share of reasoning copied from its prompt that is worth asking what else there is."""
LARGEST_COPY = 0.5
"""Share of reasoning copied from its prompt that is worth reporting where the rest cannot be compared."""
SMALLEST_REST = 0.2
"""Dependence on the prompt, of what was not copied, that a batch must be able to show (0 none, 1 full)."""
SMALLEST_OWN_NUMBERS = 0.2
"""Share of numbers that reasoning takes from its prompt, beyond chance, that a batch must be able to show."""
LATEST = 5
"""Newest measurements that stand for the present."""
LOST = 0.05
"""A link that once was significant counts as lost when its newest p-values are above this."""
BLIND = 0.5
"""How often the own image beats another one where reasoning does not depend on it: a coin flip."""
_REGIME_WORDS = {
    Regime.LOW_ENTROPY_COLLAPSE: "Reasoning is the same whatever the prompt",
    Regime.TEMPLATE_COLLAPSE: "Reasoning varies, but does not depend on its prompt",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One failure, as far as the records show it."""

    name: str
    since_step: int
    severity: Severity
    text: str
    evidence: Mapping[str, float]
    """The numbers the finding rests on."""


def find_failures(records: Sequence[StepMetrics]) -> list[Finding]:
    """All failures that the records show, the severe ones first.

    A detector whose metrics were not recorded, or not often enough to tell, finds nothing.
    """
    found = [finding for detect in DETECTORS if (finding := detect(records)) is not None]
    return sorted(found, key=lambda finding: finding.severity != "severe")


def reasoning_shrinkage(records: Sequence[StepMetrics]) -> Finding | None:
    """Reasoning gets shorter step by step: the outward sign of collapse in the paper's runs."""
    unit = "tokens"
    steps, values = series(records, "rollout/reasoning_tokens")
    if not values:  # a log has words where a run has tokens
        unit = "words"
        steps, values = series(records, "rollout/reasoning_words")
    found = trend(values)
    if found is None or found.p_falling > SIGNIFICANT or found.start <= 0.0:
        return None
    drop = -found.change / found.start
    if drop < SMALLEST_SHRINKAGE:
        return None
    return Finding(
        "reasoning_shrinkage",
        departure(steps, values, found),
        "severe" if drop >= 0.5 else "warning",
        f"Reasoning shrinks: {found.start:.1f} {unit} per reply in the first third of the run, "
        f"{found.end:.1f} in the last (p = {found.p_falling:.2g})",
        {"start": found.start, "end": found.end, "drop": drop, "p_value": found.p_falling},
    )


def entropy_gaming(records: Sequence[StepMetrics]) -> Finding | None:
    """Entropy rises while information about the prompt falls: variety that serves nothing."""
    prefix = "collapse/first_turn/"
    steps, information = series(records, f"{prefix}mi_estimate")
    entropy_name = f"{prefix}conditional_entropy"
    if not series(records, entropy_name)[1]:
        entropy_name = "update/entropy"
    entropy = series(records, entropy_name)[1]
    up, down = trend(entropy), trend(information)
    if up is None or down is None or max(up.p_rising, down.p_falling) > SIGNIFICANT:
        return None
    if abs(down.change) <= noise_of_change(records, f"{prefix}mi_estimate"):
        return None
    if up.change <= noise_of_change(records, entropy_name):
        return None
    return Finding(
        "entropy_gaming",
        departure(steps, information, down),
        "severe" if down.end <= down.start / 2.0 else "warning",
        f"Entropy rises ({up.start:.3f} to {up.end:.3f} nats per token) while information about the "
        f"prompt falls ({down.start:.3f} to {down.end:.3f}): the variety is not about the task",
        {
            "entropy_start": up.start,
            "entropy_end": up.end,
            "entropy_p_value": up.p_rising,
            "information_start": down.start,
            "information_end": down.end,
            "information_p_value": down.p_falling,
        },
    )


def reasoning_collapse(records: Sequence[StepMetrics]) -> Finding | None:
    """The present period of the run is one without grounded reasoning, low-entropy or template."""
    found = periods(records)
    if not found or found[-1].regime not in COLLAPSED or found[-1].num_steps < 2:
        return None
    now = found[-1]
    evidence = {"grounded_share": now.share, "low": now.low, "high": now.high}
    return Finding(now.regime.value, now.since, "severe", _REGIME_WORDS[now.regime], evidence)


def action_oscillation(records: Sequence[StepMetrics]) -> Finding | None:
    """Turns go back and forth, more often than the same turns in random order would."""
    steps, share = series(records, "rollout/oscillation")
    null = series(records, "rollout/oscillation_null")[1]
    p_values = series(records, "rollout/oscillation_p_value")[1]
    if len(share) < LATEST or not len(share) == len(null) == len(p_values):
        return None
    excess = np.array(share) - np.array(null)
    now = float(excess[-LATEST:].mean())
    p_now = float(np.median(p_values[-LATEST:]))
    if p_now > SIGNIFICANT or now < SMALLEST_OSCILLATION:
        return None
    is_small = np.flatnonzero(
        np.convolve(excess, np.ones(LATEST) / LATEST, "valid") < SMALLEST_OSCILLATION
    )
    since = steps[int(is_small[-1]) + 1 if len(is_small) else 0]
    level = float(np.mean(share[-LATEST:]))
    return Finding(
        "action_oscillation",
        since,
        "severe" if level >= 0.5 else "warning",
        f"Actions go back and forth: {level:.0%} of turns repeat the last but one, "
        f"{level - now:.0%} would in random order",
        {"oscillation": level, "excess": now, "p_value": p_now},
    )


def stuck_actions(records: Sequence[StepMetrics]) -> Finding | None:
    """More and more turns repeat an action that changed nothing."""
    steps, values = series(records, "rollout/stuck")
    found = trend(values)
    if found is None or found.p_rising > SIGNIFICANT or found.change < SMALLEST_STUCK_RISE:
        return None
    return Finding(
        "stuck_actions",
        departure(steps, values, found),
        "severe" if found.end >= 0.5 else "warning",
        f"Actions without effect are repeated: in {found.start:.0%} of turns in the first third of the "
        f"run, {found.end:.0%} in the last (p = {found.p_rising:.2g})",
        {"start": found.start, "end": found.end, "p_value": found.p_rising},
    )


def unused_reasoning(records: Sequence[StepMetrics]) -> Finding | None:
    """Actions followed the reasoning once; they no longer do."""
    return _lost_link(
        records,
        "unused_reasoning",
        "reasoning_action_swap",
        "Actions no longer follow the reasoning: another prompt's reasoning makes them no less likely",
    )


def input_blind_actions(records: Sequence[StepMetrics]) -> Finding | None:
    """Actions depended on the prompt once; they no longer do."""
    return _lost_link(
        records,
        "input_blind_actions",
        "input_action",
        "Actions no longer depend on the prompt",
    )


def image_blind_reasoning(records: Sequence[StepMetrics]) -> Finding | None:
    """The image made its reasoning likelier than another would once; it no longer does."""
    steps, low = series(records, "vision/first_turn/grounding_low")
    share = series(records, "vision/first_turn/grounding")[1]
    if len(low) < 4 or min(low[:2]) <= BLIND or max(low[-2:]) > BLIND:
        return None
    looked = [index for index, value in enumerate(low) if value > BLIND]
    return Finding(
        "image_blind_reasoning",
        steps[looked[-1] + 1],
        "severe",
        "Reasoning no longer depends on the image: it is as likely after another one",
        {"first_grounding": share[0], "last_grounding": share[-1]},
    )


def reasoning_echo(records: Sequence[StepMetrics]) -> Finding | None:
    """Reasoning copies its prompt, and what it adds is the same whatever the prompt."""
    steps, copied = series(records, "rollout/copied_ratio")
    rest = series(records, "rollout/rest_dependence")[1]
    p_values = series(records, "rollout/rest_p_value")[1]
    if not copied:
        return None
    can_compare = len(copied) == len(rest) == len(p_values)
    least = SMALLEST_COPY if can_compare else LARGEST_COPY

    def echoes(newest: slice) -> bool:
        if np.mean(copied[newest]) < least:
            return False
        return not can_compare or bool(
            np.median(p_values[newest]) > LOST and np.mean(rest[newest]) < SMALLEST_REST
        )

    since = _holds_since(steps, echoes)
    if since is None:
        return None
    now = float(np.mean(copied[-LATEST:]))
    found = {"copied_ratio": now}
    text = f"Reasoning copies its prompt: {now:.0%} of its words stand there verbatim"
    if can_compare:
        found |= {"rest_dependence": float(np.mean(rest[-LATEST:])), "p_value": p_values[-1]}
        text += ", and the others do not depend on it"
    return Finding("reasoning_echo", since, "severe" if can_compare else "warning", text, found)


def misgrounded_reasoning(records: Sequence[StepMetrics]) -> Finding | None:
    """Reasoning is about numbers, but no more about its prompt's than about another's."""
    name = "rollout/own_numbers"
    steps, own = series(records, name)
    low, high = (series(records, f"{name}_{end}")[1] for end in ("low", "high"))
    foreign = series(records, "rollout/foreign_numbers")[1]
    if not own or not len(own) == len(low) == len(high) == len(foreign):
        return None

    def is_elsewhere(newest: slice) -> bool:
        error = float(np.hypot.reduce((np.array(high) - np.array(low))[newest] / 2.0))
        mean, width = float(np.mean(own[newest])), error / len(own[newest])
        return mean - width <= 0.0 and mean + width < SMALLEST_OWN_NUMBERS

    since = _holds_since(steps, is_elsewhere)
    if since is None:
        return None
    now = float(np.mean(foreign[-LATEST:]))
    return Finding(
        "misgrounded_reasoning",
        since,
        "severe",
        f"Reasoning is about other numbers than its prompt's: {now:.0%} of them are neither there nor "
        "one operation away, no fewer than under another prompt",
        {"foreign_numbers": now, "own_numbers": float(np.mean(own[-LATEST:]))},
    )


DETECTORS: tuple[Callable[[Sequence[StepMetrics]], Finding | None], ...] = (
    reasoning_collapse,
    entropy_gaming,
    reasoning_shrinkage,
    action_oscillation,
    stuck_actions,
    unused_reasoning,
    input_blind_actions,
    image_blind_reasoning,
    reasoning_echo,
    misgrounded_reasoning,
)


def series(records: Sequence[StepMetrics], name: str) -> tuple[list[int], list[float]]:
    """Steps at which a metric was recorded, and its values there."""
    there = [record for record in records if name in record.metrics]
    return [record.step for record in there], [record.metrics[name] for record in there]


def noise_of_change(records: Sequence[StepMetrics], name: str) -> float:
    """How far the first and the last third of a metric may differ by what its intervals allow (95%).

    0 for a metric without intervals.
    """
    low, high = (series(records, f"{name}_{end}")[1] for end in ("low", "high"))
    if not low or len(low) != len(high):
        return 0.0
    # A 95% interval is 2 x 1.96 standard errors wide; errors of the two thirds add as independent ones.
    variance = ((np.array(high) - np.array(low)) / 3.92) ** 2
    third = max(len(variance) // 3, 1)
    ends = variance[:third].mean() / third + variance[-third:].mean() / third
    return float(1.96 * np.sqrt(ends))


def _holds_since(steps: Sequence[int], holds: Callable[[slice], bool]) -> int | None:
    """Step since which a claim about ``LATEST`` measurements holds, their middle; None if not now."""
    since = None
    for end in range(len(steps), 0, -1):
        if not holds(slice(max(0, end - LATEST), end)):
            break
        since = steps[max(0, end - 1 - LATEST // 2)]
    return since


def _lost_link(
    records: Sequence[StepMetrics], name: str, metric: str, words: str
) -> Finding | None:
    """A link whose first two measurements were significant and whose last two are not nearly so."""
    full = f"flow/first_turn/{metric}_p_value"
    steps, p_values = series(records, full)
    if len(p_values) < 4 or max(p_values[:2]) > SIGNIFICANT or min(p_values[-2:]) <= LOST:
        return None
    held = [index for index, p_value in enumerate(p_values) if p_value <= SIGNIFICANT]
    since = steps[held[-1] + 1]
    evidence = {"first_p_value": p_values[0], "last_p_value": p_values[-1]}
    return Finding(name, since, "severe", words, evidence)
