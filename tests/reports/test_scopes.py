"""Charts by scope: only what was measured, each with its chance level or bound."""

from __future__ import annotations

import re
from pathlib import Path

from ragen2.reports.figures import COLOURS
from ragen2.reports.load import Run
from ragen2.reports.page import charts, render_page
from ragen2.reports.scopes import scope_charts, scope_label
from ragen2.reports.verdict import judge
from ragen2.runs.record import StepRecord


def scope(name: str, retrieval: float) -> dict[str, float]:
    found = {
        "retrieval_accuracy": retrieval,
        "retrieval_chance": 0.1,
        "mi_estimate": 0.5,
        "mi_bound": 2.3,
        "conditional_entropy": 0.7,
        "reasoning_entropy": 1.2,
    }
    return {f"collapse/{name}/{metric}": value for metric, value in found.items()}


def run_of(*steps: dict[str, float]) -> Run:
    records = [StepRecord(step=n, metrics=metrics) for n, metrics in enumerate(steps)]
    return Run(Path("run"), {}, tuple(records))


def titles(figures: list[str]) -> list[str]:
    return [re.search(r'aria-label="([^"]*)"', figure)[1] for figure in figures]


def test_a_run_of_the_first_turn_only_has_no_section():
    run = run_of(scope("first_turn", 0.9), scope("first_turn", 0.8))
    assert scope_charts(run) == []
    assert "By scope" not in render_page([run])


def test_every_other_scope_has_retrieval_and_information():
    run = run_of(
        scope("first_turn", 0.9) | scope("turn_2", 0.8) | scope("turn_3", 0.7),
        scope("first_turn", 0.9) | scope("trajectory", 0.8) | scope("probe", 0.7),
    )
    assert titles(scope_charts(run)) == [
        "Retrieval, by turn",
        "I(X;Z), by turn",
        "Retrieval, all turns",
        "I(X;Z), all turns",
        "Retrieval, probe set",
        "I(X;Z), probe set",
    ]
    assert "<h2>By scope</h2>" in render_page([run])


def test_turns_are_lines_of_one_chart_each_with_its_own_chance_level():
    run = run_of(*[scope("first_turn", 0.9) | scope("turn_2", 0.8) | scope("turn_3", 0.7)] * 2)
    retrieval, information = scope_charts(run)
    for figure, label in ((retrieval, "chance"), (information, "bound log P")):
        assert len(re.findall(r'<polyline class="line s\d', figure)) == 3
        assert len(re.findall(r'<polyline class="level s\d', figure)) == 3
        assert figure.count(f">{label}<") == 1
        assert all(f"turn {k}" in figure for k in (1, 2, 3))


def test_many_turns_are_thinned_to_the_colours_there_are_with_both_ends():
    every = {}
    for k in range(2, 21):
        every |= scope(f"turn_{k}", 0.5)
    figure = scope_charts(run_of(every, every))[0]
    shown = [int(k) for k in re.findall(r"</i>turn (\d+)<", figure)]
    assert len(shown) == COLOURS
    assert (shown[0], shown[-1]) == (2, 20)


def test_the_first_turn_is_turn_one_among_turns():
    assert scope_label("first_turn") == "turn 1"
    assert scope_label("turn_12") == "turn 12"


def test_a_run_without_first_turns_is_shown_and_judged_by_its_trajectories():
    run = run_of(scope("trajectory", 0.8) | scope("probe", 0.3), scope("trajectory", 0.6))
    assert run.main_scope == "trajectory"
    drawn = [figure for figure in charts(run) if "Retrieval accuracy" in figure]
    assert "not measured" not in drawn[0]
    lines = judge(run).evidence
    assert "retrieval accuracy: 0.800 at step 0, 0.600 at step 1" in lines
    assert "retrieval accuracy, probe set: 0.300 at step 0, 0.300 at step 0" in lines


def test_measurements_now_and_then_are_joined_over_the_steps_between():
    run = run_of(scope("first_turn", 0.9), {}, {}, scope("first_turn", 0.5), {})
    assert "retrieval accuracy: 0.900 at step 0, 0.500 at step 3" in judge(run).evidence
    series = run.series("collapse/first_turn/retrieval_accuracy")
    assert (series.steps, series.values) == ((0, 3), (0.9, 0.5))
