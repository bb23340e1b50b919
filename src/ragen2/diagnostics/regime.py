"""The four regimes: is reasoning diverse, and does it depend on its prompt?"""

from __future__ import annotations

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


def regime(metrics: Mapping[str, float]) -> Regime:
    """Name the regime of what ``measure`` returned (without prefix).

    Grounded means that retrieval beats its permutation null; diverse means that a prompt has at least
    two effective reasonings.
    """
    is_grounded = (
        metrics["retrieval_p_value"] <= SIGNIFICANT and metrics["retrieval_above_chance"] > 0.0
    )
    is_diverse = metrics["conditional_entropy_seq"] >= np.log(FEWEST_REASONINGS)
    if is_grounded:
        return Regime.DIVERSE_GROUNDED if is_diverse else Regime.COMPRESSED_GROUNDED
    return Regime.TEMPLATE_COLLAPSE if is_diverse else Regime.LOW_ENTROPY_COLLAPSE
