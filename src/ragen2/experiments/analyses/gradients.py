"""Figure 3 and Table 2: task, KL and entropy gradients by bucket of reward variance."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from ragen2.diagnostics.statistics.rank_test import rank_correlation
from ragen2.experiments.cells import Cells, require_axes
from ragen2.experiments.charts import lines_figure
from ragen2.experiments.findings import Claim, Entry, Findings, Table, claimed
from ragen2.experiments.intervals import Estimate, mean_estimate
from ragen2.reports.figures import Figure, NamedFigure
from ragen2.reports.load import Run
from ragen2.runs.record import StepRecord

PARTS = ("centred", "task", "kl", "entropy")
NAMES = {
    "centred": "task, centred returns",
    "task": "task, as trained",
    "kl": "KL",
    "entropy": "entropy",
}
BUCKET = re.compile(r"probe/bucket_(\d+)/variance")


def analyse_gradients(cells: Cells) -> Findings:
    """Norms bucket by bucket, their rank correlation with reward variance, and who pulls where."""
    require_axes(cells, "task", "algorithm")
    rows: list[tuple[Entry, ...]] = []
    trends: list[tuple[Entry, ...]] = []
    claims: list[Claim] = []
    figures = []
    for (task, algorithm), mine in cells.groups("task", "algorithm"):
        where = f"{task}/{algorithm}"
        for bucket in _buckets(mine):
            found = [_norm(mine, bucket, part) for part in ("variance", *PARTS, "snr")]
            rows.append((task, algorithm, bucket, *found))
        for part in PARTS:
            rho = mean_estimate(_per_run(mine, partial(trend_of, part=part)))
            ratio = mean_estimate(_per_run(mine, partial(lowest_over_highest, part=part)))
            trends.append((task, algorithm, NAMES[part], rho, ratio))
            claims += claimed(f"trend/{where}/{part}", rho, "rank correlation")
            claims += claimed(f"low_over_high/{where}/{part}", ratio, "")
        figures.append(
            NamedFigure(f"norms-{task}-{algorithm}", [_figure(mine, f"{task}, {algorithm}")])
        )
    tables = [
        Table(
            "Gradient norms by bucket of reward variance, without coefficients",
            ("task", "algorithm", "bucket", "RV", *(NAMES[part] for part in PARTS), "SNR"),
            tuple(rows),
            digits=3,
        ),
        Table(
            "Does a norm rise with reward variance?",
            ("task", "algorithm", "part", "rank correlation with RV", "lowest over highest bucket"),
            tuple(trends),
        ),
    ]
    note = (
        "A probe's numbers are averaged over the steps of a run that were probed; intervals are over seeds. "
        "KL is 0 at the starting weights, so the first probe comes after training has begun."
    )
    return Findings(tables, claims, figures, [note])


def trend_of(record: StepRecord, part: str) -> float | None:
    """Rank correlation of a part's norm with the bucket's reward variance."""
    pairs = _pairs(record, part)
    return rank_correlation([x for x, _ in pairs], [y for _, y in pairs])


def lowest_over_highest(record: StepRecord, part: str) -> float | None:
    """Norm in the bucket of least reward variance over that in the bucket of most."""
    pairs = _pairs(record, part)
    return pairs[0][1] / pairs[-1][1] if len(pairs) > 1 and pairs[-1][1] > 0.0 else None


def _pairs(record: StepRecord, part: str) -> list[tuple[float, float]]:
    found = record.metrics
    numbers = sorted(int(match[1]) for name in found if (match := BUCKET.fullmatch(name)))
    stems = [f"probe/bucket_{number}/" for number in numbers]
    return [
        (found[f"{stem}variance"], found[f"{stem}{part}_norm"])
        for stem in stems
        if f"{stem}{part}_norm" in found
    ]


def _probed(run: Run) -> list[StepRecord]:
    return [record for record in run.records if any(map(BUCKET.fullmatch, record.metrics))]


def _per_run(cells: Cells, read: Callable[[StepRecord], float | None]) -> list[float]:
    """What is read of each probe, averaged over the probes of a run."""
    found = []
    for one in cells.runs:
        values = [value for record in _probed(one.run) if (value := read(record)) is not None]
        if values:
            found.append(sum(values) / len(values))
    return found


def _buckets(cells: Cells) -> list[int]:
    names = {name for one in cells.runs for name in one.run.recorded}
    return sorted(int(match[1]) for name in names if (match := BUCKET.fullmatch(name)))


def _norm(cells: Cells, bucket: int, part: str) -> Estimate | None:
    name = f"probe/bucket_{bucket}/{part}" + ("" if part in {"variance", "snr"} else "_norm")
    return mean_estimate(_per_run(cells, lambda record: record.metrics.get(name)))


def _figure(cells: Cells, title: str) -> Figure:
    lines = {
        NAMES[part]: [(float(bucket), _norm(cells, bucket, part)) for bucket in _buckets(cells)]
        for part in PARTS
    }
    return lines_figure(title, lines, "bucket, low to high reward variance", "norm")
