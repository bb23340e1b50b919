"""The algorithm contract: credit for every written token, a loss for it, a weight for it.

The batch loss is ``sum(weight_t * loss_t)``. Weights are fixed for the whole batch before it is cut into
micro-batches, so how it is cut cannot change the gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from ragen2.algorithms.functions import (
    Aggregation,
    clipped_surrogate,
    discounted_returns,
    is_clipped,
    kl_estimate,
    overlong_penalty,
    token_weights,
)
from ragen2.component import Component
from ragen2.policy import CriticSettings, KLEstimator, LossInputs, TokenLoss
from ragen2.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one trajectory earned, turn by turn (K), and over which written tokens (T, all turns joined)."""

    lengths_K: IntArray
    """Written tokens of each turn."""
    rewards_K: FloatArray
    """Reward and format penalty of each turn."""
    token_rewards_T: FloatArray | None = None
    """Paid at single tokens, such as minus the KL to the reference."""
    values_T: FloatArray | None = None
    """The critic's value before each token was written."""
    limit: int = 0
    """Most tokens a turn could have had; 0 when unknown."""

    @property
    def total(self) -> float:
        """Everything it earned."""
        extra = 0.0 if self.token_rewards_T is None else float(self.token_rewards_T.sum())
        return float(self.rewards_K.sum()) + extra

    @property
    def rewards_T(self) -> FloatArray:
        """Each turn's reward at its last token, plus what was paid at single tokens."""
        rewards_T = np.zeros(int(self.lengths_K.sum()))
        # A turn without tokens pays at the last token before it.
        ends_K = np.maximum(np.cumsum(self.lengths_K) - 1, 0)
        if len(rewards_T):
            np.add.at(rewards_T, ends_K, self.rewards_K)
        return rewards_T if self.token_rewards_T is None else rewards_T + self.token_rewards_T

    def spread(self, values_K: FloatArray) -> FloatArray:
        """One value per turn, given to all its tokens."""
        return np.repeat(values_K, self.lengths_K)


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """How much better than expected each written token did, and what a critic should have said."""

    advantages_T: FloatArray
    returns_T: FloatArray | None = None


class Algorithm(Component, ABC):
    """A policy-gradient method with PPO's clipped loss; what differs is mostly how credit is given."""

    family: ClassVar[str] = "algorithm"

    kind: str
    clip_low: float = Field(0.2, gt=0.0, lt=1.0, description="how far a ratio may fall below 1")
    clip_high: float = Field(0.28, gt=0.0, description="how far a ratio may rise above 1")
    dual_clip: float = Field(
        0.0,
        ge=0.0,
        description="loss of a bad token at most this times its advantage, above 1; 0 is off",
    )
    aggregation: Aggregation = Field(
        "token_mean", description="how token losses make the batch loss"
    )
    constant_length: int = Field(
        1024, ge=1, description="tokens `seq_mean_token_sum_norm` divides each sequence by"
    )
    kl_coefficient: float = Field(
        0.0,
        ge=0.0,
        description="weight of the KL divergence to the starting model; 0 needs no copy of it",
    )
    kl_estimator: KLEstimator = Field(
        "k3", description="how KL is estimated from the written tokens; `k1` as a loss has no pull"
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss", description="KL is a term of the loss, or taken from the reward of each token"
    )
    entropy_coefficient: float = Field(0.0, ge=0.0, description="weight of the entropy bonus")

    @field_validator("dual_clip")
    @classmethod
    def _bounds_from_above(cls, value: float) -> float:
        if 0.0 < value <= 1.0:
            raise ValueError(f"must be 0 (off) or above 1, got {value:g}; 3 is usual")
        return value

    @property
    def needs_reference(self) -> bool:
        """Whether the loss (not the reward) holds a KL term."""
        return self.kl_coefficient > 0.0 and self.kl_in == "loss"

    @property
    def needs_reference_in_reward(self) -> bool:
        """Whether KL is taken from the reward."""
        return self.kl_coefficient > 0.0 and self.kl_in == "reward"

    @property
    def critic(self) -> CriticSettings | None:
        """How the critic is trained; None: this algorithm asks for no values.

        With a critic, ``credit`` finds its values in ``Outcome.values_T`` and returns its targets in
        ``Credit.returns_T``.
        """
        return None

    @abstractmethod
    def credit(self, batch: Sequence[Sequence[Outcome]]) -> list[list[Credit]]:
        """Credit of every trajectory of every group, given the whole batch."""

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """Clipped surrogate, plus KL to the reference, minus the entropy bonus."""
        given = (inputs.logp_N, inputs.old_logp_N, inputs.advantages_N)
        policy = clipped_surrogate(*given, self.clip_low, self.clip_high, self.dual_clip)
        clipped = is_clipped(*given, self.clip_low, self.clip_high, self.dual_clip)
        total = policy - self.entropy_coefficient * inputs.entropy_N
        parts = {"policy_loss": policy, "clip_fraction": clipped.double()}
        if inputs.ref_logp_N is not None:
            kl = kl_estimate(inputs.logp_N, inputs.ref_logp_N, self.kl_estimator)
            total = total + self.kl_coefficient * kl
            parts["kl"] = kl
        return TokenLoss(total, parts)

    def token_weights(self, lengths: Sequence[int]) -> FloatArray:
        """Weight of each sequence's tokens, for sequences with these numbers of loss tokens."""
        return token_weights(lengths, self.aggregation, self.constant_length)


class GroupAlgorithm(Algorithm):
    """Credit from comparing the members of a group with each other; no critic.

    Members write ``advantages`` for one list of rewards; this class applies it to whole trajectories or
    turn by turn.
    """

    credit_to: Literal["trajectory", "turn"] = Field(
        "trajectory",
        description="all tokens share the trajectory's advantage, or each turn has its own",
    )
    turn_gamma: float = Field(
        1.0, gt=0.0, le=1.0, description="discount from turn to turn when credit goes to turns"
    )
    overlong_buffer: int = Field(
        0, ge=0, description="tokens before the limit where a reply starts to be punished; 0 is off"
    )

    @abstractmethod
    def advantages(self, rewards_G: FloatArray) -> FloatArray:
        """One advantage for each reward of a group."""

    def credit(self, batch: Sequence[Sequence[Outcome]]) -> list[list[Credit]]:
        """The group's advantages, for each trajectory or for each turn."""
        by_turn = self.credit_to == "turn"
        return [self._by_turn(group) if by_turn else self._whole(group) for group in batch]

    def _whole(self, group: Sequence[Outcome]) -> list[Credit]:
        totals_G = np.array([one.total + self._shaping(one).sum() for one in group])
        return [
            Credit(np.full(int(one.lengths_K.sum()), advantage))
            for one, advantage in zip(group, self.advantages(totals_G), strict=True)
        ]

    def _by_turn(self, group: Sequence[Outcome]) -> list[Credit]:
        """Turn k of a member against turn k of those members that came so far, by reward to go."""
        to_go = [discounted_returns(self._turn_rewards(one), self.turn_gamma) for one in group]
        found = [np.zeros(len(values_K)) for values_K in to_go]
        for turn in range(max((len(values_K) for values_K in to_go), default=0)):
            there = [i for i, values_K in enumerate(to_go) if len(values_K) > turn]
            advantages = self.advantages(np.array([to_go[i][turn] for i in there]))
            for i, advantage in zip(there, advantages, strict=True):
                found[i][turn] = advantage
        return [
            Credit(one.spread(advantages_K)) for one, advantages_K in zip(group, found, strict=True)
        ]

    def _turn_rewards(self, one: Outcome) -> FloatArray:
        rewards_K = one.rewards_K + self._shaping(one)
        if one.token_rewards_T is None:
            return np.asarray(rewards_K)
        parts = np.split(one.token_rewards_T, np.cumsum(one.lengths_K)[:-1])
        return np.asarray(rewards_K + np.array([part.sum() for part in parts]))

    def _shaping(self, one: Outcome) -> FloatArray:
        if not self.overlong_buffer or not one.limit:
            return np.zeros(len(one.lengths_K))
        return np.array(
            [overlong_penalty(int(n), one.limit, self.overlong_buffer) for n in one.lengths_K]
        )
