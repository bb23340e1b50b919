"""Spread of rewards within a group: the one definition that filters and diagnostics share."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ragen2.types import FloatArray

Signal = Literal["reward_variance", "reward_std"]
ROUNDING = 1e-12
"""Spread below this share of the rewards' size is floating-point rounding, not signal."""


def spread(rewards_G: FloatArray, signal: Signal, ddof: int) -> float:
    """Variance or standard deviation of one group's rewards; 0 for a group of one.

    Rewards that differ only by floating-point rounding count as equal.
    """
    if len(rewards_G) < 2 or np.ptp(rewards_G) <= ROUNDING * max(
        1.0, float(np.abs(rewards_G).max())
    ):
        return 0.0
    variance = float(rewards_G.var(ddof=ddof))
    return variance if signal == "reward_variance" else float(np.sqrt(variance))
