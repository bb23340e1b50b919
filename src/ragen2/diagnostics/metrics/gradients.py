"""Gradients by reward variance: does the task still pull harder than what ignores the input?

On gradients that a learner computed and keeps; ``trainer/probe.py`` gets them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from ragen2.diagnostics.statistics.rank_test import rank_correlation
from ragen2.policy import Gradient
from ragen2.types import FloatArray

PARTS = ("task", "kl", "entropy")
"""Parts whose directions are compared."""
Part = Literal["task", "centred", "kl", "entropy"]
ALL_PARTS: tuple[Part, ...] = ("task", "centred", "kl", "entropy")
"""Parts that have a norm, in reading order."""


@dataclass(frozen=True, slots=True)
class BucketGradient:
    """One bucket of prompts, lowest reward variance first; ``all`` is the whole batch."""

    name: str
    prompts: int
    trajectories: int
    variance_low: float
    variance_mean: float
    variance_high: float
    norms: Mapping[str, float]
    """Norm of the bucket's own gradient of each part of the loss, without coefficients.

    ``task`` is the loss as trained, with the algorithm's advantages; ``centred`` the same loss with
    return minus the group's mean as advantage; ``kl`` and ``entropy`` the regularisers.
    """
    cosines: Mapping[str, float]
    """Cosine of each pair of task, KL and entropy whose norms are not 0, as ``task_kl``."""
    snr: float | None
    """Squared length of the mean policy gradient over the variance of that mean; None for one rollout."""


@dataclass(frozen=True, slots=True)
class PromptGradient:
    """One prompt's policy gradient against the bound that its reward spread allows."""

    seed: int
    variance: float
    """Of these rewards (ddof 0): the quantity in the bound."""
    norm: float
    """Of the mean over its rollouts of (return - mean return) times the score function."""
    bound: float
    """sqrt(variance) times the root mean square of the score functions' norms (Cauchy-Schwarz, RAGEN-2)."""


@dataclass(frozen=True, slots=True)
class NormTrend:
    """How a part's norm goes with reward variance over the buckets."""

    part: Part
    lowest: float
    """Norm in the bucket of lowest variance."""
    highest: float
    """Norm in the bucket of highest variance."""
    rank_correlation: float | None
    """Spearman's, of norm and mean variance; None for fewer than 3 buckets or when either is constant."""
    spread: float | None
    """Largest norm over smallest; None when the smallest is 0."""


@dataclass(frozen=True, slots=True)
class GradientReport:
    """What one probe found."""

    buckets: tuple[BucketGradient, ...]
    prompts: tuple[PromptGradient, ...]

    def trends(self) -> tuple[NormTrend, ...]:
        """Of every part that was measured, over all buckets but ``all``."""
        buckets = [bucket for bucket in self.buckets if bucket.name != "all"]
        parts = [part for part in ALL_PARTS if buckets and all(part in b.norms for b in buckets)]
        variances = [bucket.variance_mean for bucket in buckets]
        return tuple(
            _trend(part, variances, [bucket.norms[part] for bucket in buckets]) for part in parts
        )

    def prompt_correlation(self) -> float | None:
        """Spearman's, of the prompts' policy gradient norm and their reward variance."""
        return rank_correlation(
            [prompt.variance for prompt in self.prompts], [prompt.norm for prompt in self.prompts]
        )

    def metrics(self) -> dict[str, float]:
        """Numbers for a step record, under ``probe/``."""
        found: dict[str, float] = {}
        for bucket in self.buckets:
            stem = f"probe/{bucket.name}/"
            found |= {f"{stem}{part}_norm": value for part, value in bucket.norms.items()}
            found |= {f"{stem}cosine_{pair}": value for pair, value in bucket.cosines.items()}
            found |= {f"{stem}variance": bucket.variance_mean, f"{stem}prompts": bucket.prompts}
            if bucket.snr is not None:
                found[f"{stem}snr"] = bucket.snr
        return found


def rank_buckets(variance_P: FloatArray, count: int = 6) -> list[list[int]]:
    """Prompts from lowest to highest variance, cut into (nearly) equal buckets; never an empty one."""
    order = np.argsort(variance_P, kind="stable")
    return [part.tolist() for part in np.array_split(order, min(count, len(order)))]


def edge_buckets(variance_P: FloatArray, edges: Sequence[float]) -> list[list[int]]:
    """Prompts whose variance lies in [edge, next edge); the last bucket has no end. Empty ones stay."""
    place_P = np.searchsorted(np.asarray(edges), variance_P, side="right") - 1
    return [np.flatnonzero(place_P == bucket).tolist() for bucket in range(len(edges))]


def norm(gradient: Gradient) -> float:
    """Euclidean length, summed in double precision."""
    return math.sqrt(gradient.dot(gradient))


def cosines(vectors: Mapping[str, Gradient]) -> dict[str, float]:
    """Cosine of every pair of gradients that both have a length."""
    names = [name for name in PARTS if name in vectors and norm(vectors[name]) > 0.0]
    found: dict[str, float] = {}
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            dot = vectors[first].dot(vectors[second])
            found[f"{first}_{second}"] = dot / (norm(vectors[first]) * norm(vectors[second]))
    return found


def _trend(part: Part, variances: Sequence[float], norms: Sequence[float]) -> NormTrend:
    smallest = min(norms)
    return NormTrend(
        part=part,
        lowest=norms[0],
        highest=norms[-1],
        rank_correlation=rank_correlation(variances, norms),
        spread=max(norms) / smallest if smallest > 0.0 else None,
    )


@dataclass(slots=True)
class PolicyGradient:
    """Running sums of what single rollouts contribute to the policy gradient."""

    count: int = 0
    total: Gradient | None = None
    squares: float = 0.0
    """Sum of the contributions' squared norms."""
    score_squares: float = 0.0
    """Sum of the score functions' squared norms."""

    def add(self, score: Gradient, advantage: float) -> None:
        """One rollout: the gradient of its log-probability and how much better than its group it did."""
        size = score.dot(score)
        self.total = score.added_to(self.total, advantage)
        self.count += 1
        self.squares += advantage**2 * size
        self.score_squares += size

    def join(self, other: PolicyGradient) -> None:
        """Add another's sums."""
        if other.total is not None:
            self.total = other.total.added_to(self.total, 1.0)
        self.count += other.count
        self.squares += other.squares
        self.score_squares += other.score_squares

    @property
    def mean_norm(self) -> float:
        """Length of the mean contribution."""
        return 0.0 if self.total is None else norm(self.total) / self.count

    @property
    def score_rms(self) -> float:
        """Root mean square norm of the score functions."""
        return float(np.sqrt(self.score_squares / self.count)) if self.count else 0.0

    @property
    def snr(self) -> float | None:
        """Squared length of the mean over its estimated variance; None when that cannot be estimated."""
        if self.count < 2:
            return None
        signal = self.mean_norm**2
        noise = (self.squares - self.count * signal) / (self.count - 1) / self.count
        return signal / noise if noise > 0.0 else None


class ProbeRecord(BaseModel):
    """One probe of one checkpoint: what was probed and everything that was found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    run: str
    """Name of the run directory."""
    step: int
    """Step of the checkpoint; 0 is the starting model."""
    model: str
    env: str
    algorithm: str
    aggregation: str
    kl_estimator: str
    """Of the KL part; its reference is the run's starting model."""
    num_prompts: int
    group_size: int
    edges: tuple[float, ...]
    """Lower edges of the buckets; empty for buckets of equal size."""
    buckets: tuple[BucketGradient, ...]
    prompts: tuple[PromptGradient, ...]
    trends: tuple[NormTrend, ...]
    prompt_correlation: float | None
    """Rank correlation of the prompts' policy gradient norm and their reward variance."""
    seconds: dict[str, float]

    @property
    def report(self) -> GradientReport:
        """The numbers alone."""
        return GradientReport(self.buckets, self.prompts)


def broken_numbers(report: GradientReport) -> list[str]:
    """Names of what is not finite, such as ``task of bucket_1``; empty when all is well."""
    return [name for name, value in _numbers(report) if not math.isfinite(value)]


def _numbers(report: GradientReport) -> Iterator[tuple[str, float]]:
    for bucket in report.buckets:
        for part, value in bucket.norms.items():
            yield f"{part} of {bucket.name}", value
    for prompt in report.prompts:
        yield f"policy gradient of seed {prompt.seed}", prompt.norm
