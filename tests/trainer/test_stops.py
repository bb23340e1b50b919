"""Early stops: each rule fires after its steps in a row, can be switched off, and forgets nothing."""

from __future__ import annotations

import pytest

from ragen2.config import Stops
from ragen2.trainer.state import StopState, watch_stops

OFF = Stops(variance_steps=0, empty_steps=0, success_evaluations=0)


def run(settings: Stops, steps: list[dict[str, float]]) -> list[int]:
    """Steps (from 1) at which there was a reason to stop."""
    state, found = StopState(), []
    for number, metrics in enumerate(steps, start=1):
        state, reason = watch_stops(settings, state, metrics)
        if reason:
            found.append(number)
    return found


def test_variance_collapse_needs_its_steps_in_a_row_below_a_share_of_the_beginning():
    settings = OFF.model_copy(update={"variance_steps": 3, "variance_baseline": 2})
    start = [{"reward/std": 1.0}, {"reward/std": 3.0}]
    low, enough = {"reward/std": 0.199}, {"reward/std": 0.2}
    assert run(settings, [*start, low, low, low]) == [5]
    assert run(settings, [*start, low, low, enough, low, low]) == []


def test_dead_first_steps_do_not_make_the_baseline():
    settings = OFF.model_copy(update={"variance_steps": 1, "variance_baseline": 1})
    assert run(settings, [{"reward/std": 0.0}, {"reward/std": 1.0}, {"reward/std": 0.05}]) == [3]


def test_empty_steps():
    settings = OFF.model_copy(update={"empty_steps": 2})
    kept, empty = {"filter/kept": 1.0}, {"filter/kept": 0.0}
    assert run(settings, [empty, kept, empty, empty]) == [4]


def test_low_success_counts_evaluations_not_steps():
    settings = OFF.model_copy(update={"success_evaluations": 2})
    low = {"eval/success": 0.009}
    assert run(settings, [low, {}, {}, {"eval/success": 0.01}, low, {}, low]) == [7]


def test_zero_switches_each_rule_off():
    steps = [{"reward/std": 1.0, "filter/kept": 0.0, "eval/success": 0.0}] * 20
    assert run(OFF, [*steps, *[{"reward/std": 0.0}] * 30]) == []


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (StopState(low_variance=10), "reward variance collapsed: 10 steps in a row"),
        (StopState(empty=5), "the filter kept no prompt for 5 steps in a row"),
        (StopState(low_success=5), "held-out success below 0.01 at 5 evaluations in a row"),
    ],
)
def test_the_reason_says_what_happened(state, words):
    assert words in watch_stops(Stops(), state, {})[1]
