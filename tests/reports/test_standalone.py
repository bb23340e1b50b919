"""Figures as a file of their own: well-formed, coloured, and without a page around them."""

from __future__ import annotations

from xml.etree import ElementTree

from ragen2.reports.figures import Chart, Figure, chart_figure, plane_figure
from ragen2.reports.load import Series
from ragen2.reports.standalone import standalone

SVG = "{http://www.w3.org/2000/svg}"
CHART = chart_figure(
    Chart("Success <1>", [Series("a & b", (1, 2), (0.1, 0.2)), Series("c", (1, 2), (0.3, 0.4))])
)


def test_it_is_one_well_formed_picture_of_all_figures():
    plane = plane_figure([(Series("x", (1,), (1.0,)), Series("y", (1,), (0.5,)))], 1.0)
    root = ElementTree.fromstring(standalone([CHART, plane]))  # noqa: S314 - our own text
    assert root.tag == f"{SVG}svg"
    assert len(root.findall(f"{SVG}g")) == 2


def test_titles_and_legends_are_text_and_not_markup():
    root = ElementTree.fromstring(standalone([CHART]))  # noqa: S314 - our own text
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert {"Success <1>", "a & b", "c"} <= set(words)


def test_it_brings_its_own_colours():
    text = standalone([CHART])
    assert "var(--" not in text
    assert "#" in text.split("</style>")[0]


def test_a_figure_without_points_says_so():
    assert "not measured in this run" in standalone([Figure("Entropy")])


def test_several_runs_in_one_plane_are_named():
    paths = [
        (Series(name, (1, 2), (1.0, 2.0)), Series(name, (1, 2), (0.1, 0.2)))
        for name in ("healthy", "collapsed")
    ]
    figure = plane_figure(paths, None)
    assert [name for _, name in figure.keys] == ["healthy", "collapsed"]
    assert figure.body.count("<polyline") == 2
