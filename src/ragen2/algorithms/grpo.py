"""GRPO (Shao et al. 2024, DeepSeekMath): the baseline is the group's own mean; no critic."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ragen2.algorithms.advantages import group_advantages
from ragen2.algorithms.base import GroupAlgorithm
from ragen2.types import FloatArray


class GRPO(GroupAlgorithm):
    """Group-relative policy optimisation: returns centred and scaled within their group."""

    kind: Literal["grpo"] = "grpo"
    scale_by_std: bool = Field(True, description="divide advantages by the group's reward std")

    def advantages(self, rewards_G: FloatArray) -> FloatArray:
        """Centred (and scaled) returns."""
        return group_advantages(rewards_G, scale_by_std=self.scale_by_std)
