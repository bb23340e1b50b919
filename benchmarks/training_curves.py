"""Simulated training runs with a known fate, to set and to test the early warning.

A run is a path of groundedness over its measurements. Each measurement is one of a few that the real
``measure`` made of batches of fresh prompts from a ``TabularSource`` of that groundedness, so the noise of
the curves is the noise of the estimators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from ragen2.diagnostics.judging.warning import EarlyWarning
from ragen2.diagnostics.metrics.mutual_information import measure
from ragen2.seeding import stream
from ragen2.types import FloatArray
from tabular_source import TabularSource

MEASUREMENTS = 120
POOL = 32
"""Prompts of a source; every batch draws others, as training does."""
LEVELS = 50
"""Steps in which groundedness is rounded, so that measurements can be used again."""
SOURCES = 4
"""Different sources; a run has one of them."""
RESAMPLES = 100

Size = tuple[int, int]
"""Prompts and traces per prompt of a batch."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a run: its groundedness at each measurement, and from where it collapses."""

    groundedness_T: FloatArray
    onset: int | None = None
    """First measurement of the collapse; None for a healthy run."""
    duration: int = 0
    """Measurements until the collapse is complete; 0 for a healthy run."""


def draw_fate(
    index: int,
    seed: int,
    *,
    is_collapsing: bool,
    autocorrelation: float = 0.5,
    wander: tuple[float, float] = (0.15, 0.2),
    lost: tuple[float, float] = (0.9, 1.0),
) -> Fate:
    """A run that wanders by a share of its groundedness, and in a third of cases rises too.

    Wander is a first-order autoregression with this lag-1 ``autocorrelation``. A collapsing run then loses a
    share of it: from a random eighth to half of the run on, over 1 to 50 measurements. Both kinds are drawn
    in the same way until then.
    """
    rng = stream("fate", seed, int(is_collapsing), index)
    time_T = np.arange(MEASUREMENTS)
    path_T = rng.uniform(0.3, 0.85) * (1.0 + rng.uniform(*wander) * _wander(rng, autocorrelation))
    if rng.random() < 1 / 3:
        speed = rng.uniform(1.0, 3.0)
        path_T *= 1.0 + rng.uniform(0.0, 0.4) * np.minimum(1.0, time_T * speed / MEASUREMENTS)
    path_T = np.clip(path_T, 0.0, 0.95)
    if not is_collapsing:
        return Fate(path_T)
    onset = int(rng.integers(MEASUREMENTS // 8, MEASUREMENTS // 2))
    duration = int(np.exp(rng.uniform(0.0, np.log(50.0))))
    gone_T = rng.uniform(*lost) * np.clip((time_T - onset + 1) / duration, 0.0, 1.0)
    return Fate(path_T * (1.0 - gone_T), onset, duration)


def _wander(rng: np.random.Generator, autocorrelation: float) -> FloatArray:
    """A stationary autoregression of variance 1."""
    fresh_T = rng.standard_normal(MEASUREMENTS)
    fresh_T[1:] *= np.sqrt(1.0 - autocorrelation**2)
    for step in range(1, MEASUREMENTS):
        fresh_T[step] += autocorrelation * fresh_T[step - 1]
    return fresh_T


def simulate(
    index: int, seed: int, fate: Fate, *, sizes: Sequence[Size] = ((8, 8),), draws: int = 12
) -> list[dict[str, float]]:
    """What is measured of a run; with two sizes, batches change from one to the other at a random time.

    Each measurement is one of ``draws`` that were made at its groundedness; another ``seed`` has others.
    """
    rng = stream("training curve", seed, index, int(fate.onset is not None))
    change = int(rng.integers(10, MEASUREMENTS - 20)) if len(sizes) > 1 else MEASUREMENTS
    found = []
    for step, groundedness in enumerate(fate.groundedness_T):
        size = sizes[0] if step < change else sizes[1]
        level = round(float(groundedness) * LEVELS)
        made = _measured(size, level, index % SOURCES, seed, draws)
        found.append(made[int(rng.integers(len(made)))])
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule made of a run."""

    alarm: int | None
    """Measurement that raised the first alarm; None if there was none."""
    onset: int | None

    @property
    def is_false_alarm(self) -> bool:
        """An alarm in a healthy run, or before the collapse began."""
        return self.alarm is not None and (self.onset is None or self.alarm < self.onset)

    @property
    def is_missed(self) -> bool:
        """A collapse without an alarm."""
        return self.onset is not None and self.alarm is None

    @property
    def delay(self) -> int | None:
        """Measurements from the first of the collapse to the alarm; 0 when they are the same."""
        if self.alarm is None or self.onset is None or self.alarm < self.onset:
            return None
        return self.alarm - self.onset


def first_alarm(rule: EarlyWarning, curve: Iterable[Mapping[str, float]]) -> int | None:
    """The measurement that raises the first alarm."""
    state = rule.start()
    for position, metrics in enumerate(curve):
        state = rule.update(state, metrics)
        if state.is_raised:
            return position
    return None


@cache
def _measured(
    size: Size, level: int, source: int, seed: int, draws: int
) -> tuple[dict[str, float], ...]:
    """Measurements of batches of this size at one level of groundedness."""
    prompts, traces = size
    rng = stream("measured", seed, prompts, traces, level, source)
    batches = [
        _source(level, source).sample(traces, rng, rng.permutation(POOL)[:prompts])
        for _ in range(draws)
    ]
    return tuple(
        measure(one.logp_NP, one.length_N, one.owner_N, resamples=RESAMPLES, seed=number)
        for number, one in enumerate(batches)
    )


@lru_cache(maxsize=SOURCES * (LEVELS + 1))
def _source(level: int, seed: int) -> TabularSource:
    return TabularSource.make(
        prompts=POOL, vocabulary=4, length=5, groundedness=level / LEVELS, seed=seed
    )
