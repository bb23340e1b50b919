"""DAPO (Yu et al. 2025): GRPO with a wider upper clip, token-level loss, no KL, and soft length punishment.

Its fourth part, dynamic sampling, belongs to the run: `rollout.resample_rounds` with the filter `nonzero`
plays more prompts until enough groups have mixed rewards. (The reference's runs called DAPO use a critic and
none of these four but the clip; ours is as published.)
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ragen2.algorithms.advantages import group_advantages
from ragen2.algorithms.base import GroupAlgorithm
from ragen2.types import FloatArray


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
