"""Charts: every point inside the frame, whatever the numbers; empty ones say so."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.diagnostics import DependenceRow
from ragen2.reports.figures import (
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Chart,
    as_html,
    dependence_figure,
    draw,
    draw_plane,
)
from ragen2.reports.load import Series

# Numbers that metrics take, and some that only a run gone wrong gives.
numbers = (
    st.floats(-1e3, 1e3)
    | st.sampled_from([0.0, 1.0, 1e-9, 1e20, -1e20, 5e-324])
    | st.floats(-1e100, 1e100)
)


def series(values, steps=None, name: str = "a", **bounds) -> Series:
    return Series(name, tuple(steps or range(1, len(values) + 1)), tuple(values), **bounds)


def points(svg: str) -> list[tuple[float, float]]:
    """Every point of every line, band and dot."""
    pairs = [pair for path in re.findall(r'points="([^"]*)"', svg) for pair in path.split()]
    dots = re.findall(r'cx="([^"]*)" cy="([^"]*)"', svg)
    return [tuple(map(float, pair.split(","))) for pair in pairs] + [
        (float(x), float(y)) for x, y in dots
    ]


def assert_inside(svg: str) -> None:
    ElementTree.fromstring(svg)  # noqa: S314 - our own text; it must be well-formed
    found = points(svg)
    assert found
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in found)


def test_a_chart_of_an_empty_series_says_so():
    text = draw(Chart("Success", [series([])]))
    assert "not measured in this run" in text
    assert "<svg" not in text
    assert "Success" in text


def test_a_chart_without_series_says_so():
    assert "not measured in this run" in draw(Chart("Success", []))


def test_an_empty_series_beside_a_full_one_is_left_out():
    text = draw(Chart("Success", [series([]), series([0.5, 0.6], name="b")]))
    assert text.count("<polyline") == 1


def test_a_chart_has_a_line_for_each_series_and_a_legend_for_several():
    text = draw(Chart("Success", [series([0.1], name="one"), series([0.2], name="two")]))
    assert text.count("<polyline") == 2
    assert "one" in text
    assert "two" in text


def test_an_interval_is_a_band():
    text = draw(Chart("x", [series([1.0, 2.0], low=(0.5, 1.5), high=(1.5, 2.5))]))
    assert text.count("<polygon") == 1
    assert_inside(text)


def test_higher_values_are_drawn_higher():
    text = draw(Chart("x", [series([1.0, 2.0, 3.0])]))
    heights = [y for _, y in points(text)[:3]]
    assert heights == sorted(heights, reverse=True)


def test_the_horizontal_axis_is_named():
    assert ">step</text>" in draw(Chart("x", [series([0.5])]))
    named = draw(Chart("x", [series([0.5])], across="groundedness, %"))
    assert ">groundedness, %</text>" in named
    assert ">step</text>" not in named


def test_a_level_is_named():
    assert "chance" in draw(Chart("x", [series([0.5])], [("chance", 0.25)]))


@pytest.mark.parametrize("values", [[0.0], [1.0], [-5.0], [1e20], [1e20, 1e20], [1e-15, 2e-15]])
def test_a_flat_series_can_be_drawn(values):
    assert_inside(draw(Chart("x", [series(values)])))


@given(st.lists(numbers, min_size=1, max_size=20), st.sampled_from([None, 0.0]))
def test_every_point_lies_inside_the_frame(values, floor):
    assert_inside(draw(Chart("x", [series(values)], floor=floor)))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(0, 10**6))
def test_shares_lie_inside_the_frame_from_any_step_on(values, first):
    steps = range(first, first + len(values))
    assert_inside(draw(Chart("x", [series(values, steps)], floor=0.0, ceiling=1.0)))


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=10))
def test_the_regime_plane_holds_any_path(path):
    entropy, information = zip(*path, strict=True)
    assert_inside(draw_plane(series(entropy), series(information), 2.08))


def test_the_regime_plane_of_nothing_says_so():
    assert "not measured in this run" in draw_plane(series([]), series([]), None)


def test_the_regime_plane_joins_by_step():
    across = series([1.0, 2.0, 3.0], [1, 2, 3])
    up = series([0.1, 0.3], [1, 3])
    path = re.search(r'<polyline[^>]*points="([^"]*)"', draw_plane(across, up, 1.0))
    assert len(path[1].split()) == 2


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '" onload="x', "a & b"])
def test_names_in_a_chart_are_text_and_not_markup(hostile):
    lines = [series([1.0], name=hostile), series([2.0], name="b")]
    text = draw(Chart(hostile, lines, [(hostile, 1.0)], hostile))
    ElementTree.fromstring(text)  # noqa: S314 - our own text; it must be well-formed
    assert "<script>" not in text
    assert 'onload="' not in text


# --- names of levels -------------------------------------------------------------------------------


def label_box(text: str) -> tuple[float, float] | None:
    found = re.search(r'<text class="label" x="([^"]*)" y="([^"]*)">', text)
    return (float(found[1]), float(found[2])) if found else None


def test_a_level_far_from_every_line_is_named_above_its_right_end():
    text = draw(Chart("x", [series([0.9, 0.9, 0.9])], [("chance", 0.25)], floor=0.0, ceiling=1.0))
    level = float(re.search(r'class="level"[^>]*y1="([^"]*)"', text)[1])
    start, base = label_box(text)
    assert base == pytest.approx(level - 4.0)
    assert start > WIDTH / 2


def test_a_name_goes_below_where_a_band_lies_above():
    flat = series([0.4] * 5, low=(0.3,) * 5, high=(0.5,) * 5)
    text = draw(Chart("x", [flat], [("chance", 0.25)], floor=0.0, ceiling=1.0))
    level = float(re.search(r'class="level"[^>]*y1="([^"]*)"', text)[1])
    assert label_box(text)[1] > level


def test_a_name_moves_along_its_level_to_where_no_line_runs():
    rising = series([0.9, 0.9, 0.9, 0.2])
    text = draw(Chart("x", [rising], [("chance", 0.25)], floor=0.0, ceiling=1.0))
    assert label_box(text)[0] < WIDTH / 2


def test_a_name_without_room_goes_into_the_legend():
    wide = series([0.25] * 5, low=(0.0,) * 5, high=(0.9,) * 5)
    text = draw(Chart("x", [wide], [("chance", 0.25)], floor=0.0, ceiling=1.0))
    assert label_box(text) is None
    assert '<i class="dash"></i>chance' in text


def test_a_guide_is_a_level_that_follows_the_steps():
    line = series([0.9, 0.9, 0.9])
    guide = series([0.5, 0.25, 0.125], name="chance")
    text = draw(Chart("x", [line], guides=[guide], floor=0.0, ceiling=1.0))
    heights = [y for _, y in points(re.search(r'<polyline class="level"[^>]*>', text)[0])]
    assert heights == sorted(heights)
    assert len(set(heights)) == 3
    assert text.count(">chance<") == 1


def test_a_guide_of_one_step_reaches_across():
    guide = series([0.25], name="chance")
    text = draw(Chart("x", [series([0.9])], guides=[guide], floor=0.0, ceiling=1.0))
    path = points(re.search(r'<polyline class="level"[^>]*>', text)[0])
    assert len(path) == 2
    assert path[1][0] - path[0][0] > WIDTH / 2


# --- proxies against the number of prompts ---------------------------------------------------------


def dependence_rows(metric: str, sizes=(2, 4, 8, 32), traces=(2, 8)) -> list[DependenceRow]:
    return [
        DependenceRow(prompts, each, metric, 0.3, 0.2, 0.4) for prompts in sizes for each in traces
    ]


def test_each_doubling_of_prompts_takes_the_same_room():
    body = dependence_figure(dependence_rows("mi_estimate", traces=(2,))).body
    (line,) = re.findall(r'<polyline class="line s0" points="([^"]*)"', body)
    across = [float(pair.split(",")[0]) for pair in line.split()]
    room = WIDTH - RIGHT - LEFT
    assert across == pytest.approx([LEFT, LEFT + room / 4, LEFT + room / 2, LEFT + room], abs=0.1)
    for size in (2, 4, 8, 16, 32):
        assert f">{size}</text>" in body


@pytest.mark.parametrize(
    ("metric", "guide"), [("mi_seq_estimate", "log P"), ("retrieval_accuracy", "chance")]
)
def test_a_proxy_is_drawn_with_its_limit_a_line_for_each_number_of_traces(metric, guide):
    text = as_html(dependence_figure(dependence_rows(metric), metric))
    assert text.count('<polygon class="band') == 2
    assert "K = 2" in text
    assert "K = 8" in text
    assert guide in text
    assert_inside(text)


def test_one_size_alone_can_be_drawn():
    assert_inside(as_html(dependence_figure(dependence_rows("mi_estimate", sizes=(8,)))))


def test_a_metric_that_no_row_has_is_said_to_be_missing():
    assert "not measured" in as_html(dependence_figure([], "mi_estimate"))
