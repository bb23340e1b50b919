"""Static figures of each chart of a report, one file per chart: for papers and slides."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen2.diagnostics.metrics.gradients import ALL_PARTS
from ragen2.errors import RunError
from ragen2.reports.data.charts import PageChart, charts_of
from ragen2.reports.data.compare import compare_data
from ragen2.reports.data.probes import SHORT, probes_of
from ragen2.reports.data.report import distinct_names, plane_of
from ragen2.reports.figures import (
    COLOURS,
    GREY,
    Chart,
    Figure,
    NamedFigure,
    chart_figure,
    load_matplotlib,
    plane_figure,
    save_figure,
    whole_numbers,
)
from ragen2.reports.load import Run, Series
from ragen2.runs.scores import ScopeScores, list_scores, read_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 16
COMPARED = ("success", "retrieval", "information", "entropy", "reward", "variance", "kept")
"""Charts that are also drawn with all runs in one."""


def write_figures(runs: Sequence[Run], folder: Path, form: str) -> list[Path]:
    """Every figure of these runs into ``folder``; the files that were written."""
    load_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"--figures {folder} cannot be written: {error.strerror}; choose another folder"
        ) from error
    names = distinct_names(runs)
    stems = [f"{_safe(name)}-" if len(runs) > 1 else "" for name in names]
    named = [
        NamedFigure(stem + one.name, one.charts)
        for stem, run in zip(stems, runs, strict=True)
        for one in run_figures(run)
    ]
    if len(runs) > 1:
        named += compared_figures(runs, names)
    written = []
    for one in named:
        path = folder / f"{one.name}.{form}"
        save_figure(one.charts, path, form)
        written.append(path)
    return written


def run_figures(run: Run) -> Iterator[NamedFigure]:
    """The charts of one run that have something to draw."""
    for chart in charts_of(run):
        yield NamedFigure(chart.id, [chart_figure(_drawn(chart, run))])
    plane = plane_of(run)
    if plane is not None:
        path = (run.series(plane["x_metric"]), run.series(plane["y_metric"]))
        yield NamedFigure("regime_plane", [plane_figure([path], plane["bound"], plane["x_unit"])])
    matrix = _newest_matrix(run)
    if matrix is not None:
        step, scores = matrix
        yield NamedFigure("retrieval_matrix", [matrix_figure(scores, step)])
    spread = [record for record in run.records if record.scores]
    if spread:
        last = spread[-1]
        yield NamedFigure(
            "variance_histogram", [histogram_figure(last.scores, last.kept, last.step)]
        )
    for probe in probes_of(run)[-1:]:
        yield NamedFigure("gradient_probe", probe_figures(probe))


def compared_figures(runs: Sequence[Run], names: Sequence[str]) -> Iterator[NamedFigure]:
    """Charts with one line per run, all paths in one plane, and what goes with success."""
    shown = {chart.id: chart for run in runs for chart in charts_of(run)}
    for key in COMPARED:
        if key in shown:
            yield NamedFigure(f"compare-{key}", [chart_figure(_overlaid(shown[key], runs, names))])
    planes = [(plane_of(run), run, name) for run, name in zip(runs, names, strict=True)]
    paths = [
        (run.series(plane["x_metric"], name), run.series(plane["y_metric"]))
        for plane, run, name in planes
        if plane is not None
    ]
    if paths:
        yield NamedFigure("compare-regime_plane", [plane_figure(paths, None)])
    over = [one for one in compare_data(runs)["correlations"] if one["over"] == "checkpoints"]
    if over:
        yield NamedFigure("compare-correlations", [correlation_figure(one, names) for one in over])


def matrix_figure(scores: ScopeScores, step: int) -> Figure:
    """Each trace's log-prob per token under each prompt, less its mean; its own prompt is outlined."""

    def draw(axes: Axes) -> None:
        logp_NP = np.array(
            [[math.nan if value is None else value for value in row] for row in scores.logp]
        )
        order = np.argsort(scores.owner, kind="stable")
        shown_NP = (logp_NP / np.array(scores.length)[:, None])[order]
        shown_NP -= np.nanmean(shown_NP, axis=1, keepdims=True)
        owners = np.array(scores.owner)[order]
        size = float(np.nanmax(np.abs(shown_NP))) or 1.0
        image = axes.imshow(
            shown_NP, aspect="auto", cmap="PuOr_r", vmin=-size, vmax=size, interpolation="nearest"
        )
        axes.plot(owners, range(len(owners)), "s", fillstyle="none", color="black", markersize=2.5)
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            whole_numbers(axis)
        axes.set_xlabel("prompt")
        axes.set_ylabel("reasoning trace")
        bar = axes.figure.colorbar(image, ax=axes)
        bar.set_label("nats per token above the row's mean")

    return Figure(f"Retrieval matrix, step {step}", draw)


def histogram_figure(scores: Sequence[float], kept: Sequence[bool], step: int) -> Figure:
    """How many prompts have how much reward variance, the kept ones apart."""

    def draw(axes: Axes) -> None:
        taken = [score for score, is_kept in zip(scores, kept, strict=True) if is_kept]
        left = [score for score, is_kept in zip(scores, kept, strict=True) if not is_kept]
        edges = np.histogram_bin_edges(np.array(scores), bins=BINS)
        axes.hist(
            [taken, left],
            bins=edges.tolist(),
            stacked=True,
            color=[COLOURS[0], "#ffffff"],
            edgecolor=[COLOURS[0], GREY],
            hatch=["", "////"],
            label=["kept", "left out"],
        )
        whole_numbers(axes.yaxis)
        axes.set_xlabel("filter's signal")
        axes.set_ylabel("prompts")
        axes.legend()

    return Figure(f"Signal of prompts, step {step}", draw)


def probe_figures(probe: dict[str, Any]) -> list[Figure]:
    """Norms by bucket, and each prompt's policy gradient against its bound."""
    return [norms_figure(probe), bound_figure(probe)]


def norms_figure(probe: dict[str, Any]) -> Figure:
    """A line for each part of the loss over buckets from low to high reward variance."""
    buckets = [bucket for bucket in probe["buckets"] if bucket["name"] != "all"]
    series = []
    for part in ALL_PARTS:
        mine = [(i, one["norms"][part]) for i, one in enumerate(buckets, 1) if part in one["norms"]]
        series.append(Series(SHORT[part], tuple(i for i, _ in mine), tuple(v for _, v in mine)))
    across = "bucket, low to high reward variance"
    title = f"Gradient norms, step {probe['step']}"
    return chart_figure(Chart(title, series, unit="norm", floor=0.0, across=across))


def bound_figure(probe: dict[str, Any]) -> Figure:
    """Each prompt's policy gradient over the square root of its reward variance, under its bound."""
    prompts = probe["prompts"]

    def draw(axes: Axes) -> None:
        across = [math.sqrt(one["variance"]) for one in prompts]
        axes.plot(
            across,
            [one["bound"] for one in prompts],
            "o",
            fillstyle="none",
            color=COLOURS[1],
            markersize=4,
            label="its bound",
        )
        steepest = max(
            (one["bound"] / x for one, x in zip(prompts, across, strict=True) if x), default=0
        )
        if steepest:
            axes.axline((0.0, 0.0), slope=steepest, color=GREY, linestyle="--", label="steepest")
        norms = [one["norm"] for one in prompts]
        axes.plot(across, norms, ".", color=COLOURS[0], label="policy gradient")
        axes.set_xlabel("√(reward variance)")
        axes.set_ylabel("norm, tokens summed")
        axes.set_xlim(left=0.0)
        axes.set_ylim(bottom=0.0)
        axes.legend()

    return Figure("By prompt", draw if prompts else None)


def correlation_figure(found: dict[str, Any], names: Sequence[str]) -> Figure:
    """One point per checkpoint, with one mark per run."""
    marks = "os^Dvx"

    def draw(axes: Axes) -> None:
        for index, name in enumerate(names):
            points = [point for point in found["points"] if point["run"] == f"r{index}"]
            axes.plot(
                [point["x"] for point in points],
                [point["y"] for point in points],
                marks[index % len(marks)],
                color=COLOURS[index % len(COLOURS)],
                markersize=4,
                label=name,
            )
        axes.set_xlabel(f"{found['name'].removesuffix(' and success')}, {found['x_unit']}")
        axes.set_ylabel("success")
        axes.legend()

    return Figure(f"{found['name']}: Spearman {found['rho']:+.2f} (p {found['p']:.2g})", draw)


def _drawn(chart: PageChart, run: Run) -> Chart:
    return Chart(
        chart.title,
        [run.series(line.metric, line.name) for line in chart.series],
        unit=chart.unit,
        floor=chart.floor,
        ceiling=chart.ceiling,
        guides=[run.series(line.metric, line.name) for line in chart.guides],
    )


def _overlaid(chart: PageChart, runs: Sequence[Run], names: Sequence[str]) -> Chart:
    """The chart's most telling metric, one line per run."""
    recorded = {name for run in runs for name in run.recorded}
    first = [line for line in chart.series if line.metric in recorded]
    held_out = [line for line in first if line.metric.startswith("eval/")]
    metric = (held_out or first)[0].metric
    return Chart(
        f"{chart.title}{', held out' if held_out else ''}",
        [run.series(metric, name) for run, name in zip(runs, names, strict=True)],
        unit=chart.unit,
        floor=chart.floor,
        ceiling=chart.ceiling,
        guides=[runs[0].series(line.metric, line.name) for line in chart.guides],
    )


def _newest_matrix(run: Run) -> tuple[int, ScopeScores] | None:
    recorded = {record.step for record in run.records}
    for step, path in reversed(list_scores(run.path)):
        if step in recorded:
            for scores in read_scores(path).scopes:
                if scores.name == run.main_scope:
                    return step, scores
    return None


def _safe(name: str) -> str:
    """A name that may be part of a file's name anywhere."""
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "run"
