"""Gradient probes, in words and as the page takes them: which part of the loss pulls, by reward variance."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ragen2.diagnostics.metrics.gradients import (
    ALL_PARTS,
    BucketGradient,
    GradientReport,
    NormTrend,
    ProbeRecord,
    PromptGradient,
)
from ragen2.errors import RunError
from ragen2.reading import read_bytes
from ragen2.reports.data.numbers import short, spread_over
from ragen2.reports.load import Run
from ragen2.runs.record import StepRecord

NAMES = {
    "task": "task, as trained",
    "centred": "task, centred returns",
    "kl": "KL",
    "entropy": "entropy",
}
SHORT = {"task": "as trained", "centred": "centred", "kl": "KL", "entropy": "entropy"}
"""For legends, which have little space."""
RISES = 0.8
"""Rank correlation from which a norm is said to rise with reward variance (p < 0.06 with 6 buckets)."""
FLAT = 2.0
"""Largest over smallest norm up to which a part is said to be flat."""
COLUMNS = ("bucket", "RV", "n", "task", "centred", "KL", "entropy", "SNR", "t·KL", "t·H", "KL·H")
"""Of the table: norms, then SNR, then cosines of task with KL, task with entropy, KL with entropy."""
LEGEND = (
    "RV: mean reward variance of the bucket's n prompts",
    "task: norm of the loss as trained, with the algorithm's own advantages",
    "centred: the same loss with return minus the group's mean as advantage",
    "KL, entropy: norms without coefficients; KL is to the run's starting model",
    "SNR: squared length of the mean policy gradient over its variance; noise: 1",
    "t·KL, t·H, KL·H: cosines of task, KL and entropy gradients",
)
METRIC = re.compile(r"^probe/(bucket_\d+|all)/(\w+)$")
MOST_ONLINE = 12
"""Probes of the training steps that are in the page."""


def gradient_verdict(trends: Sequence[NormTrend]) -> str:
    """What the buckets show, in one sentence, whether or not it is what theory expects."""
    by_part = {trend.part: trend for trend in trends}
    centred = by_part.get("centred")
    if centred is None or len(trends) < 2 or centred.rank_correlation is None:
        return "Too few buckets with different reward variance to see a trend."
    text = (
        "The task gradient grows with reward variance"
        if centred.rank_correlation >= RISES
        else "The task gradient does not clearly grow with reward variance"
    )
    regularisers = [by_part[part] for part in ("kl", "entropy") if part in by_part]
    moving = [NAMES[one.part] for one in regularisers if not _is_flat(one)]
    still = [NAMES[one.part] for one in regularisers if _is_flat(one)]
    parts = [f"{' and '.join(still)} {_are(still)} flat"] if still else []
    parts += [f"{' and '.join(moving)} {_are(moving)} not flat"] if moving else []
    return f"{'; '.join([text, *parts])}."


def probe_lines(record: ProbeRecord) -> list[str]:
    """The numbers behind the verdict, one line each."""
    return [*map(trend_line, record.trends), prompt_line(record)]


def prompt_line(record: ProbeRecord) -> str:
    """How many prompts are inside the bound that their reward variance allows."""
    outside = sum(one.norm > one.bound * (1 + 1e-6) for one in record.prompts)
    text = (
        f"{len(record.prompts) - outside} of {len(record.prompts)} prompts are inside their bound"
    )
    if record.prompt_correlation is not None:
        text += f"; rank correlation of norm and RV {record.prompt_correlation:+.2f}"
    return text


def trend_line(trend: NormTrend) -> str:
    """How a part's norm goes over the buckets, with its numbers."""
    text = f"{NAMES[trend.part]}: norm {trend.lowest:.3g} in the lowest bucket, "
    text += f"{trend.highest:.3g} in the highest"
    if trend.rank_correlation is not None:
        text += f"; rank correlation with RV {trend.rank_correlation:+.2f}"
    if trend.spread is not None:
        text += f"; largest over smallest {trend.spread:.2g}"
    return text


def bucket_rows(buckets: Iterable[BucketGradient]) -> list[list[str]]:
    """The table's cells under ``COLUMNS``."""
    return [
        [
            bucket.name.removeprefix("bucket_"),
            f"{bucket.variance_mean:.3g}",
            str(bucket.prompts),
            *(_cell(bucket.norms.get(part), "{:.3g}") for part in ALL_PARTS),
            _cell(bucket.snr, "{:.2g}"),
            *(
                _cell(bucket.cosines.get(pair), "{:+.2f}")
                for pair in ("task_kl", "task_entropy", "kl_entropy")
            ),
        ]
        for bucket in buckets
    ]


def probe_summary(record: ProbeRecord) -> str:
    """What was probed, in one line."""
    rollouts = record.num_prompts * record.group_size
    return (
        f"{record.env} · {record.algorithm}, {record.aggregation} · {record.num_prompts} prompts x "
        f"{record.group_size} = {rollouts} rollouts"
    )


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
        return ProbeRecord.model_validate_json(read_bytes(path))
    except (OSError, ValidationError) as error:
        why = getattr(error, "strerror", None) or "its fields are others"
        raise RunError(
            f"{path} is not a probe of this version ({why}); probe again or remove it"
        ) from error


def probe_entry(record: ProbeRecord) -> dict[str, Any]:
    """A probe as the page takes it."""
    lines = [probe_summary(record), *probe_lines(record)]
    return _entry(record.step, record.trends, lines, record.report)


def _is_flat(trend: NormTrend) -> bool:
    # All 0 is flat too: at the starting weights KL pulls nowhere.
    return trend.lowest == trend.highest == 0.0 or (
        trend.spread is not None and trend.spread <= FLAT
    )


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


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
    return _entry(record.step, trends, list(map(trend_line, trends)), report)


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
    step: int, trends: tuple[NormTrend, ...], lines: list[str], report: GradientReport
) -> dict[str, Any]:
    return {
        "step": step,
        "text": gradient_verdict(trends),
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
