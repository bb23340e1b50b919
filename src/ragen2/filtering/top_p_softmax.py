"""Top-p by softmax: probability mass of softmax(signal), as the reference's main-table runs do it.

Unlike `top_p` it depends on the scale of rewards: with rewards around 10 it is sharp, with 0/1 rewards it is
nearly uniform and keeps almost everything, prompts without signal too. Here to reproduce those runs.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from ragen2.filtering.base import RankFilter, mask_of
from ragen2.spread import ROUNDING
from ragen2.types import BoolArray, FloatArray


class TopPSoftmax(RankFilter):
    """The smallest prefix whose softmax probabilities reach ``mass``; at least one prompt."""

    kind: Literal["top_p_softmax"] = "top_p_softmax"
    mass: float = Field(0.9, gt=0.0, le=1.0, description="share of softmax probability to keep")

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """Probabilities over the candidates alone."""
        ranked = self.ranking(scores_P)
        if not ranked or self.mass == 1.0:
            return mask_of(ranked, len(scores_P))
        signed = scores_P[ranked] if self.largest else -scores_P[ranked]
        mass = np.exp(signed - signed.max())
        needed = int(np.searchsorted(np.cumsum(mass), self.mass * mass.sum() * (1 - ROUNDING))) + 1
        return mask_of(ranked[:needed], len(scores_P))
