"""Algorithms: the index of what there is, and the pure functions they are made of."""

from ragen2.algorithms.advantages import group_advantages
from ragen2.algorithms.base import Algorithm, LossInputs, TokenLoss
from ragen2.algorithms.grpo import GRPO
from ragen2.algorithms.losses import clipped_surrogate, is_clipped, kl_k3, token_weights

__all__ = [
    "GRPO",
    "Algorithm",
    "LossInputs",
    "TokenLoss",
    "clipped_surrogate",
    "group_advantages",
    "is_clipped",
    "kl_k3",
    "token_weights",
]
