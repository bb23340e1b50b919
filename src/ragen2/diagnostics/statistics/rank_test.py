"""Spearman's rank correlation with an interval and a p-value: do two numbers rise together?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.diagnostics.statistics.resampling import Z95
from ragen2.seeding import stream
from ragen2.types import FloatArray

EXACT_UP_TO = 7
"""Pairs up to which all orders are tried: 5040 of them."""
DRAWS = 5000
"""Orders drawn at random for more pairs."""


@dataclass(frozen=True, slots=True)
class RankTest:
    """A rank correlation of ``num`` pairs."""

    rho: float
    low: float | None
    """Ends of the 95% interval; None below 5 pairs, where none can be given."""
    high: float | None
    p_value: float
    """Two-sided, against all orders being equally likely."""
    num: int


def rank_test(first: Sequence[float], second: Sequence[float]) -> RankTest | None:
    """Test two series of pairs; None below 3 pairs or when either never changes.

    The interval is Fisher's with the variance of Bonett and Wright (2000), (1 + rho^2 / 2) / (n - 3).
    Pairs count as independent; where they are not, as with steps of one run, both it and the p-value
    are too confident.
    """
    rho = rank_correlation(first, second)
    if rho is None:
        return None
    low, high = _interval(rho, len(first))
    return RankTest(rho, low, high, _p_value(rho, first, second), len(first))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties sharing their mean rank; None below 3 pairs or without spread."""
    if len(first) < 3:
        return None
    first_N, second_N = _centred(ranks(first)), _centred(ranks(second))
    spread = math.sqrt(float((first_N @ first_N) * (second_N @ second_N)))
    return float(first_N @ second_N) / spread if spread else None


def ranks(values: Sequence[float]) -> FloatArray:
    """Rank of each value, from 1; equal values share their mean rank."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray(ends[place] - (counts[place] - 1) / 2.0)


def _interval(rho: float, num: int) -> tuple[float | None, float | None]:
    if num < 5:
        return None, None
    # Fisher's transform of a perfect order is infinite; that of the next best order is not.
    best = 1.0 - 6.0 * 2.0 / (num * (num * num - 1))
    inner = min(best, max(-best, rho))
    half = Z95 * math.sqrt((1.0 + inner * inner / 2.0) / (num - 3))
    middle = math.atanh(inner)
    return min(rho, math.tanh(middle - half)), max(rho, math.tanh(middle + half))


def _p_value(rho: float, first: Sequence[float], second: Sequence[float]) -> float:
    first_N, second_N = _centred(ranks(first)), _centred(ranks(second))
    scale = math.sqrt(float((first_N**2).sum() * (second_N**2).sum()))
    if len(first) <= EXACT_UP_TO:
        orders = np.array(list(itertools.permutations(range(len(first)))))
        reached = np.abs(second_N[orders] @ first_N) / scale >= abs(rho) - 1e-12
        return float(reached.mean())
    shuffled = stream("rank test").permuted(np.tile(second_N, (DRAWS, 1)), axis=1)
    reached = np.abs(shuffled @ first_N) / scale >= abs(rho) - 1e-12
    return (1.0 + float(reached.sum())) / (1.0 + DRAWS)


def _centred(values: FloatArray) -> FloatArray:
    return np.asarray(values - values.mean())
