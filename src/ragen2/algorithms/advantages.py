"""Advantages as pure functions on numpy arrays, named as in the literature.

Shape letters: G members of a group, K turns of a trajectory, T written tokens of a trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragen2.types import FloatArray, IntArray


def group_advantages(rewards_G: FloatArray, *, scale_by_std: bool, eps: float = 1e-6) -> FloatArray:
    """GRPO (Shao et al. 2024): rewards minus the group's mean, over its sample standard deviation if asked.

    A group of one, or one whose rewards are all equal, has advantage 0: it says nothing about which
    behaviour was better.
    """
    centred: FloatArray = rewards_G - rewards_G.mean()
    if len(rewards_G) < 2 or np.ptp(rewards_G) == 0.0:
        return np.zeros_like(centred)
    return np.asarray(centred / (rewards_G.std(ddof=1) + eps)) if scale_by_std else centred


def leave_one_out_advantages(rewards_G: FloatArray) -> FloatArray:
    """RLOO (Ahmadian et al. 2024): each reward minus the mean of the others; 0 for a group of one."""
    count = len(rewards_G)
    if count < 2:
        return np.zeros_like(rewards_G)
    # r_i - (sum - r_i) / (G - 1) = (r_i - mean) G / (G - 1)
    return np.asarray((rewards_G - rewards_G.mean()) * count / (count - 1))


def discounted_returns(rewards_T: FloatArray, gamma: float) -> FloatArray:
    """Sum of this and all later rewards, each step further away discounted by ``gamma``."""
    returns_T = np.empty(len(rewards_T))
    running = 0.0
    for t in range(len(rewards_T) - 1, -1, -1):
        running = float(rewards_T[t]) + gamma * running
        returns_T[t] = running
    return returns_T


def gae(rewards_T: FloatArray, values_T: FloatArray, *, gamma: float, lam: float) -> FloatArray:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16); the value after the end is 0.

    ``delta_t = r_t + gamma V_{t+1} - V_t`` and ``A_t = delta_t + gamma lam A_{t+1}``. Returns, the
    critic's targets, are ``A + V``.
    """
    advantages_T = np.empty(len(rewards_T))
    running, next_value = 0.0, 0.0
    for t in range(len(rewards_T) - 1, -1, -1):
        delta = float(rewards_T[t]) + gamma * next_value - float(values_T[t])
        running = delta + gamma * lam * running
        next_value = float(values_T[t])
        advantages_T[t] = running
    return advantages_T


def bi_level_gae(
    rewards_T: FloatArray,
    values_T: FloatArray,
    lengths_K: IntArray,
    *,
    gamma: float,
    lam: float,
    turn_gamma: float,
) -> FloatArray:
    """GAE over turns, then GAE over the tokens of each turn (as in RAGEN and VAGEN, Wang et al. 2025).

    First the last tokens of the turns are a short trajectory of their own, discounted by
    ``turn_gamma``; each turn's return becomes the final reward of its tokens, and estimation starts
    anew at every turn. Every turn must have a token; a trajectory without turns has no advantages.
    """
    if not len(lengths_K):
        return np.empty(0)
    ends_K = np.cumsum(lengths_K)
    rewards_K = np.array([part.sum() for part in np.split(rewards_T, ends_K[:-1])])
    # A turn is valued at its last token, where its reward is paid; the reference finds turn ends by non-zero
    # rewards and so misses turns that earn nothing.
    values_K = values_T[ends_K - 1]
    returns_K = gae(rewards_K, values_K, gamma=turn_gamma, lam=lam) + values_K
    parts = []
    for turn, end in enumerate(ends_K):
        own = values_T[end - lengths_K[turn] : end]
        final = np.zeros(len(own))
        final[-1] = returns_K[turn]
        parts.append(gae(final, own, gamma=gamma, lam=lam))
    return np.concatenate(parts)


def whiten(parts: Sequence[FloatArray], eps: float = 1e-8) -> list[FloatArray]:
    """Shift and scale all values together to mean 0 and (unbiased) variance 1.

    Fewer than two values have no spread: they are only centred.
    """
    values = np.concatenate(parts) if parts else np.empty(0)
    if not len(values):
        return list(parts)
    # Unbiased variance and eps as in verl, so that advantages compare with its runs.
    scale = 1.0 / np.sqrt(values.var(ddof=1) + eps) if len(values) > 1 else 1.0
    return [np.asarray((part - values.mean()) * scale) for part in parts]


def overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """DAPO's soft overlong punishment (Yu et al. 2025).

    0 up to ``limit - buffer``, then linearly down to -1 at ``limit``.
    """
    if buffer <= 0:
        return 0.0
    return -min(1.0, max(0.0, (length - (limit - buffer)) / buffer))
