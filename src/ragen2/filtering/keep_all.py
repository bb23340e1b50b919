"""Keep all: no filter, but the same record of scores, so that runs can be compared."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ragen2.filtering.base import Filter
from ragen2.types import BoolArray, FloatArray


class KeepAll(Filter):
    """Every prompt is updated on."""

    kind: Literal["keep_all"] = "keep_all"

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """True everywhere."""
        return np.ones(len(scores_P), dtype=np.bool_)
