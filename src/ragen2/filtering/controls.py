"""Filters to compare the prompt filter with: none at all, the weakest one, weights, slices, rollouts.

They answer whether a filter helps because of what it keeps, or only because it trains on less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from ragen2.filtering.base import Filter, mask_of
from ragen2.types import BoolArray, FloatArray


class KeepAll(Filter):
    """Every prompt is updated on."""

    kind: Literal["keep_all"] = "keep_all"

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """True everywhere."""
        return np.ones(len(scores_P), dtype=np.bool_)


class Nonzero(Filter):
    """Drops dead groups and nothing else: `top_p` at mass 1."""

    kind: Literal["nonzero"] = "nonzero"

    def keep(self, scores_P: FloatArray) -> BoolArray:
        """True where there is signal."""
        return np.asarray(scores_P != 0.0)


class Soft(Filter):
    """Advantages times signal over the greatest (or the mean) signal of the batch."""

    # No prompt is dropped, so it costs as much as no filter. With `signal = "reward_std"` this is the
    # reference's `soft_advantage_reweight`.

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


class Quantile(Filter):
    """Prompts ranked by signal and cut into equal slices; slice 1 has most signal."""

    kind: Literal["quantile"] = "quantile"
    slices: int = Field(4, ge=1, le=100_000, description="slices the batch is cut into")
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


class TrajectoryControl(Filter):
    """Of each group, ``share`` of the members: half from the top of its rewards, half from the bottom."""

    # If the prompt filter only helped by training on less, or on more extreme rollouts, so would this.

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
