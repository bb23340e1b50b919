"""Charts as SVG text: no library, no script, crisp on screen and paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

import numpy as np

from ragen2.diagnostics.dependence import DependenceRow
from ragen2.reports.load import Series

WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 34
TICKS = 4
COLOURS = 6
"""Lines that the style sheet can tell apart."""
LABEL_HEIGHT, LETTER_WIDTH = 12.0, 6.6


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps data to pixels along one axis."""

    low: float
    high: float
    start: float
    end: float
    doubling: bool = False
    """Each doubling takes the same room; for positive values only."""

    def __call__(self, value: float) -> float:
        """Pixel of a value."""
        low, high = self.low, self.high
        if self.doubling:
            low, high, value = math.log2(low), math.log2(high), math.log2(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


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
    """Whether each doubling along the horizontal axis takes the same room."""
    guides: Sequence[Series] = ()
    """Levels that change over steps, one for all series or one for each; drawn like levels."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawn chart: the inside of its ``<svg>``, and its legend as (mark, name) pairs.

    An empty body means that there was nothing to draw.
    """

    title: str
    body: str = ""
    keys: tuple[tuple[str, str], ...] = ()


def draw(chart: Chart) -> str:
    """The chart as one HTML ``<figure>``; a chart without points says so instead."""
    return as_html(chart_figure(chart))


def draw_plane(entropy: Series, information: Series, bound: float | None) -> str:
    """The regime plane of one run as one HTML ``<figure>``."""
    return as_html(plane_figure([(entropy, information)], bound))


def as_html(figure: Figure) -> str:
    """Title, legend and ``<svg>``, coloured by the page's style sheet."""
    title = escape(figure.title)
    if not figure.body:
        caption = f"<figcaption>{title}</figcaption>"
        return f'<figure class="empty">{caption}<p>not measured in this run</p></figure>'
    legend = "".join(
        f'<span class="key"><i class="{mark}"></i>{escape(name)}</span>'
        for mark, name in figure.keys
    )
    return (
        f'<figure><figcaption>{title}<span class="legend">{legend}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{figure.body}</svg></figure>'
    )


def chart_figure(chart: Chart) -> Figure:
    """Lines over steps, with bands where a series has an interval."""
    lines = [series for series in chart.series if series.steps]
    if not lines:
        return Figure(chart.title)
    x = _scale([step for line in lines for step in line.steps], LEFT, WIDTH - RIGHT, tight=True)
    x = replace(x, doubling=chart.doubling)
    values = [v for line in lines for v in (*line.values, *line.low, *line.high)]
    values += [level for _, level in chart.levels]
    values += [level for guide in chart.guides for level in guide.values]
    if chart.floor is not None:
        values.append(chart.floor)
    if chart.ceiling is not None:
        values.append(chart.ceiling)
    y = _scale(values, HEIGHT - BOTTOM, TOP, tight=chart.ceiling is not None)
    parts = [_axes(x, y, chart.unit, across=chart.across)]
    parts += [_band(line, x, y, index) for index, line in enumerate(lines) if line.low]
    frame = _Frame(x, y, lines)
    levels, homeless = _levels(chart.levels, frame)
    guides, more_homeless = _guides(chart.guides, frame)
    parts += [levels, guides]
    parts += [_line(line, x, y, index) for index, line in enumerate(lines)]
    keys = [(_mark(i), line.name) for i, line in enumerate(lines)] if len(lines) > 1 else []
    keys += [("dash", name) for name in (*homeless, *more_homeless)]
    return Figure(chart.title, "".join(parts), tuple(keys))


def plane_figure(paths: Sequence[tuple[Series, Series]], bound: float | None) -> Figure:
    """The regime plane: H(Z|X) across, I(X;Z) up, each run's path from ring to dot.

    A path is the two series of one run; where there are several, the first one's name is its label.
    """
    found = [(entropy.name, _pairs(entropy, information)) for entropy, information in paths]
    drawn = [(name, pairs) for name, pairs in found if pairs]
    if not drawn:
        return Figure("Regime plane")
    points = [pair for _, pairs in drawn for pair in pairs]
    x = _scale([0.0, *(h for h, _ in points)], LEFT, WIDTH - RIGHT)
    y = _scale([0.0, *([bound] if bound else []), *(i for _, i in points)], HEIGHT - BOTTOM, TOP)
    body = _axes(x, y, "I(X;Z), nats a token", across="H(Z|X), nats a token", whole=False)
    if bound:
        body += _levels([("log P", bound)], _Frame(x, y, []))[0]
    body += "".join(_path(pairs, x, y, index) for index, (_, pairs) in enumerate(drawn))
    names = tuple((_mark(i), name) for i, (name, _) in enumerate(drawn))
    return Figure(
        "Regime plane", body, names if len(names) > 1 else (("ring", "start"), ("s0", "end"))
    )


def dependence_figure(rows: Sequence[DependenceRow], metric: str = "mi_estimate") -> Figure:
    """A proxy against the number of prompts, a line for each number of traces K, with its 95% band."""
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
    chart = Chart(
        metric,
        series,
        unit="share of traces" if metric.startswith("retrieval_") else "nats",
        floor=0.0,
        across="prompts",
        doubling=True,
        guides=guides,
    )
    return chart_figure(chart)


def scatter_figure(
    title: str,
    points: Sequence[tuple[float, float]],
    limits: Sequence[tuple[float, float]],
    *,
    across: str,
    up: str,
    names: tuple[str, str, str],
) -> Figure:
    """Dots, each under a limit of its own (a ring at the same place), and the steepest limit as a line.

    ``names`` are those of dots, rings and line. Both axes start at 0.
    """
    if not points:
        return Figure(title)
    x = _scale([0.0, *(place for place, _ in points)], LEFT, WIDTH - RIGHT)
    y = _scale([0.0, *(height for _, height in (*points, *limits))], HEIGHT - BOTTOM, TOP)
    body = _axes(x, y, up, across=across, whole=False)
    steepest = max((height / place for place, height in limits if place > 0.0), default=0.0)
    if steepest > 0.0:
        end = min(x.high, y.high / steepest)
        line = f"{x(0.0):.1f},{y(0.0):.1f} {x(end):.1f},{y(steepest * end):.1f}"
        body += f'<polyline class="level" points="{line}"/>'
    body += "".join(
        f'<circle class="start" cx="{x(place):.1f}" cy="{y(height):.1f}" r="3"/>'
        for place, height in limits
    )
    body += "".join(
        f'<circle class="dot s0" cx="{x(place):.1f}" cy="{y(height):.1f}" r="3"/>'
        for place, height in points
    )
    return Figure(title, body, tuple(zip(("s0", "ring", "dash"), names, strict=True)))


def _pairs(entropy: Series, information: Series) -> list[tuple[float, float]]:
    """Points of the steps at which both were measured."""
    up = dict(zip(information.steps, information.values, strict=True))
    across = zip(entropy.steps, entropy.values, strict=True)
    return [(value, up[step]) for step, value in across if step in up]


def _path(pairs: Sequence[tuple[float, float]], x: Scale, y: Scale, index: int) -> str:
    points = " ".join(f"{x(h):.1f},{y(i):.1f}" for h, i in pairs)
    (first_h, first_i), (last_h, last_i) = pairs[0], pairs[-1]
    return (
        f'<polyline class="line {_mark(index)}" points="{points}"/>'
        f'<circle class="start {_mark(index)}" cx="{x(first_h):.1f}" cy="{y(first_i):.1f}" r="4"/>'
        f'<circle class="dot {_mark(index)}" cx="{x(last_h):.1f}" cy="{y(last_i):.1f}" r="5"/>'
    )


def _scale(values: Sequence[float], start: float, end: float, *, tight: bool = False) -> Scale:
    low, high = min(values), max(values)
    size = max(1.0, abs(low), abs(high))
    if high - low < 1e-12 * size:
        half = max(0.5, 1e-3 * size)
        low, high = low - half, high + half
    margin = 0.0 if tight else 0.05 * (high - low)
    return Scale(low if low == 0 else low - margin, high + margin, start, end)


def _ticks(scale: Scale, *, whole: bool) -> list[float]:
    if scale.doubling:
        first = math.ceil(math.log2(scale.low) - 1e-9)
        return [2.0**n for n in range(first, math.floor(math.log2(scale.high) + 1e-9) + 1)]
    step = (scale.high - scale.low) / TICKS
    power = 10.0 ** math.floor(math.log10(step))
    nice = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step)
    if whole:
        nice = max(1.0, round(nice))
    first = math.ceil(scale.low / nice - 1e-9)
    return [n * nice for n in range(first, math.floor(scale.high / nice + 1e-9) + 1)]


def _axes(x: Scale, y: Scale, unit: str, *, across: str = "step", whole: bool = True) -> str:
    parts = []
    for tick in _ticks(y, whole=False):
        at = y(tick)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:.3g}</text>'
        )
    for tick in _ticks(x, whole=whole):
        place = f'x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle"'
        parts.append(f'<text class="tick" {place}>{tick:.4g}</text>')
    parts.append(
        f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">{escape(across)}</text>'
    )
    if unit:
        parts.append(f'<text class="tick" x="{LEFT}" y="{HEIGHT - 3}">{escape(unit)}</text>')
    return "".join(parts)


def _line(series: Series, x: Scale, y: Scale, index: int) -> str:
    points = list(zip(series.steps, series.values, strict=True))
    path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
    line = f'<polyline class="line {_mark(index)}" points="{path}"/>'
    if len(points) <= 12:
        line += "".join(
            f'<circle class="dot {_mark(index)}" cx="{x(step):.1f}" cy="{y(value):.1f}" r="3"/>'
            for step, value in points
        )
    return line


def _band(series: Series, x: Scale, y: Scale, index: int) -> str:
    top = [f"{x(s):.1f},{y(v):.1f}" for s, v in zip(series.steps, series.high, strict=True)]
    bottom = [f"{x(s):.1f},{y(v):.1f}" for s, v in zip(series.steps, series.low, strict=True)]
    return f'<polygon class="band {_mark(index)}" points="{" ".join(top + bottom[::-1])}"/>'


def _mark(index: int) -> str:
    """The style of the series number ``index``."""
    return f"s{index % COLOURS}"


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plot that a label has to find room in."""

    x: Scale
    y: Scale
    lines: Sequence[Series]

    def find_room(self, width: float, top: float, bottom: float) -> tuple[float, float] | None:
        """Start and base of a label above or below a level of these heights; None if all is taken."""
        right, left = WIDTH - RIGHT - width, LEFT + 4.0
        for base in (top - 4.0, bottom + LABEL_HEIGHT):
            for start in (right, (left + right) / 2, left):
                is_inside = LABEL_HEIGHT <= base <= HEIGHT - BOTTOM
                if is_inside and not any(
                    self._runs_through(line, start, width, base) for line in self.lines
                ):
                    return start, base
        return None

    def _runs_through(self, line: Series, start: float, width: float, base: float) -> bool:
        """Whether a line or its band crosses the box of a label."""
        across = [self.x(step) for step in line.steps]
        spots = [start, start + width, *(at for at in across if start < at < start + width)]
        edges = (line.low or line.values, line.high or line.values)
        heights = [
            float(height)
            for edge in edges
            for height in np.interp(spots, across, [self.y(value) for value in edge])
        ]
        return min(heights) - 3 < base and max(heights) + 3 > base - LABEL_HEIGHT


def _levels(levels: Sequence[tuple[str, float]], frame: _Frame) -> tuple[str, list[str]]:
    """Level lines with their names, and the names that found no room beside their line."""
    body, homeless = "", []
    for name, level in levels:
        at = frame.y(level)
        body += (
            f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        label = _label(name, at, at, frame)
        body += label
        homeless += [] if label else [name]
    return body, homeless


def _guides(guides: Sequence[Series], frame: _Frame) -> tuple[str, list[str]]:
    """Levels that change over steps. Only the first is named: the others mean the same for theirs."""
    drawn = [guide for guide in guides if guide.steps]
    body = ""
    for index, guide in enumerate(drawn):
        points = [
            (frame.x(step), frame.y(value))
            for step, value in zip(guide.steps, guide.values, strict=True)
        ]
        if len(points) == 1:
            points = [(LEFT, points[0][1]), (WIDTH - RIGHT, points[0][1])]
        colour = f" {_mark(index)}" if len(drawn) > 1 else ""
        path = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
        body += f'<polyline class="level{colour}" points="{path}"/>'
    if not drawn:
        return "", []
    heights = [frame.y(value) for value in drawn[0].values]
    label = _label(drawn[0].name, min(heights), max(heights), frame)
    return body + label, [] if label else [drawn[0].name]


def _label(name: str, top: float, bottom: float, frame: _Frame) -> str:
    """The name of a level that spans these heights, or nothing where no room is left for it."""
    room = frame.find_room(LETTER_WIDTH * len(name), top, bottom)
    if room is None:
        return ""
    return f'<text class="label" x="{room[0]:.1f}" y="{room[1]:.1f}">{escape(name)}</text>'
