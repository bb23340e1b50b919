"""Figures for papers and docs, drawn by matplotlib; it is imported only when something is drawn."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen2.diagnostics.metrics.dependence import DependenceRow
from ragen2.errors import DependencyError, RunError
from ragen2.reports.load import Series
from ragen2.runs.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

FORMATS = ("png", "svg", "pdf")
WIDTH, HEIGHT = 4.6, 2.9
"""Inches of one chart."""
DOTS = 200
"""Per inch, of a PNG."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6100", "#56b4e9")
"""Distinct to colour-blind readers too (Okabe and Ito, the yellow darkened)."""
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
"""Each line has a dash of its own: colour is never the only sign."""
GREY = "#5b6577"
STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e6eb",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "ragen2",
    "pdf.fonttype": 42,
}
EMPTY = "not measured in this run"


@dataclass(frozen=True, slots=True)
class Chart:
    """What to draw: series over steps, level lines, and the labels of the axes."""

    title: str
    series: Sequence[Series]
    levels: Sequence[tuple[str, float]] = ()
    unit: str = ""
    floor: float | None = None
    ceiling: float | None = None
    across: str = "step"
    doubling: bool = False
    """Whether each doubling along the horizontal axis takes the same width."""
    guides: Sequence[Series] = ()
    """Levels that change over steps; drawn like levels."""


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A title and what draws under it; without ``draw`` there was nothing to draw."""

    title: str
    draw: Callable[[Axes], None] | None = None
    height: float = HEIGHT
    """Inches; side by side the highest one counts."""


@dataclass(frozen=True, slots=True)
class NamedFigure:
    """Figures that stand side by side in one file, and the name of that file."""

    name: str
    charts: list[Figure]


def chart_figure(chart: Chart) -> Figure:
    """Lines over steps, with bands where a series has an interval."""
    if not any(series.steps for series in chart.series):
        return Figure(chart.title)
    return Figure(chart.title, lambda axes: _draw_chart(axes, chart))


def plane_figure(
    paths: Sequence[tuple[Series, Series]], bound: float | None, unit: str = "nats per token"
) -> Figure:
    """The regime plane: H(Z|X) across, I(X;Z) up, each run's path from ring to dot.

    A path is the two series of one run; where there are several, the first one's name is its label.
    """
    found = [(entropy.name, _shared(entropy, information)) for entropy, information in paths]
    drawn = [(name, pairs) for name, pairs in found if pairs]
    if not drawn:
        return Figure("Regime plane")
    return Figure("Regime plane", lambda axes: _draw_plane(axes, drawn, bound, unit))


def dependence_figure(rows: Sequence[DependenceRow], metric: str = "mi_estimate") -> Figure:
    """A proxy against the number of prompts, one line per number of traces K, with its 95% band."""
    mine = [row for row in rows if row.metric == metric]
    series = []
    for traces in sorted({row.traces for row in mine}):
        line = sorted((row for row in mine if row.traces == traces), key=lambda row: row.prompts)
        series.append(
            Series(
                f"K = {traces}",
                tuple(row.prompts for row in line),
                tuple(row.mean for row in line),
                tuple(row.low for row in line),
                tuple(row.high for row in line),
            )
        )
    sizes = tuple(sorted({row.prompts for row in mine}))
    guides = []
    if metric.startswith("mi_"):
        guides.append(Series("log P", sizes, tuple(math.log(size) for size in sizes)))
    if metric.startswith("retrieval_"):
        guides.append(Series("chance", sizes, tuple(1.0 / size for size in sizes)))
    unit = "share of traces" if metric.startswith("retrieval_") else "nats"
    return chart_figure(
        Chart(metric, series, (), unit, 0.0, across="prompts", doubling=True, guides=guides)
    )


def save_figure(figures: Sequence[Figure], path: Path, form: str) -> None:
    """Figures side by side as one file; its folder is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, picture(figures, form))
    except OSError as error:
        raise RunError(f"figure {path} cannot be written: {error.strerror}") from error


def standalone(figures: Sequence[Figure]) -> str:
    """Figures side by side as the text of an SVG file."""
    return picture(figures, "svg").decode()


def picture(figures: Sequence[Figure], form: str) -> bytes:
    """Figures side by side as a file's contents; the same figures give the same bytes."""
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(STYLE):
        size = WIDTH * len(figures), max(figure.height for figure in figures)
        canvas = Canvas(figsize=size, dpi=DOTS, layout="constrained")
        for axes, figure in zip(
            canvas.subplots(1, len(figures), squeeze=False)[0], figures, strict=True
        ):
            _fill(axes, figure)
        file = io.BytesIO()
        canvas.savefig(file, format=form, metadata=_no_date(form))
    return file.getvalue()


def load_matplotlib() -> Any:
    """The library, or one line that says how to get it."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise DependencyError(
            "figures need matplotlib, which is not installed; pip install 'ragen2[figures]'"
        ) from error
    return mpl


def draw_line(axes: Axes, series: Series, index: int, *, marker: str = "o") -> None:
    """One series with its band; few points are marked."""
    colour = COLOURS[index % len(COLOURS)]
    axes.plot(
        series.steps,
        series.values,
        color=colour,
        linestyle=DASHES[index % len(DASHES)],
        linewidth=1.6,
        marker=marker if len(series.steps) <= 12 else "",
        markersize=3.5,
        label=series.name,
    )
    if series.low:
        axes.fill_between(
            series.steps, series.low, series.high, color=colour, alpha=0.16, linewidth=0
        )


def whole_numbers(axis: Axis) -> None:
    """Label whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _fill(axes: Axes, figure: Figure) -> None:
    axes.set_title(figure.title, loc="left", fontsize=10, fontweight="bold")
    if figure.draw is None:
        axes.text(0.5, 0.5, EMPTY, ha="center", va="center", color=GREY, transform=axes.transAxes)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    figure.draw(axes)


def _draw_chart(axes: Axes, chart: Chart) -> None:
    lines = [series for series in chart.series if series.steps]
    for index, series in enumerate(lines):
        draw_line(axes, series, index)
    named: set[str] = set()
    for guide in (guide for guide in chart.guides if guide.steps):
        label = guide.name if guide.name not in named else None
        named.add(guide.name)
        steps, values = guide.steps, guide.values
        if len(steps) == 1:
            axes.axhline(values[0], color=GREY, linewidth=1, linestyle=(0, (4, 3)), label=label)
        else:
            axes.plot(steps, values, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label=label)
    for name, level in chart.levels:
        axes.axhline(level, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label=name)
    if chart.doubling:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    elif chart.across == "step":
        whole_numbers(axes.xaxis)
    _set_ends(axes, chart)
    axes.set_xlabel(chart.across)
    axes.set_ylabel(chart.unit)
    if len(lines) > 1 or named or chart.levels:
        axes.legend()


def _set_ends(axes: Axes, chart: Chart) -> None:
    low, high = axes.get_ylim()
    margin = 0.02 * (high - low)
    if chart.floor is not None and low > chart.floor - 5 * margin:
        axes.set_ylim(bottom=chart.floor - margin if chart.ceiling is not None else chart.floor)
    if chart.ceiling is not None:
        axes.set_ylim(top=chart.ceiling + margin)


def _draw_plane(
    axes: Axes,
    drawn: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    bound: float | None,
    unit: str,
) -> None:
    for index, (name, pairs) in enumerate(drawn):
        colour = COLOURS[index % len(COLOURS)]
        across, up = zip(*pairs, strict=True)
        label = name if len(drawn) > 1 else None
        axes.plot(across, up, color=colour, linewidth=1.3, linestyle=DASHES[index % 6], label=label)
        ring: dict[str, Any] = {
            "marker": "o",
            "linestyle": "",
            "color": colour,
            "markersize": 6.0,
        }
        alone = len(drawn) == 1
        axes.plot(across[:1], up[:1], fillstyle="none", label="start" if alone else None, **ring)
        axes.plot(across[-1:], up[-1:], label="end" if alone else None, **ring)
    if bound:
        axes.axhline(bound, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="log P")
    axes.set_xlim(0.0, 1.08 * max(h for _, pairs in drawn for h, _ in pairs) or 1.0)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xlabel(f"H(Z|X), {unit}")
    axes.set_ylabel(f"I(X;Z), {unit}")
    axes.legend()


def _shared(entropy: Series, information: Series) -> list[tuple[float, float]]:
    """Points of the steps at which both were measured."""
    up = dict(zip(information.steps, information.values, strict=True))
    across = zip(entropy.steps, entropy.values, strict=True)
    return [(value, up[step]) for step, value in across if step in up]


def _no_date(form: str) -> dict[str, Any]:
    """Metadata without time and version, so that the same figure is the same file."""
    if form == "svg":
        return {"Date": None, "Creator": None}
    return {"CreationDate": None, "Producer": None} if form == "pdf" else {"Software": None}
