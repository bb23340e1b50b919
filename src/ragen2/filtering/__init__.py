"""Filters: the index of what there is. ``select(rewards, kind="top_p")`` needs no trainer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ragen2.errors import ConfigError
from ragen2.filtering.base import PRESETS, Filter, RankFilter
from ragen2.filtering.controls import KeepAll, Nonzero, Quantile, Soft, TrajectoryControl
from ragen2.filtering.top_k import MinP, TopK, TopKAbs
from ragen2.filtering.top_p import TopP, TopPSoftmax
from ragen2.spread import spread
from ragen2.types import FloatArray, Selection

__all__ = [
    "PRESETS",
    "Filter",
    "KeepAll",
    "MinP",
    "Nonzero",
    "Quantile",
    "RankFilter",
    "Soft",
    "TopK",
    "TopKAbs",
    "TopP",
    "TopPSoftmax",
    "TrajectoryControl",
    "select",
    "spread",
]


def select(rewards: Sequence[Sequence[float]], kind: str = "top_p", **settings: Any) -> Selection:
    """Which prompts to update on, from the rewards of each prompt's rollouts.

    ``select([[0, 1, 1, 0], [1, 1, 1, 1]]).kept_P`` is ``[True, False]``. Groups may differ in size;
    ``kind`` may be a preset: ``select(rewards, kind="paper")``.
    """
    groups = [_checked(group, index) for index, group in enumerate(rewards)]
    if not groups:
        raise ConfigError("select needs the rewards of at least one group, got none")
    return Filter.from_dict({"kind": kind, **settings}).select_rewards(groups)


def _checked(rewards: Sequence[float], index: int) -> FloatArray:
    if isinstance(rewards, int | float | np.number):
        raise ConfigError(
            f"select takes one list of rewards per prompt, got the number {rewards:g} for prompt {index}; "
            "for a single prompt write select([[0, 1, 1]])"
        )
    wrong = ConfigError(f"group {index} must hold finite rewards, got {rewards!r}")
    try:
        group = np.asarray(rewards, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise wrong from error
    if group.ndim != 1 or not len(group) or not np.isfinite(group).all():
        raise wrong
    return group
