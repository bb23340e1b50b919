"""Seeded resampling: studentised bootstrap of a stratified mean, and permutation p-values.

Shape letters: N values of M quantities, B draws, S strata of equal size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ragen2.types import BoolArray, FloatArray, IntArray

Interval = tuple[float, float]
Z95 = 1.959964
"""Half-width of a 95% interval in standard errors."""
LEVEL = 0.95
LARGEST_DRAW = 3.0
"""Studentised draws are cut at this multiple of Student's quantile: where a draw repeats nearly equal
values its own spread vanishes and says nothing about the tail."""
ROUNDING = 1e-12
"""Spread below this share of the values' size is floating-point rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """How uncertain M stratified means are."""

    error_M: FloatArray
    """Standard error."""
    freedom_M: FloatArray
    """Degrees of freedom of the standard error, by Satterthwaite's formula (1946)."""
    low_M: FloatArray
    """How far the low end lies below the mean, in standard errors."""
    high_M: FloatArray
    """How far the high end lies above the mean, in standard errors."""


def stratified_spread(
    values_NM: FloatArray, stratum_N: IntArray, draws: int, rng: np.random.Generator
) -> Spread | None:
    """Uncertainty of ``values_NM.mean(0)`` when values are drawn anew within each stratum.

    Ends come from the studentised bootstrap (bootstrap-t, Efron and Tibshirani 1993, section 12.5), which
    follows a skewed distribution, but are never nearer than Student's t. Strata of one value are taken to
    vary like the others; None where all are so.
    """
    members = _members(stratum_N)
    repeated = [rows for rows in members if len(rows) > 1]
    if not repeated:
        return None
    centred_NM = _centred(values_NM, members)
    variance_M = np.zeros(values_NM.shape[1])
    squared_M = np.zeros_like(variance_M)
    mean_BM = np.zeros((draws, values_NM.shape[1]))
    variance_BM = np.zeros_like(mean_BM)
    for block_SK in _blocks(repeated):
        block_SKM = centred_NM[block_SK]
        size = block_SK.shape[1]
        share = size / len(values_NM) ** 2
        part_SM = share * block_SKM.var(1, ddof=1)
        variance_M += part_SM.sum(0)
        squared_M += (part_SM**2).sum(0) / (size - 1)
        # Resampling is a multinomial count of each value: all draws of all strata of a size are one product.
        drawn = rng.multinomial(size, np.full(size, 1.0 / size), (len(block_SK), draws))
        counts_SBK = drawn.astype(np.float64)
        sum_SBM = counts_SBK @ block_SKM
        mean_BM += sum_SBM.sum(0) / len(values_NM)
        square_SBM = counts_SBK @ block_SKM**2 - sum_SBM**2 / size
        variance_BM += share * square_SBM.sum(0) / (size - 1)
    variance_M[variance_M <= (ROUNDING * np.abs(values_NM).max(0)) ** 2] = 0.0
    whole = float(sum(len(rows) - 1 for rows in repeated))
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom_M = np.where(variance_M > 0.0, variance_M**2 / squared_M, whole)
        student_BM = mean_BM / np.sqrt(np.maximum(variance_BM, 0.0))
    # What strata of one value add to the variance is taken from the others.
    shared = len(values_NM) / sum(map(len, repeated))
    return _ends(np.sqrt(shared * variance_M), freedom_M, student_BM)


def _ends(error_M: FloatArray, freedom_M: FloatArray, student_BM: FloatArray) -> Spread:
    """Per side the wider of Student's t and the studentised draws.

    Low ends come from high draws: a draw t errors above the batch says that the batch may be t errors above
    the truth.
    """
    quantile_M = np.array([student_quantile(float(freedom)) for freedom in freedom_M])
    cut_BM = np.clip(
        np.nan_to_num(student_BM), -LARGEST_DRAW * quantile_M, LARGEST_DRAW * quantile_M
    )
    tail = (1.0 - LEVEL) / 2.0
    low_M, high_M = np.quantile(cut_BM, [1.0 - tail, tail], axis=0)
    return Spread(
        error_M, freedom_M, np.maximum(quantile_M, low_M), np.maximum(quantile_M, -high_M)
    )


def _members(stratum_N: IntArray) -> list[IntArray]:
    """Rows of each stratum."""
    return [np.flatnonzero(stratum_N == one) for one in np.unique(stratum_N)]


def _centred(values_NM: FloatArray, members: list[IntArray]) -> FloatArray:
    """Values less the mean of their stratum: the difference of large squares would be all rounding."""
    centred_NM = values_NM.astype(np.float64, copy=True)
    for rows in members:
        centred_NM[rows] -= centred_NM[rows].mean(0)
    return centred_NM


def _blocks(members: list[IntArray]) -> Iterator[IntArray]:
    """Strata of equal size together, one stratum per row, so that each size is one batch of work."""
    for size in sorted({len(rows) for rows in members}):
        yield np.array([rows for rows in members if len(rows) == size])


@lru_cache(maxsize=4096)
def student_quantile(freedom: float, level: float = LEVEL) -> float:
    """How many standard errors the middle ``level`` of Student's t reaches to each side.

    With ``t = sqrt(freedom) tan(angle)`` the density is ``cos(angle) ** (freedom - 1)``, summed here on a
    fine grid. Fewer than one degree of freedom count as one, more than 1000 as 1000.
    """
    freedom = min(max(freedom, 1.0), 1000.0)
    angle = np.linspace(0.0, np.pi / 2.0, 20_001)
    density = np.cos(angle) ** (freedom - 1.0)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2.0)])
    return float(np.sqrt(freedom) * np.tan(np.interp(level, below / below[-1], angle)))


def wilson_interval(
    share: float, error: float, quantile: float, *, fewest: float, most: float
) -> Interval:
    """Wilson's interval (1927) of a share with a given standard error.

    The error says how many independent trials the share is worth, at most ``most``. All right or all
    wrong has no error to go by and counts as ``fewest`` trials, so that its interval still has width.
    """
    seen = error > 0.0 and 0.0 < share < 1.0
    variance = share * (1.0 - share)
    trials = variance / max(error**2, variance / most) if seen else fewest
    return wilson_of_trials(share, trials, quantile)


def wilson_of_trials(share: float, trials: float, quantile: float = Z95) -> Interval:
    """Wilson's score interval of a share of so many independent trials."""
    variance = share * (1.0 - share)
    shrink = 1.0 / (1.0 + quantile**2 / trials)
    centre = shrink * (share + quantile**2 / (2.0 * trials))
    half = shrink * quantile * float(np.sqrt(variance / trials + (quantile / trials) ** 2 / 4.0))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def permuted_owners(
    owner_N: IntArray, stratum_N: IntArray, draws: int, rng: np.random.Generator
) -> IntArray:
    """``draws`` rows of owners permuted among the traces of each stratum."""
    owners_BN = np.tile(owner_N, (draws, 1))
    for stratum in np.unique(stratum_N):
        members = np.flatnonzero(stratum_N == stratum)
        owners_BN[:, members] = rng.permuted(owners_BN[:, members], axis=1)
    return owners_BN


def scored_owners(owners_BN: IntArray, scored_NP: BoolArray, rng: np.random.Generator) -> IntArray:
    """A trace whose new owner it was not scored under gets one of its scored prompts at random."""
    if scored_NP.all():
        return owners_BN
    rows = np.arange(len(scored_NP))
    first_NP = np.argsort(~scored_NP, axis=1, kind="stable")
    pick_BN = (rng.random(owners_BN.shape) * scored_NP.sum(1)).astype(np.int64)
    return np.where(scored_NP[rows, owners_BN], owners_BN, first_NP[rows, pick_BN])


def permutation_p_value(observed: float, null_B: FloatArray) -> float:
    """Share of null values at least as large, the observed one counted in, so it is never 0.

    (1 + b) / (1 + B) is exact for random permutations, b / B is too small (Phipson and Smyth 2010).
    Uniform under the null where values do not tie; ties count against the observed value, so that it
    is never too small.
    """
    # Equal assignments may sum in another order: within rounding they tie.
    reached = int((np.asarray(null_B) >= observed - 1e-12).sum())
    return (1 + reached) / (1 + len(null_B))
