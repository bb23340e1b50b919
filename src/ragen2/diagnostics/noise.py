"""How much of a prompt's reward variance is the policy's, and how much is luck.

Each member's actions are played again R times under other luck. One-way analysis of variance then splits
the variance of a return into what differs between members (policy) and what differs between replays of
one member (environment). Both estimates are unbiased for any G >= 2 and R >= 2; the policy's can come
out below 0 by chance. Letters: G members, R replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.types import FloatArray


@dataclass(frozen=True, slots=True)
class NoiseSplit:
    """Reward variance in two parts."""

    policy: float
    """Variance of members' expected returns: what choosing other actions changes."""
    environment: float
    """Mean variance of a return when its actions stay the same: luck."""

    @property
    def total(self) -> float:
        """What the variance of returns, each played once, estimates."""
        return self.policy + self.environment

    @property
    def environment_ratio(self) -> float | None:
        """Luck's part of the whole, in [0, 1]; None where nothing varies."""
        if self.total <= 0.0:
            return 1.0 if self.environment > 0.0 else None
        return min(1.0, self.environment / self.total)


def noise_split(returns_GR: FloatArray) -> NoiseSplit:
    """Split one prompt's variance: ``returns_GR[g, r]`` is replay r of member g's actions."""
    returns_GR = np.asarray(returns_GR, dtype=np.float64)
    if returns_GR.ndim != 2 or min(returns_GR.shape) < 2:
        raise ValueError(
            f"a split needs at least 2 members x 2 replays, got shape {returns_GR.shape}"
        )
    replays = returns_GR.shape[1]
    environment = float(returns_GR.var(axis=1, ddof=1).mean())
    between = float(returns_GR.mean(axis=1).var(ddof=1))
    return NoiseSplit(policy=between - environment / replays, environment=environment)


def mean_split(splits: Sequence[NoiseSplit]) -> NoiseSplit:
    """The batch's split: each part averaged over prompts, so it stays unbiased."""
    if not splits:
        raise ValueError("a mean split needs at least one prompt")
    return NoiseSplit(
        policy=float(np.mean([one.policy for one in splits])),
        environment=float(np.mean([one.environment for one in splits])),
    )
