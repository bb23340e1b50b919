"""Bootstrap weights and permutation p-values, seeded by the caller's generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ragen2.types import FloatArray, IntArray

Interval = tuple[float, float]


def resample(
    owner_N: IntArray,
    interval: Literal["batch", "population"],
    draws: int,
    rng: np.random.Generator,
) -> FloatArray:
    """``draws`` rows of trace weights, each summing to 1.

    ``batch`` draws traces with replacement inside each prompt; ``population`` draws whole prompts.
    """
    weights_BN = np.zeros((draws, len(owner_N)))
    prompts = np.unique(owner_N)
    if interval == "batch":
        for prompt in prompts:
            own = np.flatnonzero(owner_N == prompt)
            weights_BN[:, own] = rng.multinomial(len(own), np.full(len(own), 1.0 / len(own)), draws)
    else:
        counts_BP = rng.multinomial(len(prompts), np.full(len(prompts), 1.0 / len(prompts)), draws)
        for column, prompt in enumerate(prompts):
            weights_BN[:, owner_N == prompt] = counts_BP[:, [column]]
    return np.asarray(weights_BN / weights_BN.sum(1, keepdims=True))


def percentile_interval(values_B: FloatArray, level: float = 0.95) -> Interval:
    """The middle ``level`` of bootstrap values."""
    tail = 100.0 * (1.0 - level) / 2.0
    low, high = np.percentile(values_B, [tail, 100.0 - tail])
    return float(low), float(high)


def permutation_p_value(observed: float, null_B: Sequence[float]) -> float:
    """Share of null values at least as large, the observed one counted in, so it is never 0."""
    reached = sum(bool(value >= observed - 1e-12) for value in null_B)
    return (1 + reached) / (1 + len(null_B))
