"""The gradient probe in words: which part of the loss pulls, by reward variance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ragen2.diagnostics.metrics.gradients import ALL_PARTS, BucketGradient, ProbeRecord, Trend

NAMES = {
    "task": "task, as trained",
    "centred": "task, centred returns",
    "kl": "KL",
    "entropy": "entropy",
}
SHORT = {"task": "as trained", "centred": "centred", "kl": "KL", "entropy": "entropy"}
"""For legends, where room is scarce."""
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


def verdict(trends: Sequence[Trend]) -> str:
    """What the buckets show, in one sentence, whether or not it is what theory expects."""
    by_part = {trend.part: trend for trend in trends}
    centred = by_part.get("centred")
    if centred is None or len(trends) < 2 or centred.rank_correlation is None:
        return "Too few buckets with different reward variance to see a trend."
    told = (
        "The task gradient grows with reward variance"
        if centred.rank_correlation >= RISES
        else "The task gradient does not clearly grow with reward variance"
    )
    regularisers = [by_part[part] for part in ("kl", "entropy") if part in by_part]
    moving = [NAMES[one.part] for one in regularisers if not _is_flat(one)]
    still = [NAMES[one.part] for one in regularisers if _is_flat(one)]
    parts = [f"{' and '.join(still)} {_are(still)} flat"] if still else []
    parts += [f"{' and '.join(moving)} {_are(moving)} not flat"] if moving else []
    return f"{'; '.join([told, *parts])}."


def readings(record: ProbeRecord) -> list[str]:
    """The numbers behind the verdict, one line each."""
    return [*map(trend_reading, record.trends), prompt_reading(record)]


def prompt_reading(record: ProbeRecord) -> str:
    """How many prompts are inside the bound that their reward variance allows."""
    outside = sum(one.norm > one.bound * (1 + 1e-6) for one in record.prompts)
    told = (
        f"{len(record.prompts) - outside} of {len(record.prompts)} prompts are inside their bound"
    )
    if record.prompt_correlation is not None:
        told += f"; rank correlation of norm and RV {record.prompt_correlation:+.2f}"
    return told


def trend_reading(trend: Trend) -> str:
    """How a part's norm goes over the buckets, with its numbers."""
    told = f"{NAMES[trend.part]}: norm {trend.lowest:.3g} in the lowest bucket, "
    told += f"{trend.highest:.3g} in the highest"
    if trend.rank_correlation is not None:
        told += f"; rank correlation with RV {trend.rank_correlation:+.2f}"
    if trend.spread is not None:
        told += f"; largest over smallest {trend.spread:.2g}"
    return told


def rows(buckets: Iterable[BucketGradient]) -> list[list[str]]:
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


def about(record: ProbeRecord) -> str:
    """What was probed, in one line."""
    rollouts = record.num_prompts * record.group_size
    return (
        f"{record.env} · {record.algorithm}, {record.aggregation} · {record.num_prompts} prompts x "
        f"{record.group_size} = {rollouts} rollouts"
    )


def _is_flat(trend: Trend) -> bool:
    # All 0 is flat too: at the starting weights KL pulls nowhere.
    return trend.lowest == trend.highest == 0.0 or (
        trend.spread is not None and trend.spread <= FLAT
    )


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
