"""Simulated runs: their fates, the calibration, and the early warning on a reduced set of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from ragen2.diagnostics import EarlyWarning
from training_curves import (
    MEASUREMENTS,
    Fate,
    Outcome,
    calibrate,
    draw_fate,
    outcome,
    simulate,
    statistics,
)

RULE = EarlyWarning()


@pytest.mark.parametrize("index", range(20))
def test_a_collapsing_run_loses_nine_tenths_between_onset_and_end(index):
    fate = draw_fate(index, 0, is_collapsing=True)
    assert MEASUREMENTS // 8 <= fate.onset < MEASUREMENTS // 2
    assert 1 <= fate.duration <= 50
    path, end = fate.groundedness_T, fate.onset + fate.duration - 1
    assert path[end:].max() <= 0.1 * 0.95 + 1e-12
    assert path[: fate.onset].min() > 0.3 * 0.9 - 1e-12
    assert path[fate.onset] < path[fate.onset - 1]


def test_healthy_runs_vary_gently_and_some_rise():
    paths = [draw_fate(index, 0, is_collapsing=False).groundedness_T for index in range(60)]
    assert all(draw_fate(i, 0, is_collapsing=False).onset is None for i in range(60))
    assert all(path.min() > 0.3 * 0.9 - 1e-12 for path in paths)
    assert all(path.min() > 0.8 * path[0] for path in paths)
    rises = sum(path[-1] > 1.25 * path[0] for path in paths)
    assert 3 <= rises <= 20


def test_the_same_name_gives_the_same_run():
    first, again = (draw_fate(3, 1, is_collapsing=True) for _ in range(2))
    np.testing.assert_array_equal(first.groundedness_T, again.groundedness_T)
    short = Fate(first.groundedness_T[:4], None, 0)
    assert simulate(3, 1, short) == simulate(3, 1, short)
    assert simulate(3, 1, short) != simulate(3, 2, short)


def test_measurements_follow_groundedness():
    path = np.array([0.9, 0.5, 0.1, 0.0])
    found = simulate(0, 0, Fate(path, None, 0), prompts=4, traces=16)
    values = [metrics["mi_estimate"] for metrics in found]
    assert values == sorted(values, reverse=True)
    assert all((m["num_prompts"], m["num_traces"]) == (4.0, 64.0) for m in found)


# --- outcomes and calibration ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alarm", "onset", "is_false", "is_missed", "delay"),
    [
        (None, None, False, False, None),
        (5, None, True, False, None),
        (None, 5, False, True, None),
        (4, 5, True, False, None),
        (5, 5, False, False, 0),
        (8, 5, False, False, 3),
    ],
)
def test_an_alarm_is_judged_by_the_onset(alarm, onset, is_false, is_missed, delay):
    found = Outcome(alarm, onset)
    assert (found.is_false_alarm, found.is_missed, found.delay) == (is_false, is_missed, delay)


def test_an_alarm_is_the_first_time_that_the_threshold_is_reached():
    fate = Fate(np.zeros(5), 1, 1)
    found = outcome(np.array([0.0, 1.0, 4.0, 2.0, 5.0]), 4.0, fate)
    assert (found.alarm, found.delay) == (2, 1)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.25, 0.5])
def test_calibration_lets_just_that_share_of_runs_reach_the_threshold(rate):
    peaks = [np.array([0.0, peak, 1.0]) for peak in np.random.default_rng(0).uniform(2, 9, 40)]
    threshold = calibrate(peaks, rate)
    reached = sum(bool((one >= threshold).any()) for one in peaks)
    assert reached == int(rate * 40)
    assert sum(bool((one >= threshold - 1e-9).any()) for one in peaks) == reached + 1


def test_calibration_to_all_alarms_is_no_threshold():
    assert calibrate([np.array([3.0])], 1.0) == 0.0


def test_the_statistic_reaches_the_threshold_where_the_rule_raises_its_alarm():
    fate, curve = collapsing_runs()[0]
    state, raised = RULE.start(), []
    for metrics in curve:
        state = RULE.update(state, metrics)
        raised.append(state.is_raised)
    assert outcome(statistics(RULE, curve), RULE.threshold, fate).alarm == raised.index(True)


# --- the rule, on a few runs of each kind; benchmarks/early_warning.py has them all ------------------


@cache
def healthy_runs() -> list[tuple[Fate, list[dict[str, float]]]]:
    fates = [draw_fate(index, 0, is_collapsing=False) for index in range(8)]
    return [(fate, simulate(index, 0, fate)) for index, fate in enumerate(fates)]


@cache
def collapsing_runs() -> list[tuple[Fate, list[dict[str, float]]]]:
    fates = [draw_fate(index, 0, is_collapsing=True) for index in range(8)]
    return [(fate, simulate(index, 0, fate)) for index, fate in enumerate(fates)]


def outcomes(found: list[tuple[Fate, list[dict[str, float]]]]) -> list[Outcome]:
    return [outcome(statistics(RULE, curve), RULE.threshold, fate) for fate, curve in found]


def test_healthy_runs_raise_no_alarm():
    # At the published rate of at most 5%, two alarms or more in 8 runs have a chance of 6%.
    assert sum(one.is_false_alarm for one in outcomes(healthy_runs())) <= 1


def test_every_collapse_is_found_soon_after_it_begins():
    found = outcomes(collapsing_runs())
    assert not any(one.is_false_alarm or one.is_missed for one in found)
    assert np.median([one.delay for one in found]) <= 8


def test_the_alarm_comes_before_a_slow_collapse_is_complete():
    slow = [(fate, curve) for fate, curve in collapsing_runs() if fate.duration >= 15]
    assert slow
    for (fate, _), found in zip(slow, outcomes(slow), strict=True):
        assert found.delay < fate.duration
