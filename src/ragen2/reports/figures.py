"""Charts as SVG text: no library, no script, crisp on screen and paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ragen2.reports.load import Series

WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 34
TICKS = 4


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps data to pixels along one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Chart:
    """What to draw: series over steps, level lines, and the label of the vertical axis."""

    title: str
    series: Sequence[Series]
    levels: Sequence[tuple[str, float]] = ()
    unit: str = ""
    floor: float | None = None
    ceiling: float | None = None


def draw(chart: Chart) -> str:
    """The chart as one ``<svg>``; a chart without points says so instead."""
    lines = [series for series in chart.series if series.steps]
    if not lines:
        return _empty(chart.title)
    x = _scale([step for line in lines for step in line.steps], LEFT, WIDTH - RIGHT, tight=True)
    values = [v for line in lines for v in (*line.values, *line.low, *line.high)]
    values += [level for _, level in chart.levels]
    if chart.floor is not None:
        values.append(chart.floor)
    if chart.ceiling is not None:
        values.append(chart.ceiling)
    y = _scale(values, HEIGHT - BOTTOM, TOP, tight=chart.ceiling is not None)
    parts = [_axes(x, y, chart.unit)]
    parts += [_band(line, x, y, index) for index, line in enumerate(lines) if line.low]
    parts += [_level(name, level, y) for name, level in chart.levels]
    parts += [_line(line, x, y, index) for index, line in enumerate(lines)]
    body = "".join(parts)
    legend = _legend(lines) if len(lines) > 1 else ""
    return _frame(chart.title, body, legend)


def draw_plane(entropy: Series, information: Series, bound: float | None) -> str:
    """The regime plane: H(Z|X) across, I(X;Z) up, the run's path through it."""
    pairs = [
        (across, dict(zip(information.steps, information.values, strict=True))[step])
        for step, across in zip(entropy.steps, entropy.values, strict=True)
        if step in information.steps
    ]
    if not pairs:
        return _empty("Regime plane")
    x = _scale([0.0, *(h for h, _ in pairs)], LEFT, WIDTH - RIGHT)
    y = _scale([0.0, *([bound] if bound else []), *(i for _, i in pairs)], HEIGHT - BOTTOM, TOP)
    path = " ".join(f"{x(h):.1f},{y(i):.1f}" for h, i in pairs)
    first, last = pairs[0], pairs[-1]
    body = _axes(x, y, "I(X;Z), nats a token", across="H(Z|X), nats a token", whole=False)
    if bound:
        body += _level("log P", bound, y)
    body += f'<polyline class="line s0" points="{path}"/>'
    body += f'<circle class="start" cx="{x(first[0]):.1f}" cy="{y(first[1]):.1f}" r="4"/>'
    body += f'<circle class="dot s0" cx="{x(last[0]):.1f}" cy="{y(last[1]):.1f}" r="5"/>'
    keys = (("ring", "start"), ("s0", "end"))
    legend = "".join(
        f'<span class="key"><i class="{mark}"></i>{name}</span>' for mark, name in keys
    )
    return _frame("Regime plane", body, legend)


def _scale(values: Sequence[float], start: float, end: float, *, tight: bool = False) -> Scale:
    low, high = min(values), max(values)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    margin = 0.0 if tight else 0.05 * (high - low)
    return Scale(low if low == 0 else low - margin, high + margin, start, end)


def _ticks(scale: Scale, *, whole: bool) -> list[float]:
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
    line = f'<polyline class="line s{index}" points="{path}"/>'
    if len(points) <= 12:
        line += "".join(
            f'<circle class="dot s{index}" cx="{x(step):.1f}" cy="{y(value):.1f}" r="3"/>'
            for step, value in points
        )
    return line


def _band(series: Series, x: Scale, y: Scale, index: int) -> str:
    top = [f"{x(s):.1f},{y(v):.1f}" for s, v in zip(series.steps, series.high, strict=True)]
    bottom = [f"{x(s):.1f},{y(v):.1f}" for s, v in zip(series.steps, series.low, strict=True)]
    return f'<polygon class="band s{index}" points="{" ".join(top + bottom[::-1])}"/>'


def _level(name: str, level: float, y: Scale) -> str:
    at = y(level)
    return (
        f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text class="tick" x="{WIDTH - RIGHT}" y="{at - 4:.1f}" text-anchor="end">{escape(name)}</text>'
    )


def _legend(lines: Sequence[Series]) -> str:
    return "".join(
        f'<span class="key"><i class="s{i}"></i>{escape(line.name)}</span>'
        for i, line in enumerate(lines)
    )


def _frame(title: str, body: str, legend: str) -> str:
    return (
        f'<figure><figcaption>{escape(title)}<span class="legend">{legend}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg></figure>'
    )


def _empty(title: str) -> str:
    caption = f"<figcaption>{escape(title)}</figcaption>"
    return f'<figure class="empty">{caption}<p>not measured in this run</p></figure>'
