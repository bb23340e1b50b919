"""Does a noisy, correlated series of a run rise or fall, by how much, and since when?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.types import FloatArray

MAX_BLOCKS = 12
"""A series is cut into at most this many blocks: neighbours in a run are alike, block means hardly."""
FEWEST_POINTS = 6
"""With fewer points not even a perfect order is significant at 0.01."""
FEWEST_IN_THIRD = 5
"""Points that a third needs for its mean to be compared."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What a series does around its course."""

    std: float
    correlation: float
    """Of neighbours."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A monotone trend over the whole series."""

    p_rising: float
    """One-sided: chance of as much order or change upwards without a trend."""
    p_falling: float
    start: float
    """Median of the first third of the series."""
    end: float
    """Median of the last third."""

    @property
    def change(self) -> float:
        """From the first third to the last."""
        return self.end - self.start


def trend(values: Sequence[float]) -> Trend | None:
    """The trend of a series; None when it has too few points to tell.

    Two tests share the error: of order (Mann-Kendall, on means of blocks), which sees a slow drift, and
    of level (first against last third), which sees a change however short. Both are widened by the
    correlation of the noise. A series that never changes has p-values of 1.
    """
    if len(values) < FEWEST_POINTS:
        return None
    values_T = np.asarray(values, dtype=np.float64)
    blocks = block_means(values_T)
    noise = noise_of(values_T)
    shared = block_correlation(noise.correlation, len(values) / len(blocks))
    rising = min(mann_kendall(blocks, shared), level_shift(values_T, noise))
    falling = min(mann_kendall(-blocks, shared), level_shift(-values_T, noise))
    third = len(values) // 3
    return Trend(
        p_rising=min(1.0, 2.0 * rising),
        p_falling=min(1.0, 2.0 * falling),
        start=float(np.median(values_T[:third])),
        end=float(np.median(values_T[-third:])),
    )


def departure(steps: Sequence[int], values: Sequence[float], found: Trend) -> int:
    """The step from which on the series has stayed a quarter of the whole change from its start.

    Single outliers do not count: the series is first smoothed by a running median of five.
    """
    level = found.start + found.change / 4.0
    padded = np.pad(np.asarray(values, dtype=np.float64), 2, mode="edge")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)
    is_back = (smooth - level) * np.sign(found.change) < 0.0
    last_back = int(np.flatnonzero(is_back)[-1]) if is_back.any() else -1
    return steps[min(last_back + 1, len(steps) - 1)]


def block_means(values: FloatArray) -> FloatArray:
    """Means of at most ``MAX_BLOCKS`` runs of neighbours of nearly equal length."""
    blocks = np.array_split(values, min(MAX_BLOCKS, len(values)))
    return np.array([block.mean() for block in blocks])


def mann_kendall(values: FloatArray, correlation: float = 0.0) -> float:
    """One-sided p-value for a rise, ties and the correlation of neighbours taken into account."""
    n = len(values)
    i, j = np.triu_indices(n, k=1)
    order = float(np.sign(values[j] - values[i]).sum())
    ties = np.unique(values, return_counts=True)[1].astype(np.float64)
    variance = n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())
    if variance <= 0.0:
        return 1.0
    # Kendall (1975): the sum with ties, over 18. Correlation r leaves (1 - r) / (1 + r) of the points' worth.
    variance *= (1.0 + correlation) / (1.0 - correlation) / 18.0
    # A continuity correction of one towards 0, because the sum moves in steps of two.
    z = (order - np.sign(order)) / math.sqrt(variance)
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def level_shift(values: FloatArray, noise: Noise) -> float:
    """One-sided p-value for the last third lying above the first; 1 for a series too short for it."""
    third = len(values) // 3
    if third < FEWEST_IN_THIRD or noise.std <= 0.0:
        return 1.0
    error = noise.std * math.sqrt(
        2.0 / third * (1.0 + noise.correlation) / (1.0 - noise.correlation)
    )
    z = float(values[-third:].mean() - values[:third].mean()) / error
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def noise_of(values: FloatArray) -> Noise:
    """Size and lag-1 correlation (0 to 0.9) of the noise of a series around its smooth course.

    Differences of neighbours, less their middle in each third of the series, hardly see the course;
    those of noise with lag-1 correlation r have 2 (1 - r) times its variance, and (r - 1) / 2 as their
    own correlation. They are cut at three spreads, so that a jump counts no more than noise.
    """
    thirds = np.array_split(np.diff(values), 3)
    step = np.concatenate([third - np.median(third) for third in thirds])
    # 1.4826 makes the median absolute deviation of a normal distribution its standard deviation.
    spread = 1.4826 * float(np.median(np.abs(step)))
    step = np.clip(step, -3.0 * spread, 3.0 * spread)
    power = float((step**2).mean())
    if power <= 0.0:
        return Noise(0.0, 0.0)
    own = float((step[1:] * step[:-1]).mean()) / power
    correlation = float(np.clip(1.0 + 2.0 * own, 0.0, 0.9))
    return Noise(math.sqrt(power / (2.0 * (1.0 - correlation))), correlation)


def block_correlation(correlation: float, size: float) -> float:
    """Correlation of the means of neighbouring blocks of ``size`` values with this lag-1 correlation.

    From the sums of the geometric series of an autoregressive noise; blocks of one give it back.
    """
    left = math.pow(correlation, size)
    variance = size * (1.0 - correlation**2) - 2.0 * correlation * (1.0 - left)
    return correlation * (1.0 - left) ** 2 / variance
