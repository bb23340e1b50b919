"""Algorithms: the index of what there is, and the pure functions they are made of."""

from ragen2.algorithms.base import (
    Algorithm,
    Credit,
    GroupAlgorithm,
    Outcome,
)
from ragen2.algorithms.functions import (
    bi_level_gae,
    clipped_surrogate,
    discounted_returns,
    gae,
    group_advantages,
    is_clipped,
    kl_estimate,
    kl_k1,
    kl_k2,
    kl_k3,
    leave_one_out_advantages,
    overlong_penalty,
    token_weights,
    value_loss,
    whiten,
)
from ragen2.algorithms.grpo import DAPO, GRPO, RLOO, DrGRPO
from ragen2.algorithms.ppo import PPO
from ragen2.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from ragen2.policy import CriticSettings, LossInputs, TokenLoss

__all__ = [
    "DAPO",
    "GRPO",
    "PPO",
    "RLOO",
    "Algorithm",
    "Credit",
    "CriticSettings",
    "DrGRPO",
    "GroupAlgorithm",
    "LossInputs",
    "Outcome",
    "ReinforcePlusPlus",
    "TokenLoss",
    "bi_level_gae",
    "clipped_surrogate",
    "discounted_returns",
    "gae",
    "group_advantages",
    "is_clipped",
    "kl_estimate",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "leave_one_out_advantages",
    "overlong_penalty",
    "token_weights",
    "value_loss",
    "whiten",
]
