"""Static figures: drawn from the numbers given, in every format, the same each time."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure as Canvas

from ragen2.diagnostics.metrics.dependence import DependenceRow
from ragen2.errors import DependencyError, RunError
from ragen2.reports.figures import (
    EMPTY,
    FORMATS,
    Chart,
    Figure,
    chart_figure,
    dependence_figure,
    picture,
    plane_figure,
    save_figure,
    standalone,
)
from ragen2.reports.load import Series

LINE = Series("a", (1, 2, 4), (0.1, 0.3, 0.2), (0.0, 0.2, 0.1), (0.2, 0.4, 0.3))
SIGNS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def drawn(figure: Figure):
    axes = Canvas().subplots()
    assert figure.draw is not None
    figure.draw(axes)
    return axes


def points(line) -> list[tuple[float, float]]:
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))


@pytest.mark.parametrize("form", FORMATS)
def test_a_figure_is_a_file_of_its_format_and_the_same_each_time(form):
    figure = chart_figure(Chart("Title", [LINE], unit="share"))
    first = picture([figure], form)
    assert first.startswith(SIGNS[form])
    assert picture([figure], form) == first


def test_a_line_goes_through_its_points_and_its_band_through_its_ends():
    axes = drawn(chart_figure(Chart("t", [LINE])))
    assert points(axes.lines[0]) == [(1, 0.1), (2, 0.3), (4, 0.2)]
    (band,) = axes.collections
    corners = {(round(x, 6), round(y, 6)) for x, y in band.get_paths()[0].vertices}
    assert {(1.0, 0.0), (2.0, 0.4), (4.0, 0.1)} <= corners


def test_levels_and_guides_are_named_in_the_legend():
    guide = Series("chance", (1, 4), (0.25, 0.125))
    axes = drawn(chart_figure(Chart("t", [LINE], [("most", 0.9)], guides=[guide, guide])))
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["a", "chance", "most"]
    assert points(axes.lines[1]) == [(1, 0.25), (4, 0.125)]


def test_lines_differ_in_more_than_colour():
    lines = [Series(str(n), (1, 2), (0.1, 0.2)) for n in range(4)]
    axes = drawn(chart_figure(Chart("t", lines)))
    assert len({line.get_linestyle() for line in axes.lines}) == 4


def test_floor_and_ceiling_are_in_sight():
    axes = drawn(chart_figure(Chart("t", [LINE], floor=0.0, ceiling=1.0)))
    low, high = axes.get_ylim()
    assert -0.1 < low <= 0.0
    assert 1.0 <= high < 1.1


def test_values_below_the_floor_are_not_hidden():
    below = Series("a", (1, 2), (-0.5, 0.5))
    low, _ = drawn(chart_figure(Chart("t", [below], floor=0.0))).get_ylim()
    assert low <= -0.5


def test_nothing_measured_says_so():
    figure = chart_figure(Chart("Title", [Series("a", (), ())]))
    assert figure.draw is None
    assert EMPTY in standalone([figure])


def test_the_plane_pairs_the_steps_that_measured_both():
    entropy = Series("h", (1, 2, 3), (0.5, 0.6, 0.7))
    information = Series("i", (2, 3, 4), (1.0, 0.4, 9.9))
    axes = drawn(plane_figure([(entropy, information)], 1.5))
    assert points(axes.lines[0]) == [(0.6, 1.0), (0.7, 0.4)]
    start, end = axes.lines[1:3]
    assert (points(start), points(end)) == ([(0.6, 1.0)], [(0.7, 0.4)])
    assert start.get_fillstyle() == "none"
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["start", "end", "log P"]
    assert plane_figure([(entropy, Series("i", (9,), (1.0,)))], None).draw is None


def test_dependence_has_a_line_for_each_number_of_traces_and_its_bound():
    rows = [
        DependenceRow(metric=metric, prompts=prompts, traces=traces, mean=0.1, low=0.0, high=0.2)
        for metric in ("mi_estimate", "retrieval_accuracy")
        for prompts in (2, 8)
        for traces in (2, 4)
    ]
    axes = drawn(dependence_figure(rows))
    assert [line.get_label() for line in axes.lines] == ["K = 2", "K = 4", "log P"]
    assert points(axes.lines[2]) == [(2, math.log(2)), (8, math.log(8))]
    chance = drawn(dependence_figure(rows, "retrieval_accuracy")).lines[2]
    assert points(chance) == [(2, 0.5), (8, 0.125)]


def test_titles_and_names_are_text():
    hostile = "<script>alert(1)</script>&"
    other = Series("b", (1, 2), (0.1, 0.2))
    text = standalone([chart_figure(Chart(hostile, [Series(hostile, (1, 2), (0.1, 0.2)), other]))])
    root = ElementTree.fromstring(text)  # noqa: S314 - our own text
    assert not [one for one in root.iter() if one.tag.endswith("script")]
    assert "&lt;script&gt;" in text


def test_a_figure_in_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"a\.svg cannot be written: File exists"):
        save_figure([chart_figure(Chart("t", [LINE]))], tmp_path / "file" / "a.svg", "svg")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    real: Callable[..., object] = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DependencyError, match=r"pip install 'ragen2\[figures\]'"):
        picture([chart_figure(Chart("t", [LINE]))], "svg")
