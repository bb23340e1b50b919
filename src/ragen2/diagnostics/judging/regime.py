"""The four regimes: is reasoning diverse, and does it depend on its prompt?

No threshold here is a matter of taste. Each lies between a null (reasoning that ignores its prompt; a
prompt with one reasoning trace) and, where there is one, a baseline (the same run when it started, or a
reference model). With means m0, m1 and spreads s0, s1 of a single trace, the equal-error point

    t = (m0 s1 + m1 s0) / (s0 + s1)          so that (t - m0) / s0 = (m1 - t) / s1

calls a trace of either side wrongly equally often. It never lies beyond half way: a baseline of nearly no
spread must not make every smaller value a collapse. A baseline can only make a verdict stricter than the null
alone: one that is itself close to the null changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

from ragen2.diagnostics.statistics.resampling import Z95

SIGNIFICANT = 0.01
"""Permutation p-value at or below which retrieval, or MI, beats its null."""
ONE_REASONING = math.log(2.0)
"""Spread of H(Z|X) under the null of one trace per prompt: below two effective ones, it is one."""

ONE_SIDED = (
    "traces share no more words with their own prompt than with others, which does not show that they "
    "ignore it; log at least 3 replies per prompt, or pass --model"
)


class Regime(StrEnum):
    """Where a batch lies in the plane of H(Z|X) and I(X;Z)."""

    DIVERSE_GROUNDED = "diverse_grounded"
    """Varied reasoning that depends on the prompt: healthy."""
    TEMPLATE_COLLAPSE = "template_collapse"
    """Varied reasoning that ignores the prompt: entropy looks healthy, the agent is not."""
    COMPRESSED_GROUNDED = "compressed_grounded"
    """One reasoning trace per prompt, but the right one for it."""
    LOW_ENTROPY_COLLAPSE = "low_entropy_collapse"
    """One reasoning trace for everything."""
    UNDECIDED = "undecided"
    """Too few traces to tell: even perfect retrieval could be chance."""


def regime(metrics: Mapping[str, float], baseline: Mapping[str, float] | None = None) -> Regime:
    """Name the regime of what ``measure`` returned (without prefix).

    Grounded: retrieval and MI both beat their permutation null, and retrieval is nearer to the baseline
    than to chance. Diverse: a prompt has at least two effective traces, and H(Z|X) is nearer to the
    baseline than to that. A batch too small for either verdict on grounding is undecided.
    """
    is_grounded = beats_null(metrics) and not _is_below_baseline(metrics, baseline)
    if not beats_null(metrics) and not can_tell(metrics["num_traces"], metrics["num_prompts"]):
        return Regime.UNDECIDED
    is_diverse = metrics["conditional_entropy_seq"] >= diversity_threshold(baseline)
    if is_grounded:
        return Regime.DIVERSE_GROUNDED if is_diverse else Regime.COMPRESSED_GROUNDED
    if is_diverse and is_one_sided(metrics):
        return Regime.UNDECIDED
    return Regime.TEMPLATE_COLLAPSE if is_diverse else Regime.LOW_ENTROPY_COLLAPSE


def explain_regime(
    metrics: Mapping[str, float], baseline: Mapping[str, float] | None = None
) -> str:
    """Why ``regime`` gave its verdict, in one line with the numbers."""
    verdict = regime(metrics, baseline)
    name = verdict.value.replace("_", " ")
    if verdict is Regime.UNDECIDED and is_one_sided(metrics):
        return f"{name}: {ONE_SIDED}"
    if verdict is Regime.UNDECIDED:
        return (
            f"{name}: {metrics['num_traces']:.0f} traces of {metrics['num_prompts']:.0f} prompts "
            "are too few, even perfect retrieval could be chance"
        )
    return f"{name}: {_grounding_words(metrics, baseline)}; {_diversity_words(metrics, baseline)}"


def is_one_sided(metrics: Mapping[str, float]) -> bool:
    """Whether scores were of words shared with the prompt alone: without any, nothing is known."""
    return metrics.get("one_sided", 0.0) > 0.0


def beats_null(metrics: Mapping[str, float]) -> bool:
    """Whether retrieval and MI are both larger than shuffled owners would give."""
    worst = max(metrics["retrieval_p_value"], metrics["mi_p_value"])
    return worst <= SIGNIFICANT and metrics["retrieval_above_chance"] > 0.0


def can_tell(num_traces: float, num_prompts: float) -> bool:
    """Whether perfect retrieval would be significant: its chance is one in the number of assignments."""
    each = num_traces / num_prompts
    log_chance = num_prompts * math.lgamma(each + 1.0) - math.lgamma(num_traces + 1.0)
    return log_chance <= math.log(SIGNIFICANT)


def retrieval_threshold(
    metrics: Mapping[str, float], baseline: Mapping[str, float] | None
) -> float | None:
    """Retrieval at the equal-error point between chance and the baseline; None without one.

    A baseline of a single prompt is none. One of another number of prompts is carried over by its share of
    what is above chance.
    """
    if baseline is None or baseline["num_prompts"] < 2.0:
        return None
    chance = metrics["retrieval_chance"]
    scale = (1.0 - chance) / (1.0 - baseline["retrieval_chance"])
    mean = chance + scale * (baseline["retrieval_accuracy"] - baseline["retrieval_chance"])
    spread = scale * _retrieval_spread(baseline)
    return equal_error_point(chance, math.sqrt(chance * (1.0 - chance)), mean, spread)


def diversity_threshold(baseline: Mapping[str, float] | None) -> float:
    """H(Z|X) per sequence, in nats, from which reasoning is diverse; log 2 without a baseline.

    The baseline's spread counts as no less than the null's, or one of equally likely traces would make
    every smaller entropy a loss.
    """
    spread = None if baseline is None else _trace_spread(baseline, "conditional_entropy_seq")
    if baseline is None or spread is None:
        return ONE_REASONING
    wide, mean = max(ONE_REASONING, spread), baseline["conditional_entropy_seq"]
    return max(ONE_REASONING, equal_error_point(0.0, ONE_REASONING, mean, wide))


def equal_error_point(mean0: float, spread0: float, mean1: float, spread1: float) -> float:
    """Where both sides are equally many of their own spreads away, at most half way to the second."""
    point = (mean0 * spread1 + mean1 * spread0) / (spread0 + spread1)
    return min(point, (mean0 + mean1) / 2.0) if mean1 >= mean0 else point


def _is_below_baseline(metrics: Mapping[str, float], baseline: Mapping[str, float] | None) -> bool:
    threshold = retrieval_threshold(metrics, baseline)
    return threshold is not None and metrics["retrieval_accuracy"] < threshold


def _retrieval_spread(metrics: Mapping[str, float]) -> float:
    """Of one trace: what the interval says, and at least that of one more hit and one more miss.

    Without the second part, a baseline of 100% would have no spread, and 99% would be a collapse.
    """
    num = metrics["num_traces"]
    share = (metrics["retrieval_accuracy"] * num + 1.0) / (num + 2.0)
    least = math.sqrt(share * (1.0 - share))
    return max(least, _trace_spread(metrics, "retrieval_accuracy") or 0.0)


def _trace_spread(metrics: Mapping[str, float], name: str) -> float | None:
    """Spread of one trace, from the interval of the mean over all; None when there is no interval."""
    if f"{name}_low" not in metrics:
        return None
    error = (metrics[f"{name}_high"] - metrics[f"{name}_low"]) / (2.0 * Z95)
    return error * math.sqrt(metrics["num_traces"])


def _grounding_words(metrics: Mapping[str, float], baseline: Mapping[str, float] | None) -> str:
    found, chance = metrics["retrieval_accuracy"], metrics["retrieval_chance"]
    worst = max(metrics["retrieval_p_value"], metrics["mi_p_value"])
    if not beats_null(metrics):
        return (
            f"retrieval {found:.2f} with chance {chance:.2f} does not beat its null (p {worst:.2g})"
        )
    threshold = retrieval_threshold(metrics, baseline)
    if threshold is None or baseline is None:
        return f"retrieval {found:.2f} beats chance {chance:.2f} (p {worst:.2g})"
    side = "below" if found < threshold else "not below"
    return (
        f"retrieval {found:.2f} is {side} {threshold:.2f}, the equal-error point between chance "
        f"{chance:.2f} and the baseline's {baseline['retrieval_accuracy']:.2f}"
    )


def _diversity_words(metrics: Mapping[str, float], baseline: Mapping[str, float] | None) -> str:
    entropy, least = metrics["conditional_entropy_seq"], diversity_threshold(baseline)
    side = "not below" if entropy >= least else "below"
    return f"H(Z|X) of {entropy:.1f} nats per trace is {side} {least:.1f}"
