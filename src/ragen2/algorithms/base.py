"""The algorithm contract: advantages from a group, a loss for each token, a weight for each token.

The batch loss is ``sum(weight_t * loss_t)``. Weights are fixed for the whole batch before it is cut into
micro-batches, so how it is cut cannot change the gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic import Field

from ragen2.component import Component
from ragen2.types import FloatArray, Group

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch's loss positions, all of length N. ``ref_logp_N`` is None when no KL is asked for."""

    logp_N: Tensor
    old_logp_N: Tensor
    advantages_N: Tensor
    entropy_N: Tensor
    ref_logp_N: Tensor | None


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss of each token and the parts it is made of (the parts are for the log only)."""

    total_N: Tensor
    parts: dict[str, Tensor]


class Objective(Protocol):
    """What a learner needs of whatever it minimises."""

    @property
    def kl_coefficient(self) -> float:
        """Above 0, the learner provides ``ref_logp_N``."""
        ...

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """Loss of each token."""
        ...

    def token_weights(self, lengths: Sequence[int]) -> FloatArray:
        """Weight of each sequence's tokens."""
        ...


class Algorithm(Component, ABC):
    """A policy-gradient method."""

    family: ClassVar[str] = "algorithm"

    kind: str
    kl_coefficient: float = Field(
        0.0,
        ge=0.0,
        description="weight of the KL divergence to the starting model; 0 needs no copy of it",
    )
    entropy_coefficient: float = Field(0.0, ge=0.0, description="weight of the entropy bonus")

    @abstractmethod
    def advantages(self, group: Group) -> FloatArray:
        """One advantage for each trajectory of a group."""

    @abstractmethod
    def loss(self, inputs: LossInputs) -> TokenLoss:
        """Loss of each token, regularisers included."""

    @abstractmethod
    def token_weights(self, lengths: Sequence[int]) -> FloatArray:
        """Weight of each sequence's tokens, for sequences with these numbers of loss tokens."""
