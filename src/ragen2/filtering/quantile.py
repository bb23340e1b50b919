"""Quantile: one slice of the ranking by signal, for asking what each slice is worth."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from ragen2.filtering.base import Filter, mask_of
from ragen2.types import BoolArray, FloatArray


class Quantile(Filter):
    """Prompts ranked by signal and cut into equal slices; slice 1 has most signal."""

    kind: Literal["quantile"] = "quantile"
    slices: int = Field(4, ge=1, description="slices the batch is cut into")
    slice: int = Field(1, ge=1, description="the slice to keep; 1 has most signal")

    @model_validator(mode="after")
    def _slice_exists(self) -> Quantile:
        if self.slice > self.slices:
            raise ValueError(
                f"slice {self.slice} of {self.slices} does not exist; take 1..{self.slices}"
            )
        return self

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """Slices differ by at most one prompt; earlier ones are the larger."""
        order = np.argsort(-scores_P, kind="stable")
        return mask_of(np.array_split(order, self.slices)[self.slice - 1].tolist(), len(scores_P))
