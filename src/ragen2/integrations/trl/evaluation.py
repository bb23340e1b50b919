"""Held-out success of a TRL evaluation, under the names of our own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragen2.diagnostics import surface
from ragen2.diagnostics.statistics.resampling import wilson_of_trials
from ragen2.types import Group


def evaluation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Success with its 95% interval, and mean return, over all episodes of an evaluation."""
    rewards = np.concatenate([group.rewards_G for group in groups])
    success = surface(groups)["success"]
    low, high = wilson_of_trials(success, len(rewards))
    return {
        "eval/success": success,
        "eval/success_low": low,
        "eval/success_high": high,
        "eval/reward": float(rewards.mean()),
    }
