"""Figures and page of the gradient probe: which part of the loss pulls, by reward variance."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from ragen2.diagnostics.gradients import ALL_PARTS, BucketGradient, GradientReport, Trend
from ragen2.diagnostics.probe_record import ProbeRecord
from ragen2.reports.figures import Chart, Figure, as_html, chart_figure, draw, scatter_figure
from ragen2.reports.load import Run, Series
from ragen2.reports.standalone import standalone

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
METRIC = re.compile(r"^probe/(bucket_(\d+)|all)/(\w+)$")


def figures(report: GradientReport) -> list[Figure]:
    """Norms by bucket, and each prompt's policy gradient against its bound."""
    return [norms_figure(report.buckets), bound_figure(report)]


def norms_figure(buckets: Sequence[BucketGradient], title: str = "By bucket") -> Figure:
    """A line for each part of the loss over buckets from low to high reward variance."""
    shown = [bucket for bucket in buckets if bucket.name != "all"]
    numbers = {bucket.name: int(bucket.name.removeprefix("bucket_")) for bucket in shown}
    series = []
    for part in ALL_PARTS:
        mine = [bucket for bucket in shown if part in bucket.norms]
        places = tuple(numbers[bucket.name] for bucket in mine)
        series.append(Series(SHORT[part], places, tuple(bucket.norms[part] for bucket in mine)))
    across = "bucket, low to high reward variance"
    return chart_figure(Chart(title, series, unit="norm", floor=0.0, across=across))


def bound_figure(report: GradientReport) -> Figure:
    """Each prompt's policy gradient over the square root of its reward variance, under its bound."""
    return scatter_figure(
        "By prompt",
        [(math.sqrt(one.variance), one.norm) for one in report.prompts],
        [(math.sqrt(one.variance), one.bound) for one in report.prompts],
        across="√RV",
        up="norm, centred returns, tokens summed",
        names=("policy gradient", "its bound", "steepest"),
    )


def picture(record: ProbeRecord) -> str:
    """Both figures as one SVG file."""
    return standalone(figures(record.report))


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
    lines = [_reading(trend) for trend in record.trends]
    outside = sum(one.norm > one.bound * (1 + 1e-6) for one in record.prompts)
    told = (
        f"{len(record.prompts) - outside} of {len(record.prompts)} prompts are inside their bound"
    )
    if record.prompt_correlation is not None:
        told += f"; rank correlation of norm and RV {record.prompt_correlation:+.2f}"
    return [*lines, told]


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


def render_probe(record: ProbeRecord) -> str:
    """The whole page as text."""
    style = (resources.files("ragen2") / "reports" / "page.css").read_text(encoding="utf-8")
    title = escape(f"{record.run}, step {record.step}")
    drawn = "".join(as_html(figure) for figure in figures(record.report))
    facts = "".join(f"<li>{escape(line)}</li>" for line in (about(record), *readings(record)))
    legend = "".join(f"<li>{escape(line)}</li>" for line in LEGEND)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>ragen2 probe · {title}</title><style>{style}</style></head><body><main><section>"
        f"<header><h1>Gradients of {title}</h1>"
        f'<p class="verdict">{escape(verdict(record.trends))}</p><ul>{facts}</ul></header>'
        f'<div class="charts">{drawn}</div>'
        f"<h2>By bucket of reward variance</h2>{_table(COLUMNS, rows(record.buckets))}"
        f"<details open><summary>How to read it</summary><ul>{legend}</ul></details>"
        f"<details><summary>By prompt</summary>{_prompts(record)}</details>"
        "</section></main></body></html>\n"
    )


def about(record: ProbeRecord) -> str:
    """What was probed, in one line."""
    rollouts = record.num_prompts * record.group_size
    return (
        f"{record.env} · {record.algorithm}, {record.aggregation} · {record.num_prompts} prompts x "
        f"{record.group_size} = {rollouts} rollouts"
    )


def online_section(run: Run) -> str:
    """Probes that a run made while it trained, under their own heading; nothing where there are none."""
    probed = [
        record for record in run.records if any(METRIC.match(name) for name in record.metrics)
    ]
    if not probed:
        return ""
    last = probed[-1]
    drawn = as_html(norms_figure(_buckets(last.metrics), f"By bucket, step {last.step}"))
    over_steps = [run.series(f"probe/all/{part}_norm", SHORT[part]) for part in ALL_PARTS]
    drawn += draw(Chart("Whole batch", over_steps, unit="norm", floor=0.0))
    signal = Chart(
        "SNR of the policy gradient",
        [run.series("probe/all/snr")],
        [("pure noise", 1.0)],
        floor=0.0,
    )
    drawn += draw(signal)
    words = "Which part of the loss pulls on prompts with little and with much reward variance?"
    return f'<h2>Gradients by reward variance</h2><p>{words}</p><div class="charts">{drawn}</div>'


def _buckets(metrics: dict[str, float]) -> list[BucketGradient]:
    """The buckets of a step record, as far as it has them."""
    found: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        match = METRIC.match(name)
        if match:
            found.setdefault(match[1], {})[match[3]] = value
    names = sorted(found.keys() - {"all"}, key=lambda name: int(name.removeprefix("bucket_")))
    return [_from_metrics(name, found[name]) for name in names]


def _from_metrics(name: str, numbers: dict[str, float]) -> BucketGradient:
    variance = numbers.get("variance", math.nan)
    norms = {part: numbers[f"{part}_norm"] for part in ALL_PARTS if f"{part}_norm" in numbers}
    return BucketGradient(name, 0, 0, variance, variance, variance, norms, {}, numbers.get("snr"))


def _reading(trend: Trend) -> str:
    told = f"{NAMES[trend.part]}: norm {trend.lowest:.3g} in the lowest bucket, "
    told += f"{trend.highest:.3g} in the highest"
    if trend.rank_correlation is not None:
        told += f"; rank correlation with RV {trend.rank_correlation:+.2f}"
    if trend.spread is not None:
        told += f"; largest over smallest {trend.spread:.2g}"
    return told


def _is_flat(trend: Trend) -> bool:
    # All 0 is flat too: at the starting weights KL pulls nowhere.
    return trend.lowest == trend.highest == 0.0 or (
        trend.spread is not None and trend.spread <= FLAT
    )


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _prompts(record: ProbeRecord) -> str:
    ordered = sorted(record.prompts, key=lambda one: one.variance)
    cells = [
        [str(one.seed), f"{one.variance:.3g}", f"{one.norm:.3g}", f"{one.bound:.3g}"]
        for one in ordered
    ]
    return _table(("seed", "RV (ddof 0)", "norm", "bound"), cells)


def _table(head: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells
    )
    return f"<table><tr>{top}</tr>{body}</table>"
