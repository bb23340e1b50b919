"""Min-p: every prompt whose signal is at least a share of the greatest."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from ragen2.filtering.base import RankFilter
from ragen2.spread import ROUNDING
from ragen2.types import BoolArray, FloatArray


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
