"""Soft: no prompt is dropped; each counts in proportion to its signal.

Costs as much as no filter. The reference's `soft_advantage_reweight` is this with `signal = "reward_std"`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from ragen2.filtering.base import Filter
from ragen2.types import BoolArray, FloatArray


class Soft(Filter):
    """Advantages times signal over the greatest (or the mean) signal of the batch."""

    kind: Literal["soft"] = "soft"
    relative_to: Literal["max", "mean"] = Field(
        "max", description="`max`: weights up to 1; `mean`: weights whose mean is 1"
    )

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """Prompts whose weight would be 0 are not worth a pass."""
        return np.asarray(scores_P > 0.0)

    def weights(self, scores_P: FloatArray) -> FloatArray:
        """0 where there is no signal at all."""
        unit = scores_P.max() if self.relative_to == "max" else scores_P.mean()
        return np.asarray(scores_P / unit) if unit > 0.0 else np.zeros(len(scores_P))
