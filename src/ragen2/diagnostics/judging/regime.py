"""The regimes: is reasoning diverse, how much of it depends on its prompt, and could this batch have told?

The grounded share with its 95% interval [low, high] decides:

    undecided   low is 0 and high above a half, or low is below a quarter and high above three quarters
    grounded    high is at least three quarters, and the estimate too or low at least a half
    collapsed   low is 0, so that high is at most a half; or estimate at most a tenth, high at most a quarter
    weak        high is below a half
    partial     anything else
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from ragen2.diagnostics.metrics.grounding import GroundedShare

SIGNIFICANT = 0.01
"""P-value at or below which a null is rejected, here and in the detectors."""
HALF = 0.5
"""Share of traces that divides grounded from not; a log must be able to show it."""
HARDLY = 0.1
"""Share that counts as none: a template that keeps a trace of some prompts."""
FEW, MOST = 0.25, 0.75
"""An interval that reaches from below the first to above the second tells nothing."""
ONE_TRACE = math.log(2.0)
"""H(Z|X) in nats below which a prompt has less than two traces in effect: it has one."""


class Regime(StrEnum):
    """Where a batch lies in the plane of H(Z|X) and I(X;Z)."""

    DIVERSE_GROUNDED = "diverse_grounded"
    """Varied reasoning, most of which depends on its prompt: healthy."""
    COMPRESSED_GROUNDED = "compressed_grounded"
    """One reasoning trace per prompt, but the right one for it."""
    PARTIAL = "partial"
    """Part of the reasoning depends on its prompt, part does not."""
    WEAK = "weak"
    """Most reasoning ignores its prompt, some does not."""
    TEMPLATE_COLLAPSE = "template_collapse"
    """Varied reasoning that ignores the prompt: entropy looks healthy, the agent is not."""
    LOW_ENTROPY_COLLAPSE = "low_entropy_collapse"
    """One reasoning trace for everything."""
    UNDECIDED = "undecided"
    """The traces cannot tell most from hardly any."""


GROUNDED = frozenset({Regime.DIVERSE_GROUNDED, Regime.COMPRESSED_GROUNDED})
COLLAPSED = frozenset({Regime.TEMPLATE_COLLAPSE, Regime.LOW_ENTROPY_COLLAPSE})


def regime(metrics: Mapping[str, float]) -> Regime:
    """Name the regime of what ``measure`` returned (without prefix); of one prompt nothing is known."""
    if "grounded_share" not in metrics:
        return Regime.UNDECIDED
    found = GroundedShare(
        metrics["grounded_share"], metrics["grounded_share_low"], metrics["grounded_share_high"]
    )
    return name_regime(found, Entropies.of(metrics))


@dataclass(frozen=True, slots=True)
class Entropies:
    """H(Z|X) and H(Z) in nats per trace; one that is not known is infinite."""

    of_prompt: float = math.inf
    of_all: float = math.inf

    @classmethod
    def of(cls, metrics: Mapping[str, float]) -> Entropies:
        """Those of ``measure``."""
        names = ("conditional_entropy_seq", "reasoning_entropy_seq")
        return cls(*(metrics.get(name, math.inf) for name in names))

    @classmethod
    def median(cls, several: Sequence[Entropies]) -> Entropies:
        """The median of each."""
        return cls(median(e.of_prompt for e in several), median(e.of_all for e in several))

    @property
    def is_diverse(self) -> bool:
        """Whether a prompt has more than one trace in effect."""
        return self.of_prompt >= ONE_TRACE

    @property
    def is_constant(self) -> bool:
        """Whether all prompts together have one trace: no ranks are needed to see that."""
        return self.of_all < ONE_TRACE / 2.0


def name_regime(found: GroundedShare, entropies: Entropies) -> Regime:
    """The regime of a grounded share."""
    if found.low <= 0.0 and entropies.is_constant:
        return Regime.LOW_ENTROPY_COLLAPSE
    if (found.low <= 0.0 and found.high > HALF) or (found.low < FEW and found.high > MOST):
        return Regime.UNDECIDED
    is_diverse = entropies.is_diverse
    if found.high >= MOST and (found.low >= HALF or found.share >= MOST):
        return Regime.DIVERSE_GROUNDED if is_diverse else Regime.COMPRESSED_GROUNDED
    if found.low <= 0.0 or (found.share <= HARDLY and found.high <= FEW):
        return Regime.TEMPLATE_COLLAPSE if is_diverse else Regime.LOW_ENTROPY_COLLAPSE
    return Regime.WEAK if found.high < HALF else Regime.PARTIAL


def explain_regime(metrics: Mapping[str, float]) -> str:
    """Why ``regime`` gave its verdict, in one line with the numbers."""
    name = regime(metrics).value.replace("_", " ")
    if "grounded_share" not in metrics:
        return f"{name}: there is one prompt, and nothing to compare it with"
    low, high = metrics["grounded_share_low"], metrics["grounded_share_high"]
    text = (
        f"{name}: {metrics['grounded_share']:.0%} of traces are grounded (95% {low:.0%} to {high:.0%}); "
        f"{metrics['num_traces']:.0f} traces of {metrics['num_prompts']:.0f} prompts would have shown "
        f"{metrics['grounded_share_detectable']:.0%}"
    )
    if "conditional_entropy_seq" in metrics:
        text += f"; H(Z|X) is {metrics['conditional_entropy_seq']:.1f} nats per trace"
    return text
