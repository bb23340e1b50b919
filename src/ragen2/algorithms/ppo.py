"""PPO (Schulman et al. 2017): a critic says what to expect of every token; credit is GAE against it.

Unlike the group methods it needs no second member of a group to learn from, pays for a second network, and
moves the policy also on prompts whose rewards are all equal (the critic is never exactly right).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from ragen2.algorithms.base import Algorithm, Credit, Outcome
from ragen2.algorithms.functions import bi_level_gae, gae, whiten
from ragen2.policy import CriticSettings
from ragen2.types import FloatArray


class PPO(Algorithm):
    """GAE over the written tokens; observations in between are skipped, not discounted."""

    kind: Literal["ppo"] = "ppo"

    gamma: float = Field(1.0, gt=0.0, le=1.0, description="discount from token to token")
    lam: float = Field(
        1.0, ge=0.0, le=1.0, description="GAE's lambda: 1 trusts returns, 0 the critic"
    )
    whiten: bool = Field(
        True, description="scale advantages to mean 0 and variance 1 over the batch"
    )
    bi_level: bool = Field(False, description="estimate over turns first, then inside each turn")
    turn_gamma: float = Field(
        0.95, gt=0.0, le=1.0, description="discount from turn to turn when `bi_level`"
    )
    critic_lr: float = Field(1e-5, gt=0.0, description="learning rate of the critic")
    critic_warmup: int = Field(0, ge=0, description="first steps that train the critic alone")
    value_clip: float = Field(
        0.5, ge=0.0, description="how far one update may move a value before it is cut; 0 is off"
    )

    @property
    def critic(self) -> CriticSettings:
        """The critic's learning rate, warm-up and clip."""
        return CriticSettings(self.critic_lr, self.critic_warmup, self.value_clip)

    def credit(self, batch: Sequence[Sequence[Outcome]]) -> list[list[Credit]]:
        """Advantages (whitened) and the critic's targets."""
        flat = [one for group in batch for one in group]
        raw = [self._advantages(one) for one in flat]
        # Targets come from the raw advantages: whitening scales what the policy sees, not what a return is.
        targets = [advantages_T + _values(one) for advantages_T, one in zip(raw, flat, strict=True)]
        credits = map(Credit, whiten(raw) if self.whiten else raw, targets)
        return [[next(credits) for _ in group] for group in batch]

    def _advantages(self, one: Outcome) -> FloatArray:
        if self.bi_level:
            lengths_K = one.lengths_K[one.lengths_K > 0]
            return bi_level_gae(
                one.rewards_T,
                _values(one),
                lengths_K,
                gamma=self.gamma,
                lam=self.lam,
                turn_gamma=self.turn_gamma,
            )
        return gae(one.rewards_T, _values(one), gamma=self.gamma, lam=self.lam)


def _values(one: Outcome) -> FloatArray:
    if one.values_T is None:
        raise ValueError("PPO needs the critic's values; the learner must provide them")
    return one.values_T
