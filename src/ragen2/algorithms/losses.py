"""Losses as pure functions on tensors; they use tensor methods only, so this file imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from ragen2.types import FloatArray

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Literal["token_mean", "seq_mean_token_mean"]


def clipped_surrogate(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """PPO's clipped objective as a loss: ``-min(r A, clip(r, 1 - low, 1 + high) A)``."""
    ratio = (logp - old_logp).clamp(-20.0, 20.0).exp()
    return -(ratio * advantages).minimum(ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)


def is_clipped(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """True where clipping has cut the gradient of a token."""
    log_ratio = logp - old_logp
    too_high: Tensor = (log_ratio > math.log1p(clip_high)) & (advantages > 0)
    too_low: Tensor = (log_ratio < math.log1p(-clip_low)) & (advantages < 0)
    return too_high | too_low


def kl_k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference): ``exp(d) - d - 1`` with ``d = ref - logp``."""
    difference = (ref_logp - logp).clamp(-20.0, 20.0)
    return difference.exp() - difference - 1.0


def token_weights(lengths: Sequence[int], aggregation: Aggregation) -> FloatArray:
    """Weight of one token of each sequence: the aggregation mode, decided before any splitting.

    ``token_mean`` gives each token of the batch the same weight; ``seq_mean_token_mean`` each
    sequence, its tokens sharing equally. Either way all weights of a batch sum to 1.
    """
    tokens = np.asarray(lengths, dtype=np.float64)
    if aggregation == "token_mean":
        return np.full(len(tokens), 1.0 / tokens.sum())
    return 1.0 / (len(tokens) * tokens)
