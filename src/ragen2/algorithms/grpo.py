"""GRPO and its relatives: the baseline is made of the group's own rewards; no critic.

GRPO: Shao et al. 2024 (DeepSeekMath). DAPO: Yu et al. 2025. Dr. GRPO: Liu et al. 2025. RLOO: Ahmadian et
al. 2024.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ragen2.algorithms.base import GroupAlgorithm
from ragen2.algorithms.functions import Aggregation, group_advantages, leave_one_out_advantages
from ragen2.types import FloatArray


class GRPO(GroupAlgorithm):
    """Group-relative policy optimisation: returns centred and scaled within their group."""

    kind: Literal["grpo"] = "grpo"
    scale_by_std: bool = Field(True, description="divide advantages by the group's reward std")

    def advantages(self, rewards_G: FloatArray) -> FloatArray:
        """Centred (and scaled) returns."""
        return group_advantages(rewards_G, scale_by_std=self.scale_by_std)


class DAPO(GroupAlgorithm):
    """Scaled group advantages, clip-higher, each token of the batch counts the same."""

    kind: Literal["dapo"] = "dapo"
    overlong_buffer: int = Field(
        16,
        ge=0,
        description="tokens before the limit where a reply starts to be punished; 0 is off",
    )

    def advantages(self, rewards_G: FloatArray) -> FloatArray:
        """Centred and scaled returns, as in GRPO."""
        return group_advantages(rewards_G, scale_by_std=True)


class DrGRPO(GroupAlgorithm):
    """Centred returns, constant-length loss."""

    kind: Literal["dr_grpo"] = "dr_grpo"
    clip_high: float = Field(0.2, gt=0.0, description="how far a ratio may rise above 1")
    aggregation: Aggregation = Field(
        "seq_mean_token_sum_norm", description="how token losses make the batch loss"
    )

    def advantages(self, rewards_G: FloatArray) -> FloatArray:
        """Centred returns."""
        return group_advantages(rewards_G, scale_by_std=False)


class RLOO(GroupAlgorithm):
    """REINFORCE whose baseline is the mean return of the other members of the group."""

    # Unlike GRPO's, this baseline does not contain the reward it is subtracted from, so the gradient is
    # unbiased also for small groups; and nothing is divided by the std.

    kind: Literal["rloo"] = "rloo"

    def advantages(self, rewards_G: FloatArray) -> FloatArray:
        """Each return minus the mean of the others."""
        return leave_one_out_advantages(rewards_G)
