"""Gradient probes of a run: those it made while it trained, and those of ``ragen2 probe``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ragen2.diagnostics.metrics.gradients import (
    ALL_PARTS,
    BucketGradient,
    GradientReport,
    ProbeRecord,
    PromptGradient,
    Trend,
)
from ragen2.errors import RunError
from ragen2.reports.data.numbers import short, spread_over
from ragen2.reports.gradients import about, prompt_reading, trend_reading, verdict
from ragen2.reports.load import Run
from ragen2.runs.record import StepRecord

METRIC = re.compile(r"^probe/(bucket_\d+|all)/(\w+)$")
MOST_ONLINE = 12
"""Probes of the training steps that are in the page."""


def probes_of(run: Run) -> list[dict[str, Any]]:
    """All probes in order of steps."""
    if run.audit is not None:
        return []
    online = [
        record for record in run.records if any(METRIC.match(name) for name in record.metrics)
    ]
    found = [_online(record) for record in spread_over(online, MOST_ONLINE)]
    found += [probe_entry(read_probe(path)) for path in sorted(run.path.glob("probe/*/probe.json"))]
    return sorted(found, key=lambda probe: int(probe["step"]))


def read_probe(path: Path) -> ProbeRecord:
    """A probe.json."""
    try:
        return ProbeRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(
            f"{path} is not a probe of this version; probe again or remove it"
        ) from error


def probe_entry(record: ProbeRecord) -> dict[str, Any]:
    """A probe as the page takes it."""
    lines = [about(record), *map(trend_reading, record.trends), prompt_reading(record)]
    return _entry(record.step, record.trends, lines, record.report)


def _online(record: StepRecord) -> dict[str, Any]:
    """The probe of a training step, as far as its record has it."""
    found: dict[str, dict[str, float]] = {}
    for name, value in record.metrics.items():
        match = METRIC.match(name)
        if match:
            found.setdefault(match[1], {})[match[2]] = value
    names = sorted(found.keys() - {"all"}, key=lambda name: int(name.removeprefix("bucket_")))
    buckets = [
        _bucket(name, found[name]) for name in [*names, *(["all"] if "all" in found else [])]
    ]
    report = GradientReport(tuple(buckets), ())
    trends = report.trends()
    return _entry(record.step, trends, list(map(trend_reading, trends)), report)


def _bucket(name: str, numbers: dict[str, float]) -> BucketGradient:
    variance = numbers.get("variance", 0.0)
    return BucketGradient(
        name=name,
        prompts=int(numbers.get("prompts", 0)),
        trajectories=0,
        variance_low=variance,
        variance_mean=variance,
        variance_high=variance,
        norms={part: numbers[f"{part}_norm"] for part in ALL_PARTS if f"{part}_norm" in numbers},
        cosines={
            key.removeprefix("cosine_"): value
            for key, value in numbers.items()
            if key.startswith("cosine_")
        },
        snr=numbers.get("snr"),
    )


def _entry(
    step: int, trends: tuple[Trend, ...], lines: list[str], report: GradientReport
) -> dict[str, Any]:
    return {
        "step": step,
        "text": verdict(trends),
        "readings": lines,
        "buckets": [_bucket_entry(bucket) for bucket in report.buckets],
        "prompts": [_prompt_entry(prompt) for prompt in report.prompts],
    }


def _bucket_entry(bucket: BucketGradient) -> dict[str, Any]:
    return {
        "name": bucket.name,
        "variance": short(bucket.variance_mean),
        "prompts": bucket.prompts,
        "snr": short(bucket.snr),
        "norms": {part: short(value) for part, value in bucket.norms.items()},
        "cosines": {pair: short(value) for pair, value in bucket.cosines.items()},
    }


def _prompt_entry(prompt: PromptGradient) -> dict[str, Any]:
    return {
        "seed": prompt.seed,
        "variance": short(prompt.variance),
        "norm": short(prompt.norm),
        "bound": short(prompt.bound),
    }
