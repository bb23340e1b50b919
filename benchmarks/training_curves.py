"""Simulated training runs with a known fate, to set and to test the early warning.

A run is a path of groundedness over its measurements. At each one, a batch of fresh prompts is drawn from
a ``TabularSource`` of that groundedness and goes through the real ``measure``, so the noise of the curves
is the noise of the estimators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

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
"""Steps in which groundedness is rounded, so that sources can be used again."""
SOURCES = 4
"""Different sources, taken in turn."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a run: its groundedness at each measurement, and from where it collapses."""

    groundedness_T: FloatArray
    onset: int | None
    """First measurement of the collapse; None for a healthy run."""
    duration: int
    """Measurements until the collapse is complete; 0 for a healthy run."""


def draw_fate(index: int, seed: int, *, is_collapsing: bool) -> Fate:
    """A run that is flat, wanders or rises; a collapsing one then loses 90 to 100% of it.

    The collapse begins after a random eighth to half of the run and takes from 1 to 50 measurements.
    Both kinds are drawn in the same way until then.
    """
    rng = stream("fate", seed, int(is_collapsing), index)
    time_T = np.arange(MEASUREMENTS)
    start = rng.uniform(0.3, 0.85)
    phase_T = 2.0 * np.pi * (time_T / rng.uniform(30.0, 120.0) + rng.random())
    wander_T = 1.0 + rng.uniform(0.0, 0.1) * np.sin(phase_T)
    rise = rng.uniform(0.0, 0.3) if rng.random() < 1 / 3 else 0.0
    path_T = (
        start + rise * np.minimum(1.0, time_T * rng.uniform(1.0, 3.0) / MEASUREMENTS)
    ) * wander_T
    onset, duration, left_T = None, 0, np.ones(MEASUREMENTS)
    if is_collapsing:
        onset = int(rng.integers(MEASUREMENTS // 8, MEASUREMENTS // 2))
        duration = int(np.exp(rng.uniform(0.0, np.log(50.0))))
        lost = rng.uniform(0.9, 1.0)
        left_T = 1.0 - lost * np.clip((time_T - onset + 1) / duration, 0.0, 1.0)
    return Fate(np.clip(path_T, 0.0, 0.95) * left_T, onset, duration)


def simulate(
    index: int,
    seed: int,
    fate: Fate,
    *,
    prompts: int = 8,
    traces: int = 8,
    resamples: int = 100,
) -> list[dict[str, float]]:
    """What ``measure`` returns at each measurement of a run, on batches of prompts x traces."""
    rng = stream("training curve", seed, index, 0 if fate.onset is None else 1)
    found = []
    for step, groundedness in enumerate(fate.groundedness_T):
        source = _source(round(float(groundedness) * LEVELS), index % SOURCES)
        batch = source.sample(traces, rng, rng.permutation(POOL)[:prompts])
        found.append(
            measure(batch.logp_NP, batch.length_N, batch.owner_N, resamples=resamples, seed=step)
        )
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


def outcome(statistic_T: FloatArray, threshold: float, fate: Fate) -> Outcome:
    """When a statistic first reached the threshold, against what happened."""
    reached = np.flatnonzero(statistic_T >= threshold)
    return Outcome(int(reached[0]) if len(reached) else None, fate.onset)


def statistics(rule: EarlyWarning, curve: Iterable[Mapping[str, float]]) -> FloatArray:
    """The rule's sum after each measurement, in noise scales, as if no threshold ended it."""
    endless = rule.model_copy(update={"threshold": 1e6})
    state, sums = endless.start(), []
    for metrics in curve:
        state = endless.update(state, metrics)
        sums.append(state.statistic * endless.threshold)
    return np.array(sums)


def calibrate(healthy: Sequence[FloatArray], false_alarms: float) -> float:
    """The least threshold that at most this share of healthy runs ever reaches.

    ``healthy`` holds the ``statistics`` of each run. ``benchmarks/early_warning.py`` shows how the default
    threshold was found with it.
    """
    peaks = np.sort([float(statistic_T.max()) for statistic_T in healthy])
    allowed = int(false_alarms * len(peaks))
    if allowed >= len(peaks):
        return 0.0
    return float(np.nextafter(peaks[len(peaks) - 1 - allowed], np.inf))


@lru_cache(maxsize=SOURCES * (LEVELS + 1))
def _source(level: int, seed: int) -> TabularSource:
    return TabularSource.make(
        prompts=POOL, vocabulary=4, length=5, groundedness=level / LEVELS, seed=seed
    )
