"""What a group's rollouts differ in: the one definition that filters and diagnostics share."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ragen2.types import FloatArray, Group, Trajectory

Signal = Literal["reward_variance", "reward_std"]
GroupSignal = Literal[
    "reward_variance", "reward_std", "reward_mean", "length", "entropy", "entropy_std"
]
ROUNDING = 1e-12
"""Sums of scores that differ by less than this share of them are equal (1e-16 per operation)."""
EQUAL = 4.0 * float(np.finfo(np.float32).eps)
"""Rewards that differ by less than this share of their size are equal; some trainers sum them in float32."""


def spread(rewards_G: FloatArray, signal: Signal, ddof: int) -> float:
    """Variance or standard deviation of one group's rewards; 0 for a group of one.

    Rewards that differ only by floating-point rounding count as equal: by 5e-7 of the largest, or of 1.
    """
    if len(rewards_G) < 2:
        return 0.0
    size = max(1.0, float(np.abs(rewards_G).max()))
    if np.ptp(rewards_G) <= EQUAL * size:
        return 0.0
    variance = float(rewards_G.var(ddof=ddof))
    return variance if signal == "reward_variance" else float(np.sqrt(variance))


def group_signal(group: Group, signal: GroupSignal, ddof: int) -> float:
    """What a filter ranks a prompt by.

    ``length`` is the mean number of written tokens. ``entropy`` is the mean surprise (minus log-prob) of
    the written tokens, an estimate of the policy's entropy that costs nothing; ``entropy_std`` is its
    spread over the members.
    """
    match signal:
        case "reward_variance" | "reward_std":
            return spread(group.rewards_G, signal, ddof)
        case "reward_mean":
            return float(group.rewards_G.mean())
        case "length":
            return float(np.mean([one.num_tokens for one in group.trajectories]))
    surprise_G = np.array([_surprise(one) for one in group.trajectories])
    return (
        float(surprise_G.mean()) if signal == "entropy" else spread(surprise_G, "reward_std", ddof)
    )


def _surprise(trajectory: Trajectory) -> float:
    total = sum(float(turn.completion.logprobs_T.sum()) for turn in trajectory.turns)
    return -total / max(1, trajectory.num_tokens)
