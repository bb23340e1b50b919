"""Top-p: the fewest prompts that together hold a share of all reward variance (the paper's filter).

RAGEN-2 (arXiv 2604.06268): a prompt's task gradient is at most the square root of its reward variance times
the norm of its score functions, while KL and entropy push as hard on every prompt. Of prompts ranked by
variance v, the shortest prefix K is kept with ``sum(v[:K]) >= mass * sum(v)``.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from ragen2.filtering.base import RankFilter, mask_of
from ragen2.spread import ROUNDING
from ragen2.types import BoolArray, FloatArray


class TopP(RankFilter):
    """Rank by signal, keep the smallest prefix that reaches ``mass`` of the total."""

    kind: Literal["top_p"] = "top_p"
    mass: float = Field(0.9, gt=0.0, le=1.0, description="share of the total signal to keep")
    eps: float = Field(
        0.0,
        ge=0.0,
        description="subtracted from the wanted mass below 1; the reference uses 0.01, absolute",
    )
    include_zero: bool = Field(
        False, description="with mass 1, also keep prompts whose rewards are all equal"
    )

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """A batch without signal keeps nothing; ties keep their order in the batch."""
        if self.mass == 1.0:
            return np.asarray((scores_P > 0.0) | self.include_zero)
        order = [p for p in self.ranking(scores_P) if scores_P[p] > 0.0]
        ranked = scores_P[order]
        wanted = self.mass * ranked.sum() - self.eps
        if not order or (self.eps > 0.0 and wanted <= 0.0):
            return mask_of([], len(scores_P))
        # Sums that differ by rounding are equal: nine of ten equal scores hold nine tenths.
        # The first place where the running sum reaches what is wanted ends the shortest such prefix.
        needed = int(np.searchsorted(np.cumsum(ranked), wanted * (1.0 - ROUNDING))) + 1
        return mask_of(order[:needed], len(scores_P))


class TopPSoftmax(RankFilter):
    """The smallest prefix whose softmax probabilities reach ``mass``; at least one prompt."""

    # As the reference's main-table runs do it; here to reproduce them. Unlike `top_p` it depends on the scale
    # of rewards: with rewards around 10 it is sharp, with 0/1 rewards it is nearly uniform and keeps almost
    # everything, prompts without signal too.

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
