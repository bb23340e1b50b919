"""Supervised: plain cross-entropy in the shape of an algorithm's loss, for warm starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragen2.algorithms.losses import token_weights
from ragen2.policy import LossInputs, TokenLoss
from ragen2.types import FloatArray


@dataclass(frozen=True, slots=True)
class Supervised:
    """Negative log-likelihood of the written tokens; advantages are not looked at."""

    needs_reference: bool = False

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """Minus log-prob."""
        return TokenLoss(-inputs.logp_N, {"negative_logp": -inputs.logp_N})

    def token_weights(self, lengths: Sequence[int]) -> FloatArray:
        """Each token of the batch counts the same."""
        return token_weights(lengths, "token_mean")
