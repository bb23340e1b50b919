"""GRPO (Shao et al. 2024, DeepSeekMath): the baseline is the group's own mean; no critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from ragen2.algorithms.advantages import group_advantages
from ragen2.algorithms.base import Algorithm, LossInputs, TokenLoss
from ragen2.algorithms.losses import (
    Aggregation,
    clipped_surrogate,
    is_clipped,
    kl_k3,
    token_weights,
)
from ragen2.types import FloatArray, Group


class GRPO(Algorithm):
    """Group-relative policy optimisation: one advantage for all tokens of a trajectory."""

    kind: Literal["grpo"] = "grpo"
    clip_low: float = Field(0.2, gt=0.0, lt=1.0, description="how far a ratio may fall below 1")
    clip_high: float = Field(0.28, gt=0.0, description="how far a ratio may rise above 1")
    scale_by_std: bool = Field(True, description="divide advantages by the group's reward std")
    aggregation: Aggregation = Field(
        "token_mean", description="how token losses make the batch loss"
    )

    def advantages(self, group: Group) -> FloatArray:
        """Centred (and scaled) returns."""
        return group_advantages(group.rewards_G, scale_by_std=self.scale_by_std)

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """Clipped surrogate, plus KL to the reference (k3), minus the entropy bonus."""
        given = (inputs.logp_N, inputs.old_logp_N, inputs.advantages_N)
        policy = clipped_surrogate(*given, clip_low=self.clip_low, clip_high=self.clip_high)
        clipped = is_clipped(*given, clip_low=self.clip_low, clip_high=self.clip_high)
        total = policy - self.entropy_coefficient * inputs.entropy_N
        parts = {"policy_loss": policy, "clip_fraction": clipped.double()}
        if inputs.ref_logp_N is not None:
            kl = kl_k3(inputs.logp_N, inputs.ref_logp_N)
            total = total + self.kl_coefficient * kl
            parts["kl"] = kl
        return TokenLoss(total, parts)

    def token_weights(self, lengths: Sequence[int]) -> FloatArray:
        """As ``aggregation`` says."""
        return token_weights(lengths, self.aggregation)
