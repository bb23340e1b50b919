"""Do the 95% intervals cover the truth 95 times in 100? Counted on sources whose truth is known.

The truth of a ``batch`` interval is what endless traces of the same prompts would give: an exact sum
over all traces. The truth of a ``population`` interval is the mean of the estimate over batches of the
same size drawn from the source: an average over many batches, without intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ragen2.diagnostics.metrics.mutual_information import IntervalKind, measure, metrics_of
from ragen2.diagnostics.metrics.trace_statistics import trace_statistics
from ragen2.diagnostics.sources import TabularSource
from ragen2.seeding import stream
from ragen2.types import IntArray, ScoreMatrix

ROUNDING = 1e-9
COVERED = (
    "mi_estimate",
    "mi_seq_estimate",
    "conditional_entropy",
    "conditional_entropy_seq",
    "reasoning_entropy",
    "reasoning_entropy_seq",
    "retrieval_accuracy",
    "mi_zscore",
    "mi_zscore_seq",
)
"""Metrics whose intervals are checked."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often the interval of one metric missed its truth, and on which side."""

    truth: float
    low_misses: int
    """Repetitions in which the whole interval lay above the truth."""
    high_misses: int
    """Repetitions in which the whole interval lay below the truth."""
    repetitions: int
    width: float
    """Mean width of the interval."""

    @property
    def share(self) -> float:
        """Share of repetitions whose interval held the truth."""
        return 1.0 - (self.low_misses + self.high_misses) / self.repetitions


@dataclass(frozen=True, slots=True)
class Design:
    """The size of a batch and how often to draw one."""

    prompts: int
    traces: int
    """Traces of each prompt."""
    repetitions: int = 1000
    resamples: int = 200
    truth_batches: int = 5000
    """Batches averaged for the truth of ``population`` intervals."""


def exact_metrics(source: TabularSource) -> dict[str, float]:
    """Every estimate as it would come out with endless traces of the source's prompts."""
    matrix, weight_N = source.every_trace()
    return {
        name: float(value) for name, value in metrics_of(trace_statistics(matrix), weight_N).items()
    }


def coverage(
    source: TabularSource, kind: IntervalKind, design: Design, seed: int = 0
) -> dict[str, Coverage]:
    """Coverage of every interval of ``measure`` over seeded repetitions.

    ``batch`` keeps the first prompts of the source; ``population`` draws prompts anew each time, so the
    source should have many more than a batch.
    """
    rng = stream("coverage", kind, seed)
    fixed = np.arange(design.prompts)

    def batch() -> ScoreMatrix:
        prompts = fixed if kind == "batch" else _draw(source, design.prompts, rng)
        return source.sample(design.traces, rng, prompts)

    if kind == "batch":
        truth = exact_metrics(source.only(fixed))
    else:
        truth = _mean_estimates([_estimates(batch()) for _ in range(design.truth_batches)])
    found = [
        measure(
            one.logp_NP,
            one.length_N,
            one.owner_N,
            interval=kind,
            resamples=design.resamples,
            seed=repetition,
        )
        for repetition, one in enumerate(batch() for _ in range(design.repetitions))
    ]
    return {
        name: count_misses(name, value, found)
        for name, value in truth.items()
        if f"{name}_low" in found[0]
    }


def _draw(source: TabularSource, prompts: int, rng: np.random.Generator) -> IntArray:
    return rng.permutation(source.num_prompts)[:prompts]


def _estimates(matrix: ScoreMatrix) -> dict[str, float]:
    return {name: float(value) for name, value in metrics_of(trace_statistics(matrix)).items()}


def _mean_estimates(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def count_misses(name: str, truth: float, found: list[dict[str, float]]) -> Coverage:
    """Hold the intervals of one metric over R repetitions against its truth."""
    low_R = np.array([one[f"{name}_low"] for one in found])
    high_R = np.array([one[f"{name}_high"] for one in found])
    return Coverage(
        truth=truth,
        low_misses=int((low_R > truth + ROUNDING).sum()),
        high_misses=int((high_R < truth - ROUNDING).sum()),
        repetitions=len(found),
        width=float((high_R - low_R).mean()),
    )
