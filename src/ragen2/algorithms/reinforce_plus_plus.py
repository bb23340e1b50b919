"""REINFORCE++ (Hu 2025): token returns normalised over the whole batch; no critic, no group needed.

Unlike GRPO its baseline and scale are those of the batch, so that a prompt whose rewards are all equal still
moves the policy unless `baseline = "group"` first subtracts each group's mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from ragen2.algorithms.base import Algorithm, Credit, Outcome
from ragen2.algorithms.functions import discounted_returns, whiten
from ragen2.types import FloatArray


class ReinforcePlusPlus(Algorithm):
    """Discounted returns of each token, whitened over all tokens of the batch."""

    kind: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    gamma: float = Field(1.0, gt=0.0, le=1.0, description="discount from token to token")
    baseline: Literal["none", "group"] = Field(
        "none",
        description="what is subtracted before whitening: nothing, or the group's mean return",
    )

    def credit(self, batch: Sequence[Sequence[Outcome]]) -> list[list[Credit]]:
        """Whitened returns; the order of groups and members is kept."""
        returns = [returns_T for group in batch for returns_T in self._group_returns(group)]
        advantages = iter(whiten(returns))
        return [[Credit(next(advantages)) for _ in group] for group in batch]

    def _group_returns(self, group: Sequence[Outcome]) -> list[FloatArray]:
        if self.baseline == "none":
            return [discounted_returns(one.rewards_T, self.gamma) for one in group]
        totals_G = np.array([one.total for one in group])
        return [
            np.full(int(one.lengths_K.sum()), total - totals_G.mean())
            for one, total in zip(group, totals_G, strict=True)
        ]
