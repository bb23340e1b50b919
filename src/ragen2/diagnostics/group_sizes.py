"""How many prompts would be dead at another group size?

Up to the size that was played, the answer is exact counting: the share of all subsets of a group whose
returns are equal, which is unbiased for any kind of reward. Beyond it a model is needed: a prompt pays
each level with its own chance, which comes from a beta distribution over prompts whose two parameters
are averaged over what the batch allows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.types import FloatArray, IntArray

MEANS = np.linspace(0.01, 0.99, 99)
"""Candidates for the mean chance of a level."""
CONCENTRATIONS = np.geomspace(0.02, 200.0, 60)
"""Candidates for a + b of the beta distribution: small means that a prompt pays it always or never."""
MOST_LEVELS = 32
"""Different returns up to which a larger group is forecast; more are as good as continuous."""


@dataclass(frozen=True, slots=True)
class DeadForecast:
    """The share of prompts expected to be dead at one group size."""

    group_size: int
    dead_ratio: float
    is_extrapolated: bool
    """Beyond the size that was played: rests on the beta model."""


def forecast_dead(rewards_PG: Sequence[FloatArray], sizes: Sequence[int]) -> list[DeadForecast]:
    """Dead share at each of ``sizes``; a size that cannot be forecast is left out."""
    played = min(len(rewards_G) for rewards_G in rewards_PG)
    levels = np.unique(np.concatenate(list(rewards_PG)))
    tries_P = np.array([len(rewards_G) for rewards_G in rewards_PG])
    found = []
    for size in sizes:
        if size <= played:
            dead = float(np.mean([subset_dead(rewards_G, size) for rewards_G in rewards_PG]))
        elif len(levels) <= MOST_LEVELS:
            counts = [np.array([(one == level).sum() for one in rewards_PG]) for level in levels]
            dead = sum(all_alike(hits_P, tries_P, size) for hits_P in counts)
        else:
            continue
        found.append(DeadForecast(size, min(1.0, dead), is_extrapolated=size > played))
    return found


def subset_dead(rewards_G: FloatArray, size: int) -> float:
    """Chance that ``size`` members drawn without replacement have equal returns."""
    if not 1 <= size <= len(rewards_G):
        raise ValueError(f"a subset of {size} cannot be drawn from {len(rewards_G)} members")
    _, counts = np.unique(rewards_G, return_counts=True)
    ways = sum(math.comb(int(count), size) for count in counts)
    return ways / math.comb(len(rewards_G), size)


def all_alike(hits_P: IntArray, tries_P: IntArray, size: int) -> float:
    """E[p^size] over prompts like these, where a prompt's p gave ``hits`` of ``tries``.

    p comes from a beta distribution. Its parameters are averaged by their likelihood under a flat prior on
    the mean and on the logarithm of the concentration, so that few prompts do not pin them to an extreme.
    """
    mean, concentration = (grid.ravel() for grid in np.meshgrid(MEANS, CONCENTRATIONS))
    a, b = mean * concentration, (1.0 - mean) * concentration
    log_likelihood = np.zeros_like(a)
    alike = Counter(zip(hits_P.tolist(), tries_P.tolist(), strict=True))
    for (hits, tries), count in alike.items():
        own = _log_rising(a, hits) + _log_rising(b, tries - hits) - _log_rising(a + b, tries)
        log_likelihood += count * own
    weight = np.exp(log_likelihood - log_likelihood.max())
    chance = np.exp(_log_rising(a, size) - _log_rising(a + b, size))
    return float((weight * chance).sum() / weight.sum())


def _log_rising(start: FloatArray, count: int) -> FloatArray:
    """Sum of log(start), log(start + 1), ... (``count`` of them): a ratio of gamma functions."""
    steps = np.arange(count, dtype=np.float64)
    result: FloatArray = np.log(start[:, None] + steps[None, :]).sum(axis=1)
    return result
