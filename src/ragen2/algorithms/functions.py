"""Advantages and losses as pure functions, named as in the literature.

Losses use tensor methods only, so this file imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from ragen2.policy import KLEstimator
from ragen2.types import FloatArray, IntArray

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Literal[
    "token_mean",
    "token_sum",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
]
MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped here before ``exp``, as in verl: a token cannot overflow the loss."""
MAX_K3 = 10.0
"""Clamp of one token's k3, as in verl."""


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


def clipped_surrogate(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> Tensor:
    """PPO's clipped objective (Schulman et al. 2017, eq. 7): ``-min(r A, clip(r, 1 - low, 1 + high) A)``.

    With ``dual_clip`` c above 1 (Ye et al. 2020), the loss of a token with negative advantage is at most
    ``-c A``, so that one bad token whose probability has risen a lot cannot blow up the step.
    """
    ratio = (logp - old_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss = -(ratio * advantages).minimum(ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    if not dual_clip:
        return loss
    return loss.minimum(-dual_clip * advantages).where(advantages < 0, loss)


def is_clipped(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> Tensor:
    """True where clipping has cut the gradient of a token."""
    log_ratio = logp - old_logp
    too_high: Tensor = (log_ratio > math.log1p(clip_high)) & (advantages > 0)
    too_low: Tensor = (log_ratio < math.log1p(-clip_low)) & (advantages < 0)
    clipped = too_high | too_low
    if dual_clip:
        clipped = clipped | ((log_ratio > math.log(dual_clip)) & (advantages < 0))
    return clipped


def kl_k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """``log p - log ref``: unbiased as a value. As a loss it has no pull to the reference.

    Its gradient is that of ``log p`` alone, whose mean under the policy is 0.
    """
    return logp - ref_logp


def kl_k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """``(log p - log ref)^2 / 2``: a biased value whose gradient, on-policy, is that of the KL."""
    return 0.5 * (logp - ref_logp).square()


def kl_k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Schulman's (2020) k3 estimate of KL(policy || reference): ``exp(d) - d - 1``, ``d = ref - logp``.

    Never negative; clamped at 10 so that one token cannot rule the step.
    """
    difference = (ref_logp - logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (difference.exp() - difference - 1.0).clamp(-MAX_K3, MAX_K3)


def kl_estimate(logp: Tensor, ref_logp: Tensor, estimator: KLEstimator) -> Tensor:
    """The named estimate; a trailing ``+`` keeps its value and takes the gradient of k2."""
    if estimator.endswith("+"):
        value = kl_k1(logp, ref_logp) if estimator == "k1+" else kl_k3(logp, ref_logp)
        # Straight-through: the value is the named estimate's, the gradient is that of k2.
        pull = kl_k2(logp, ref_logp)
        return pull - pull.detach() + value.detach()
    if estimator == "k1":
        return kl_k1(logp, ref_logp)
    if estimator == "k2":
        return kl_k2(logp, ref_logp)
    return (logp - ref_logp).abs() if estimator == "abs" else kl_k3(logp, ref_logp)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Half the squared error of a critic, pessimistic about moves of more than ``clip`` (0: off)."""
    plain = (values - returns).square()
    if not clip:
        return 0.5 * plain
    near = values.clamp(old_values - clip, old_values + clip)
    return 0.5 * plain.maximum((near - returns).square())


def token_weights(
    lengths: Sequence[int], aggregation: Aggregation, constant_length: int = 1
) -> FloatArray:
    """Weight of one token of each sequence: the aggregation mode, decided before any splitting.

    ``token_mean``: each token of the batch the same, all summing to 1. ``seq_mean_token_mean``: each
    sequence the same, its tokens sharing equally. ``seq_mean_token_sum``: a token counts 1 over the
    number of sequences, so longer sequences count more. ``seq_mean_token_sum_norm``: the same over a
    constant length (Dr. GRPO). ``token_sum``: a token counts 1.
    """
    tokens = np.asarray(lengths, dtype=np.float64)
    count = len(tokens)
    if aggregation == "token_mean":
        return np.full(count, 1.0 / tokens.sum())
    if aggregation == "seq_mean_token_mean":
        return np.asarray(1.0 / (count * tokens))
    if aggregation == "token_sum":
        return np.ones(count)
    divisor = constant_length if aggregation == "seq_mean_token_sum_norm" else 1
    return np.full(count, 1.0 / (count * divisor))
