"""Nonzero: every prompt whose rewards are not all equal (the rule of DAPO's dynamic sampling)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ragen2.filtering.base import Filter
from ragen2.types import BoolArray, FloatArray


class Nonzero(Filter):
    """Drops dead groups and nothing else: `top_p` at mass 1."""

    kind: Literal["nonzero"] = "nonzero"

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """True where there is signal."""
        return np.asarray(scores_P != 0.0)
