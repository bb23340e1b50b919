"""A filter that keeps prompts by lot: a control for what the filter gains by training on less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from ragen2.filtering.base import Filter
from ragen2.seeding import stream
from ragen2.types import BoolArray, FloatArray, Group, Selection


class DroppedAtRandom(Filter):
    """Keeps ``share`` of the prompts, whatever their rewards; a task's lot is the same in every run."""

    kind: Literal["random"] = "random"
    share: float = Field(0.2, gt=0.0, le=1.0, description="chance of a prompt to be kept")

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """Lots are drawn for tasks: see `select`."""
        raise NotImplementedError("scores alone do not say which tasks these are")

    def select(self, groups: Sequence[Group], noise_P: FloatArray | None = None) -> Selection:
        """Draw for each task by its seed."""
        lots_P = np.array([stream("lot", group.prompt.seed).random() for group in groups])
        kept_P = lots_P < self.share
        return Selection(kept_P, lots_P, "" if kept_P.any() else "no prompt was drawn")
