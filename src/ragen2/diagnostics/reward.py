"""Reward spread: the signal the policy gradient has to work with.

Letters: P prompts, G members of a prompt's group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ragen2.diagnostics.base import Diagnostic, Evidence, Metrics
from ragen2.spread import spread
from ragen2.types import FloatArray


class Reward(Diagnostic):
    """Mean return, within-prompt variance and std, and how unevenly prompts hold it."""

    kind: Literal["reward"] = "reward"

    def measure(self, evidence: Evidence) -> Metrics:
        """All under ``reward/``; with several environments, also under ``reward/<env>/``."""
        found = _prefixed("reward/", [group.rewards_G for group in evidence.groups])
        envs = sorted({group.prompt.env for group in evidence.groups})
        for env in envs if len(envs) > 1 else ():
            own = [group.rewards_G for group in evidence.groups if group.prompt.env == env]
            found |= _prefixed(f"reward/{metric_name(env)}/", own)
        return found


def reward_spread(rewards_PG: Sequence[FloatArray]) -> Metrics:
    """Within-prompt spread over a batch. Variance is the unbiased estimate (ddof 1).

    ``variance_std_over_mean`` is Std(RV)/Mean(RV), the paper's predictor of whether filtering helps, and
    ``std_std_over_mean`` the same of standard deviations. Both, and ``effective_prompts``, are left out
    when no prompt has any variance.
    """
    variance_P = np.array([spread(group, "reward_variance", ddof=1) for group in rewards_PG])
    std_P = np.sqrt(variance_P)
    sizes_P = np.array([len(group) for group in rewards_PG])
    metrics = {
        "mean": float(np.concatenate(list(rewards_PG)).mean()),
        "variance": float(variance_P.mean()),
        "std": float(std_P.mean()),
        "dead_ratio": float(np.mean(variance_P == 0.0)),
        "effective_batch": float(sizes_P[variance_P > 0.0].sum()),
    }
    if variance_P.any():
        metrics["variance_std_over_mean"] = std_over_mean(variance_P)
        metrics["std_std_over_mean"] = std_over_mean(std_P)
        metrics["effective_prompts"] = effective_number(variance_P)
    return metrics


def std_over_mean(values_P: FloatArray) -> float:
    """Spread of values over their mean (population form); 0 when all are equal."""
    return float(values_P.std() / values_P.mean())


def effective_number(weights_P: FloatArray) -> float:
    """Equal weights that would be as even as these: (sum w)^2 / sum w^2 = P / (1 + (std/mean)^2)."""
    scaled = weights_P / weights_P.max()  # squares of tiny weights would vanish
    return float(scaled.sum() ** 2 / (scaled**2).sum())


def metric_name(env: str) -> str:
    """An environment's kind as part of a metric's name: ``FrozenLake`` is ``frozen_lake``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", env).lower()
    name = re.sub(r"[^a-z0-9]+", "_", words).strip("_")
    return name if name[:1].isalpha() else f"env_{name}"


def _prefixed(prefix: str, rewards_PG: Sequence[FloatArray]) -> Metrics:
    return {f"{prefix}{name}": value for name, value in reward_spread(rewards_PG).items()}
