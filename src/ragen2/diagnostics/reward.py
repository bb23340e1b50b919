"""Reward spread: the signal the policy gradient has to work with."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ragen2.diagnostics.base import Diagnostic, Evidence, Metrics
from ragen2.spread import spread
from ragen2.types import FloatArray


class Reward(Diagnostic):
    """Mean return, within-prompt variance and std, and how unevenly prompts hold it."""

    kind: Literal["reward"] = "reward"

    def measure(self, evidence: Evidence) -> Metrics:
        """All under ``reward/``."""
        rewards = [group.rewards_G for group in evidence.groups]
        return {f"reward/{name}": value for name, value in reward_spread(rewards).items()}


def reward_spread(rewards_PG: list[FloatArray]) -> Metrics:
    """Within-prompt spread over a batch. Variance is the unbiased estimate (ddof 1).

    ``variance_std_over_mean`` is Std(RV)/Mean(RV), the paper's predictor of whether filtering helps;
    it is left out when no prompt has any variance.
    """
    variance_P = np.array([spread(group, "reward_variance", ddof=1) for group in rewards_PG])
    metrics = {
        "mean": float(np.concatenate(rewards_PG).mean()),
        "variance": float(variance_P.mean()),
        "std": float(np.sqrt(variance_P).mean()),
        "dead_ratio": float(np.mean(variance_P == 0.0)),
    }
    if variance_P.any():
        metrics["variance_std_over_mean"] = float(variance_P.std() / variance_P.mean())
    return metrics
