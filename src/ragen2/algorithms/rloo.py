"""RLOO (Ahmadian et al. 2024): REINFORCE whose baseline is the mean of the *other* members of the group.

Unlike GRPO's, this baseline does not contain the reward it is subtracted from, so the gradient is unbiased
also for small groups; and nothing is divided by the std.
"""

from __future__ import annotations

from typing import Literal

from ragen2.algorithms.advantages import leave_one_out_advantages
from ragen2.algorithms.base import GroupAlgorithm
from ragen2.types import FloatArray


class RLOO(GroupAlgorithm):
    """Leave-one-out returns."""

    kind: Literal["rloo"] = "rloo"

    def advantages(self, rewards_G: FloatArray) -> FloatArray:
        """Each return minus the mean of the others."""
        return leave_one_out_advantages(rewards_G)
