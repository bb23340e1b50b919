"""Advantages as pure functions on numpy arrays, named as in the literature."""

from __future__ import annotations

import numpy as np

from ragen2.types import FloatArray


def group_advantages(rewards_G: FloatArray, *, scale_by_std: bool, eps: float = 1e-6) -> FloatArray:
    """GRPO: rewards minus the group's mean, over its sample standard deviation if asked for.

    A group of one, or one whose rewards are all equal, has advantage 0: it says nothing about which
    behaviour was better.
    """
    centred: FloatArray = rewards_G - rewards_G.mean()
    if len(rewards_G) < 2 or np.ptp(rewards_G) == 0.0:
        return np.zeros_like(centred)
    return np.asarray(centred / (rewards_G.std(ddof=1) + eps)) if scale_by_std else centred
