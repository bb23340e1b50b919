"""Estimates with intervals: means and paired differences over seeds, rank correlations over runs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ragen2.diagnostics.statistics.rank_test import rank_correlation
from ragen2.diagnostics.statistics.resampling import student_quantile, wilson_of_trials
from ragen2.seeding import stream
from ragen2.types import FloatArray

DRAWS = 10_000
"""Bootstrap samples."""
FEWEST_FINITE = 0.9
"""Share of bootstrap samples whose statistic must exist for an interval to be given."""
FEWEST_PAIRS = 10
"""Of a rank correlation with an interval: samples of fewer are too much alike, and its interval too short."""
Key = TypeVar("Key", bound=Hashable)
ValuePair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95% interval, what it is a number of, and how the interval was made."""

    value: float
    low: float | None
    """Ends of the interval; None where so few values allow none."""
    high: float | None
    num: int
    how: str

    @property
    def is_above(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low is not None and self.low > 0.0

    @property
    def is_below(self) -> bool:
        """Whether the whole interval lies below 0."""
        return self.high is not None and self.high < 0.0

    def times(self, factor: float) -> Estimate:
        """The same in another unit; a factor below 0 turns the ends around."""
        ends = [None if end is None else end * factor for end in (self.low, self.high)]
        low, high = ends if factor >= 0.0 else reversed(ends)
        return Estimate(self.value * factor, low, high, self.num, self.how)


def mean_estimate(values: Sequence[float], how: str = "t over seeds") -> Estimate | None:
    """Mean with Student's interval; None without a value, no ends for a single one."""
    if not values:
        return None
    values_N = np.asarray(values, dtype=np.float64)
    mean = float(values_N.mean())
    if len(values) < 2:
        return Estimate(mean, None, None, 1, how)
    half = (
        student_quantile(len(values) - 1.0) * float(values_N.std(ddof=1)) / math.sqrt(len(values))
    )
    return Estimate(mean, mean - half, mean + half, len(values), how)


def paired_estimate(
    first: Mapping[Key, float], second: Mapping[Key, float], factor: float = 1.0
) -> Estimate | None:
    """Mean of ``first - second`` over the keys, most often seeds, that both have, times ``factor``."""
    apart = [value - second[key] for key, value in first.items() if key in second]
    found = mean_estimate(apart, "t over paired seeds")
    return None if found is None else found.times(factor)


def share_estimate(marks: Sequence[bool]) -> Estimate | None:
    """Share of runs of which something is true, with Wilson's interval."""
    if not marks:
        return None
    share = sum(marks) / len(marks)
    return Estimate(share, *wilson_of_trials(share, len(marks)), len(marks), "Wilson over runs")


def spearman_estimate(
    strata: Sequence[Sequence[ValuePair]], name: str, of: str = "runs"
) -> Estimate | None:
    """Spearman's correlation inside each stratum, averaged by size; None below 3 pairs in all of them.

    Its percentile interval draws pairs anew in each stratum. Samples without a correlation are left out;
    where they are more than a tenth, no interval is given. ``of`` says what a pair is.
    """
    alone = [[[pair] for pair in one] for one in strata if _spearman([one]) is not None]
    return _of_arms(alone, name, of)


@dataclass(frozen=True, slots=True)
class ClusteredCorrelation:
    """Spearman's correlation of runs that come in arms: over all of them, between arms and inside them."""

    total: Estimate | None
    between: Estimate | None
    """Of the arms' means."""
    within: Estimate | None
    """Of what is left of each run when its arm's mean is taken off."""


Arms = Sequence[Sequence[ValuePair]]


def clustered_spearman(strata: Sequence[Arms], name: str, of: str = "arms") -> ClusteredCorrelation:
    """Ranked inside each stratum of arms; whole arms are drawn, because runs of one arm are alike.

    Fewer than ten arms have no interval. No arm is empty.
    """
    means = [[[_middle(arm)] for arm in arms] for arms in strata]
    apart = [[_less(arm, _middle(arm)) for arm in arms] for arms in strata]
    return ClusteredCorrelation(
        total=_of_arms(strata, f"{name} total", of),
        between=_of_arms(means, f"{name} between", of),
        within=_of_arms(apart, f"{name} within", of),
    )


def _middle(arm: Sequence[ValuePair]) -> ValuePair:
    return sum(x for x, _ in arm) / len(arm), sum(y for _, y in arm) / len(arm)


def _less(arm: Sequence[ValuePair], middle: ValuePair) -> list[ValuePair]:
    return [(x - middle[0], y - middle[1]) for x, y in arm]


def _of_arms(strata: Sequence[Arms], name: str, of: str) -> Estimate | None:
    value = _spearman([[pair for arm in arms for pair in arm] for arms in strata])
    if value is None:
        return None
    num = sum(map(len, strata))
    if num < FEWEST_PAIRS:
        return Estimate(value, None, None, num, f"too few {of}")
    rng = stream("experiment", "bootstrap", name)
    totals_D, sizes_D = np.zeros(DRAWS), np.zeros(DRAWS)
    for arms in strata:
        rho_D, size_D = _drawn(arms, rng)
        totals_D += np.where(np.isnan(rho_D), 0.0, rho_D * size_D)
        sizes_D += np.where(np.isnan(rho_D), 0.0, size_D)
    found = totals_D[sizes_D > 0.0] / sizes_D[sizes_D > 0.0]
    how = f"bootstrap over {of}"
    if len(found) < FEWEST_FINITE * DRAWS:
        return Estimate(value, None, None, num, how)
    low, high = np.quantile(found, [0.025, 0.975])
    return Estimate(value, float(low), float(high), num, how)


def _drawn(arms: Arms, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Correlations of samples of whole arms, not a number where there is none; and how many pairs each has.

    A sample is told by how often it holds each pair. All samples are ranked at once: a pair's rank is the
    number of smaller ones and half of those that are equal.
    """
    pairs_NV = np.array([pair for arm in arms for pair in arm])
    arm_N = np.repeat(np.arange(len(arms)), [len(arm) for arm in arms])
    share = np.full(len(arms), 1.0 / len(arms))
    counts_DN = rng.multinomial(len(arms), share, size=DRAWS)[:, arm_N].astype(np.float64)
    size_D = counts_DN.sum(axis=1)
    centred = []
    for values_N in pairs_NV.T:
        below_NN = (values_N < values_N[:, None]) + 0.5 * (values_N == values_N[:, None])
        ranks_DN = counts_DN @ below_NN.T
        centred.append(
            ranks_DN - (counts_DN * ranks_DN).sum(axis=1, keepdims=True) / size_D[:, None]
        )
    first_DN, second_DN = centred
    shared_D = (counts_DN * first_DN * second_DN).sum(axis=1)
    spread_D = np.sqrt(
        (counts_DN * first_DN**2).sum(axis=1) * (counts_DN * second_DN**2).sum(axis=1)
    )
    exists_D = (size_D >= 3) & (spread_D > 1e-9)
    return np.where(exists_D, shared_D / np.where(exists_D, spread_D, 1.0), np.nan), size_D


def _spearman(strata: Sequence[Sequence[ValuePair]]) -> float | None:
    total, weight = 0.0, 0
    for pairs in strata:
        rho = rank_correlation([x for x, _ in pairs], [y for _, y in pairs])
        if rho is not None:
            total, weight = total + rho * len(pairs), weight + len(pairs)
    return total / weight if weight else None
