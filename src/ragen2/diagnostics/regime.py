"""The four regimes: is reasoning diverse, and does it depend on its prompt?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

import numpy as np

SIGNIFICANT = 0.01
"""Permutation p-value of retrieval at or below which reasoning counts as dependent on its prompt."""
FEWEST_REASONINGS = 2.0
"""``exp H(Z|X)`` per sequence: the effective number of reasonings a prompt has. Below two, it is one."""


class Regime(StrEnum):
    """Where a batch lies in the plane of H(Z|X) and I(X;Z)."""

    DIVERSE_GROUNDED = "diverse_grounded"
    """Varied reasoning that depends on the prompt: healthy."""
    TEMPLATE_COLLAPSE = "template_collapse"
    """Varied reasoning that ignores the prompt: entropy looks healthy, the agent is not."""
    COMPRESSED_GROUNDED = "compressed_grounded"
    """One reasoning a prompt, but the right one for it."""
    LOW_ENTROPY_COLLAPSE = "low_entropy_collapse"
    """One reasoning for everything."""
    UNDECIDED = "undecided"
    """Too few traces to tell: even perfect retrieval could be chance."""


def regime(metrics: Mapping[str, float]) -> Regime:
    """Name the regime of what ``measure`` returned (without prefix).

    Grounded means that retrieval beats its permutation null; diverse means that a prompt has at least
    two effective reasonings. A batch too small for either verdict on grounding is undecided.
    """
    is_grounded = (
        metrics["retrieval_p_value"] <= SIGNIFICANT and metrics["retrieval_above_chance"] > 0.0
    )
    is_diverse = metrics["conditional_entropy_seq"] >= np.log(FEWEST_REASONINGS)
    if not is_grounded and not _can_tell(metrics["num_traces"], metrics["num_prompts"]):
        return Regime.UNDECIDED
    if is_grounded:
        return Regime.DIVERSE_GROUNDED if is_diverse else Regime.COMPRESSED_GROUNDED
    return Regime.TEMPLATE_COLLAPSE if is_diverse else Regime.LOW_ENTROPY_COLLAPSE


def _can_tell(num_traces: float, num_prompts: float) -> bool:
    """Whether perfect retrieval would be significant: its chance is one in the ways to deal traces out."""
    each = num_traces / num_prompts
    log_chance = num_prompts * math.lgamma(each + 1.0) - math.lgamma(num_traces + 1.0)
    return log_chance <= math.log(SIGNIFICANT)
