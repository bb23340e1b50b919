"""ProbeRecord: the schema of probe.json, which ``ragen2 probe`` writes and its page is drawn from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ragen2.diagnostics.gradients import BucketGradient, GradientReport, PromptGradient, Trend


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
    trends: tuple[Trend, ...]
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
