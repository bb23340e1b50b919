"""Top-k and min-p: the simpler rules of rank, to compare `top_p` with.

Top-k keeps a fixed share, or a fixed number, of the prompts: as many from a batch with no signal to speak of
as from a rich one. Min-p keeps every prompt whose signal is at least a share of the greatest.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from ragen2.filtering.base import RankFilter, mask_of
from ragen2.spread import ROUNDING
from ragen2.types import BoolArray, FloatArray


class TopK(RankFilter):
    """The best ``share`` of all prompts of the batch, at least one."""

    kind: Literal["top_k"] = "top_k"
    share: float = Field(0.25, gt=0.0, le=1.0, description="share of the batch's prompts to keep")

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """Counted over the whole batch, also when prompts without signal were dropped first."""
        # 0.29 of 100 is 29, although 0.29 * 100 is a little less in floating point.
        count = max(1, math.floor(self.share * len(scores_P) + 1e-9))
        return mask_of(self.ranking(scores_P)[:count], len(scores_P))


class TopKAbs(RankFilter):
    """The best ``count`` prompts."""

    kind: Literal["top_k_abs"] = "top_k_abs"
    count: int = Field(4, ge=1, description="prompts to keep")

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """All, when there are fewer."""
        return mask_of(self.ranking(scores_P)[: self.count], len(scores_P))


class MinP(RankFilter):
    """Unlike `top_p`, one outstanding prompt makes all others look weak."""

    kind: Literal["min_p"] = "min_p"
    share: float = Field(
        0.1, gt=0.0, le=1.0, description="smallest share of the best prompt's signal to keep"
    )

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """With ``largest = false``: at most the smallest signal over ``share``."""
        may_P = self.candidates(scores_P)
        if not may_P.any():
            return may_P
        among = scores_P[may_P]
        if self.largest:
            good_P = scores_P >= self.share * among.max() * (1 - ROUNDING)
        else:
            good_P = scores_P <= among.min() / self.share * (1 + ROUNDING)
        return np.asarray(good_P & may_P)
