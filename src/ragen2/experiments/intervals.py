"""Estimates with intervals: means and paired differences over seeds, rank correlations over runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ragen2.diagnostics.statistics.rank_test import rank_correlation
from ragen2.diagnostics.statistics.resampling import student_quantile, wilson_of_trials
from ragen2.seeding import stream

DRAWS = 2000
"""Bootstrap samples."""
FEWEST_FINITE = 0.9
"""Share of bootstrap samples whose statistic must exist for an interval to be given."""
FEWEST_PAIRS = 10
"""Of a rank correlation with an interval: samples of fewer are too much alike, and its interval too short."""
Row = TypeVar("Row")
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


def bootstrap_estimate(
    rows: Sequence[Sequence[Row]],
    statistic: Callable[[Sequence[Sequence[Row]]], float | None],
    name: str,
    of: str = "runs",
) -> Estimate | None:
    """A statistic of strata of rows, with a percentile interval: rows are drawn anew in each stratum.

    Samples in which the statistic does not exist are left out; where they are more than a tenth, no
    interval is given. ``of`` says what a row is.
    """
    value = statistic(rows)
    if value is None:
        return None
    rng = stream("experiment", "bootstrap", name)
    found = []
    for _ in range(DRAWS):
        drawn = [[one[i] for i in rng.integers(len(one), size=len(one))] for one in rows]
        again = statistic(drawn)
        if again is not None:
            found.append(again)
    num, how = sum(map(len, rows)), f"bootstrap over {of}"
    if len(found) < FEWEST_FINITE * DRAWS:
        return Estimate(value, None, None, num, how)
    low, high = np.quantile(found, [0.025, 0.975])
    return Estimate(value, float(low), float(high), num, how)


def spearman_estimate(
    strata: Sequence[Sequence[ValuePair]], name: str, of: str = "runs"
) -> Estimate | None:
    """Spearman's correlation inside each stratum, averaged by size; None below 3 pairs in all of them."""
    used = [list(one) for one in strata if _spearman([one]) is not None]
    return _of_enough(bootstrap_estimate(used, _spearman, name, of)) if used else None


def grouped_spearman_estimate(
    groups: Sequence[Sequence[ValuePair]], name: str, of: str
) -> Estimate | None:
    """Spearman's correlation over all pairs; whole groups are drawn, because pairs of one are alike."""

    def statistic(drawn: Sequence[Sequence[Sequence[ValuePair]]]) -> float | None:
        return _spearman([[pair for group in drawn[0] for pair in group]])

    return _of_enough(bootstrap_estimate([groups], statistic, name, of))


def _of_enough(found: Estimate | None) -> Estimate | None:
    if found is None or found.num >= FEWEST_PAIRS:
        return found
    return Estimate(found.value, None, None, found.num, found.how)


def _spearman(strata: Sequence[Sequence[ValuePair]]) -> float | None:
    total, weight = 0.0, 0
    for pairs in strata:
        rho = rank_correlation([x for x, _ in pairs], [y for _, y in pairs])
        if rho is not None:
            total, weight = total + rho * len(pairs), weight + len(pairs)
    return total / weight if weight else None
