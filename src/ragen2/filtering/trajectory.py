"""Trajectory: the control experiment that drops rollouts instead of prompts.

Keeps every prompt and, of each, the best and the worst rollouts. If the prompt filter only helped by
training on less, or on more extreme rollouts, this would help as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from ragen2.filtering.base import Filter, mask_of
from ragen2.types import BoolArray, FloatArray


class TrajectoryControl(Filter):
    """Of each group, ``share`` of the members: half from the top of its rewards, half from the bottom."""

    kind: Literal["trajectory"] = "trajectory"
    share: float = Field(0.5, gt=0.0, le=1.0, description="share of each group's rollouts to keep")

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """All prompts."""
        return np.ones(len(scores_P), dtype=np.bool_)

    def members(self, rewards_PG: Sequence[FloatArray]) -> tuple[BoolArray, ...]:
        """The top half of the share is the larger when it is odd; ties keep their order."""
        return tuple(self._of_group(rewards_G) for rewards_G in rewards_PG)

    def _of_group(self, rewards_G: FloatArray) -> BoolArray:
        wanted = max(1, round(self.share * len(rewards_G)))
        order = np.argsort(-rewards_G, kind="stable").tolist()
        top = (wanted + 1) // 2
        return mask_of([*order[:top], *order[len(order) - (wanted - top) :]], len(rewards_G))
