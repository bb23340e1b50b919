"""Reading runs: peaks, ends, changes, and who is compared with whom."""

from __future__ import annotations

import pytest
from made_runs import run_of

from ragen2.errors import ConfigError
from ragen2.experiments.cells import (
    Cells,
    area,
    average,
    averaged,
    change,
    difference,
    early,
    filter_gain,
    final,
    first,
    gain,
    late,
    level,
    peak,
    require_axes,
    training_seconds,
)

CURVE = run_of(
    {
        "m": [1.0, 2.0, None, 6.0, 3.0, 2.0, 9.0, 9.0, 9.0, 9.0, 5.0, 3.0, 4.0],
        "sparse": [None, 8.0, None, None, None, None, 1.0],
        "eval/success": [0.7, None, None, None, 0.6, None, None, None, None, None, None, None, 0.5],
    }
)
"""Twelve steps: the first three and the last three are its ends."""


@pytest.mark.parametrize(
    ("measure", "value"),
    [
        (peak("m"), 9.0),
        (first("m"), 1.0),
        (final("m"), 4.0),
        (late("m"), 4.0),  # steps 10 to 12
        (early("m"), 3.0),  # steps 0, 1 and 3; nothing was measured at 2
        (average("sparse"), 4.5),
        (change("m"), 1.0),
        (gain("m"), 3.0),
        (peak(), 0.6),  # not 0.7, which is before training
        (area(), (4 * 0.65 + 8 * 0.55) / 12),
        (gain(), -0.2),
        (early("sparse"), 8.0),
        (late("sparse"), None),  # step 6 is not the end
        (change("sparse"), None),
        (peak("absent"), None),
        (area("absent"), None),
        (change("absent"), None),
        (late("absent"), None),
    ],
)
def test_a_measure_of_a_run(measure, value):
    assert measure(CURVE) == (None if value is None else pytest.approx(value))


def test_an_end_is_never_read_before_the_first_update():
    assert late("m")(run_of({"m": [None, 1.0]})) is None
    assert change("m")(run_of({"m": [None, 1.0]})) is None
    assert change("m")(run_of({"m": [None, 1.0, 4.0]})) == 3.0


def test_a_peak_needs_an_evaluation_after_the_start():
    assert peak()(run_of({"eval/success": [0.4]})) is None


def test_a_change_may_be_told_over_the_steps_that_another_metric_has():
    ends = [1.0, 2.0, 4.0] + [0.0] * 6 + [8.0, 16.0, 32.0, 64.0]
    run = run_of({"m": ends, "n": [None, 0.0] + [None] * 9 + [0.0, None]})
    assert change("m")(run) == 112.0 / 3.0 - 7.0 / 4.0
    assert change("m", beside="n")(run) == 30.0  # 32 - 2


def test_training_time_is_rollout_and_update_after_the_first_step():
    run = run_of({"m": [0.0] * 4})
    assert training_seconds(run) == 2.0
    slow = run.records[1].model_copy(update={"seconds": {"rollout": 100.0, "update": 1.0}})
    assert (
        training_seconds(type(run)(run.path, {}, (run.records[0], slow, *run.records[2:]))) == 2.0
    )
    assert training_seconds(type(run)(run.path, {}, run.records[:2])) is None


def test_a_gain_is_filtered_less_unfiltered_at_the_peak_in_points(cell_of):
    cells = Cells(
        [
            cell_of(0, {"eval/success": [0.1, 0.5, 0.4]}, filter="top_p"),
            cell_of(1, {"eval/success": [0.1, 0.4, 0.4]}, filter="top_p"),
            cell_of(0, {"eval/success": [0.1, 0.3, 0.2]}, filter="none"),
            cell_of(1, {"eval/success": [0.1, 0.3, 0.3]}, filter="none"),
        ]
    )
    at_peak, at_end = filter_gain(cells, "top_p"), filter_gain(cells, "top_p", final())
    assert (at_peak.value, at_peak.num) == (pytest.approx(15.0), 2)  # +20 and +10
    assert at_end.value == pytest.approx(15.0)  # +20 and +10
    assert difference(cells, "filter", "none", "top_p", peak()).value == pytest.approx(-0.15)
    assert level(cells.where(filter="none"), peak(), 100.0).value == pytest.approx(30.0)


def test_averages_are_made_inside_a_seed():
    assert averaged([{0: 1.0, 1: 2.0}, {0: 3.0, 2: 9.0}]) == {0: 2.0}
    assert averaged([]) == {}


def test_labels_keep_the_order_of_the_grid_and_choose_runs(cell_of):
    cells = Cells([cell_of(s, {"m": [1.0]}, task=task) for task in ("b", "a") for s in (0, 1)])
    assert cells.axis("task") == ["b", "a"]
    assert [key for key, _ in cells.groups("task")] == [("b",), ("a",)]
    assert len(cells.where(task="a")) == 2
    assert cells.where(task="a").by_seed(first("m")) == {0: 1.0, 1: 1.0}


def test_labels_that_were_planned_are_known_without_a_finished_run(cell_of):
    plan = [{"task": task, "filter": arm} for task in ("b", "a") for arm in ("none", "top_p")]
    cells = Cells([cell_of(0, {"m": [1.0]}, task="a", filter="none")], plan=plan)
    assert (cells.axis("task"), cells.planned_axis("task")) == (["a"], ["b", "a"])
    assert cells.where(task="a").axis("filter") == ["none"]
    assert cells.where(task="a").planned_axis("filter") == ["none", "top_p"]
    assert cells.where(task="a").planned_axis("task") == ["a"]
    assert Cells(cells.runs).planned_axis("task") == ["a"]


def test_an_analysis_says_which_list_it_misses(cell_of):
    cells = Cells([cell_of(0, {}, task="a")])
    require_axes(cells, "task")
    with pytest.raises(ConfigError, match="reads the list 'filter', which the grid does not have"):
        require_axes(cells, "task", "filter")
    require_axes(Cells([]), "filter")  # nothing is finished yet: nothing to say


def test_two_runs_of_a_seed_are_not_mixed_up(cell_of):
    cells = Cells(
        [cell_of(0, {"m": [1.0]}, task=task, size=size) for task in "ab" for size in "sl"]
    )
    assert cells.values(first("m")) == [1.0] * 4
    with pytest.raises(ConfigError, match="but the list 'size' makes several"):
        cells.where(task="a").by_seed(first("m"))
    assert cells.where(task="a", size="s").by_seed(first("m")) == {0: 1.0}
