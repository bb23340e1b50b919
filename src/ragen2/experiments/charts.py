"""Charts of an experiment: mean curves over seeds, estimates side by side, and scatter plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ragen2.experiments.cells import Cells
from ragen2.experiments.intervals import Estimate, mean_estimate
from ragen2.reports.figures import COLOURS, GREY, HEIGHT, Chart, Figure, chart_figure
from ragen2.reports.load import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = "os^Dv*"
ROW, FRAME = 0.19, 0.8
"""Inches that a row of estimates takes, and what stands around them."""
FEWEST_FOR_A_BAND = 3
"""Runs: the interval of two is so wide that nothing else could be seen beside it."""


def mean_series(cells: Cells, metric: str, name: str, factor: float = 1.0) -> Series:
    """A metric's mean at each step that all runs measured; with its interval if they are three or more."""
    found = [one.run.series(metric) for one in cells.runs]
    lines = [dict(zip(one.steps, one.values, strict=True)) for one in found if one.steps]
    steps = sorted(set.intersection(*(set(line) for line in lines))) if lines else []
    means = [mean_estimate([factor * line[step] for line in lines]) for step in steps]
    known = [one for one in means if one is not None]
    has_band = len(lines) >= FEWEST_FOR_A_BAND
    return Series(
        name,
        tuple(steps),
        tuple(one.value for one in known),
        tuple(float(one.low or 0.0) for one in known) if has_band else (),
        tuple(float(one.high or 0.0) for one in known) if has_band else (),
    )


def curves_figure(
    title: str, arms: Mapping[str, Cells], metric: str, unit: str, factor: float = 1.0
) -> Figure:
    """One line per arm over steps."""
    series = [mean_series(cells, metric, name, factor) for name, cells in arms.items()]
    return chart_figure(Chart(title, series, unit=unit))


def estimates_figure(
    title: str, rows: Sequence[tuple[str, Estimate | None]], unit: str, *, zero: bool = True
) -> Figure:
    """Estimates under each other with their intervals, and a line at 0."""
    known = [(label, one) for label, one in rows if one is not None]

    def draw(axes: Axes) -> None:
        for place, (_, one) in enumerate(known):
            low = one.value if one.low is None else one.low
            high = one.value if one.high is None else one.high
            axes.plot([low, high], [place, place], color=COLOURS[0], linewidth=1.6)
            axes.plot([one.value], [place], "o", color=COLOURS[0], markersize=4)
        if zero:
            axes.axvline(0.0, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_yticks(range(len(known)), [label for label, _ in known])
        axes.invert_yaxis()
        axes.set_xlabel(unit)

    return Figure(title, draw if known else None, max(HEIGHT, FRAME + ROW * len(known)))


def lines_figure(
    title: str,
    lines: Mapping[str, Sequence[tuple[float, Estimate | None]]],
    across: str,
    unit: str,
) -> Figure:
    """Estimates over a number, one line per name, with their intervals as bars."""
    known = {
        name: [(x, one) for x, one in points if one is not None] for name, points in lines.items()
    }

    def draw(axes: Axes) -> None:
        for index, (name, points) in enumerate(known.items()):
            below = [one.value - (one.value if one.low is None else one.low) for _, one in points]
            above = [(one.value if one.high is None else one.high) - one.value for _, one in points]
            axes.errorbar(
                [x for x, _ in points],
                [one.value for _, one in points],
                yerr=[below, above],
                color=COLOURS[index % len(COLOURS)],
                marker=MARKS[index % len(MARKS)],
                markersize=4,
                capsize=2,
                linewidth=1.3,
                label=name,
            )
        axes.set_xlabel(across)
        axes.set_ylabel(unit)
        if len(known) > 1:
            axes.legend()

    return Figure(title, draw if any(known.values()) else None)


def scatter_figure(
    title: str, points: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str
) -> Figure:
    """One point per run, with one mark per name."""

    def draw(axes: Axes) -> None:
        for index, (name, mine) in enumerate(points.items()):
            axes.plot(
                [x for x, _ in mine],
                [y for _, y in mine],
                MARKS[index % len(MARKS)],
                color=COLOURS[index % len(COLOURS)],
                markersize=4,
                label=name,
            )
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        if len(points) > 1:  # beside the points: they may lie anywhere
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))

    return Figure(title, draw if any(points.values()) else None)
