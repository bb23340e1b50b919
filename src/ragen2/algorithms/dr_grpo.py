"""Dr. GRPO (Liu et al. 2025): GRPO without its two biases.

Unlike GRPO it does not divide by the group's std (which favours prompts that are nearly always or nearly
never solved) nor by the length of each reply (which makes long wrong replies cheap): every sequence's
summed loss is divided by one constant.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ragen2.algorithms.advantages import group_advantages
from ragen2.algorithms.base import GroupAlgorithm
from ragen2.algorithms.losses import Aggregation
from ragen2.types import FloatArray


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
