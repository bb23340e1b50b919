"""The early warning: its sums by hand, what raises it, what clears it, and what must not."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
from pydantic import TypeAdapter

from ragen2.diagnostics import EarlyWarning, WarningState
from ragen2.diagnostics.judging.regime import Z95
from ragen2.diagnostics.judging.warning import CAP, FLOOR, LARGEST, SLACK


def metrics(mi: float = 1.0, retrieval: float = 1.0, **changes: float) -> dict[str, float]:
    """A batch of 8 x 8 with standard errors of 0.1 for MI and 0.07 for retrieval, far from chance."""
    return {
        "mi_estimate": mi,
        "mi_estimate_low": mi - 0.1 * Z95,
        "mi_estimate_high": mi + 0.1 * Z95,
        "mi_p_value": 0.005,
        "retrieval_accuracy": retrieval,
        "retrieval_accuracy_low": retrieval - 0.07 * Z95,
        "retrieval_accuracy_high": retrieval + 0.07 * Z95,
        "retrieval_chance": 0.125,
        "retrieval_p_value": 0.005,
        "num_traces": 64.0,
        "num_prompts": 8.0,
    } | changes


def after(rule: EarlyWarning, *batches: dict[str, float]) -> WarningState:
    state = rule.start()
    for batch in batches:
        state = rule.update(state, batch)
    return state


STEADY = [metrics()] * 5
RULE = EarlyWarning()


def test_the_first_measurements_make_the_baseline():
    state = after(EarlyWarning(baseline=3), metrics(1.0), metrics(1.3), metrics(1.6))
    assert state.mi.baseline == pytest.approx(1.3)
    assert state.mi.statistic == 0.0
    assert state.retrieval.baseline == pytest.approx(1.0)


def test_a_drop_counts_in_noise_scales_beyond_the_tolerated_share():
    # Tolerated 0.3 of 1: the line is 0.7; 0.55 is 1.5 standard errors of 0.1 below it.
    state = after(RULE, *STEADY, metrics(0.55))
    assert state.mi.statistic == pytest.approx(1.5 - SLACK)
    assert state.retrieval.statistic == 0.0
    assert state.statistic == pytest.approx((1.5 - SLACK) / RULE.threshold)


def test_retrieval_counts_as_a_share_of_what_is_above_chance():
    # 0.5 is 3/7 of the way from 1/8 to 1, and the error 0.07 is 0.08 of it.
    state = after(RULE, *STEADY, metrics(retrieval=0.5))
    expected = (0.7 - 3 / 7) / 0.08
    assert expected > LARGEST
    assert state.retrieval.statistic == pytest.approx(LARGEST - SLACK)
    state = after(RULE, *STEADY, metrics(retrieval=0.6125))
    assert state.retrieval.statistic == pytest.approx((0.7 - 0.4875 / 0.875) / 0.08 - SLACK)


def test_one_outlier_is_no_alarm_and_two_are():
    assert not after(RULE, *STEADY, metrics(0.0)).is_raised
    assert after(RULE, *STEADY, metrics(0.0), metrics(0.0)).is_raised
    assert not after(RULE, *STEADY, metrics(0.0), metrics(1.0), metrics(0.0)).is_raised


def test_the_noise_is_what_successive_measurements_differ_by_when_that_is_more():
    # Differences of 0.4 and 0.4: half their mean square is 0.08, more than 0.1 squared.
    restless = [metrics(1.0), metrics(1.4), metrics(1.0)]
    state = after(EarlyWarning(baseline=3), *restless, metrics(0.3))
    line = 0.7 * (3.4 / 3.0)
    assert state.mi.statistic == pytest.approx((line - 0.3) / math.sqrt(0.08) - SLACK)


def test_a_fall_counts_as_noise_up_to_the_largest_only():
    # A step of 1 where 0.1 is noise: it adds half the square of 3 sqrt(2) 0.1, not of 1.
    state = after(RULE, *STEADY, metrics(0.0))
    assert state.mi.squares == pytest.approx((LARGEST * 0.1) ** 2)


def test_a_wide_interval_counts_as_noise_now():
    wide = metrics(0.1, mi_estimate_low=0.1 - 0.5 * Z95, mi_estimate_high=0.1 + 0.5 * Z95)
    assert after(RULE, *STEADY, wide).mi.statistic == pytest.approx((0.7 - 0.1) / 0.5 - SLACK)


def test_without_any_noise_a_drop_counts_as_the_largest():
    bare = {name: v for name, v in metrics().items() if not name.endswith(("_low", "_high"))}
    same = after(RULE, *[bare] * 8)
    assert (same.mi.statistic, same.is_raised) == (0.0, False)
    lower = after(RULE, *[bare] * 5, bare | {"mi_estimate": 0.699})
    assert lower.mi.statistic == pytest.approx(LARGEST - SLACK)


def test_a_rise_is_healthy_and_the_baseline_follows_it():
    rising = [metrics(1.0 + 0.02 * step) for step in range(100)]
    state = after(RULE, *STEADY, *rising)
    assert state.statistic == 0.0
    assert 2.5 < state.mi.baseline < 2.98
    fallen = after(RULE, *STEADY, *rising, *[metrics(1.0)] * 3)
    assert fallen.is_raised


def test_the_baseline_never_follows_downwards():
    sinking = [metrics(1.0 - 0.01 * step) for step in range(60)]
    state = after(RULE, *STEADY, *sinking)
    assert state.mi.baseline == pytest.approx(1.0)
    assert state.is_raised


def test_what_was_lost_within_the_tolerated_share_never_adds_up():
    assert after(RULE, *STEADY, *[metrics(0.71)] * 500).statistic == 0.0


def test_missing_measurements_change_nothing():
    state = after(RULE, *STEADY, metrics(0.5))
    assert RULE.update(state, {}) == state
    one_prompt = metrics(0.0, 1.0, retrieval_chance=1.0, num_prompts=1.0)
    assert RULE.update(state, one_prompt) == state


# --- the floor at chance ---------------------------------------------------------------------------


def at_chance(p_value: float = 0.5, **changes: float) -> dict[str, float]:
    chances = {"mi_p_value": p_value, "retrieval_p_value": p_value}
    return metrics(0.0, 0.125, **(chances | changes))


def test_reasoning_that_starts_at_chance_is_an_alarm_without_a_baseline():
    first = after(RULE, at_chance())
    assert first.floor == pytest.approx(math.log(0.5 / FLOOR))
    state = after(RULE, at_chance(), at_chance())
    assert state.is_raised
    assert state.reason == "retrieval and mutual information are at chance"


def test_the_better_of_the_two_p_values_counts():
    state = after(RULE, *[at_chance(0.5, mi_p_value=0.01)] * 20)
    assert state.floor == 0.0
    state = after(RULE, *[at_chance(0.5, retrieval_p_value=0.01)] * 20)
    assert state.floor == 0.0


def test_a_batch_too_small_to_tell_says_nothing_about_chance():
    state = after(RULE, *[at_chance(num_traces=4.0, num_prompts=2.0)] * 20)
    assert state.floor == 0.0


def test_without_p_values_there_is_no_floor():
    bare = {name: v for name, v in at_chance().items() if not name.endswith("p_value")}
    assert not after(RULE, *[bare] * 20).is_raised


# --- hysteresis ------------------------------------------------------------------------------------

DOWN = [metrics(0.0)] * 2


def test_an_alarm_stays_for_its_dwell_and_then_is_cleared():
    states = []
    state = after(RULE, *STEADY)
    for batch in [*DOWN, *[metrics(1.0)] * 4]:
        state = RULE.update(state, batch)
        states.append(state.is_raised)
    assert states == [False, True, True, True, False, False]
    assert state.reason == ""


def test_an_alarm_is_not_cleared_while_a_sum_is_above_the_lower_threshold():
    rule = EarlyWarning(dwell=1)
    raised = after(rule, *STEADY, *[metrics(0.0)] * 10)
    assert raised.statistic == CAP
    states = [raised]
    for _ in range(20):
        states.append(rule.update(states[-1], metrics(0.68)))
    assert [state.is_raised for state in states] == [state.statistic >= 0.2 for state in states]
    between = [state for state in states if 0.2 <= state.statistic < 1.0]
    assert between
    assert all(state.is_raised for state in between)


def test_a_level_between_the_thresholds_raises_nothing_that_was_off():
    state = after(RULE, *STEADY, metrics(0.0))
    assert 0.2 < state.statistic < 1.0
    assert not state.is_raised


def test_a_long_collapse_is_forgotten_as_fast_as_a_short_one():
    long = after(RULE, *STEADY, *[metrics(0.0)] * 500)
    assert long.statistic == CAP
    for _ in range(4):
        long = RULE.update(long, metrics(1.0))
    assert not long.is_raised


# --- the state -------------------------------------------------------------------------------------


def test_the_state_goes_through_json_without_losing_a_bit():
    state = after(RULE, *STEADY, metrics(0.1 + 0.2), metrics(1 / 3), at_chance(0.07))
    assert state.is_raised
    text = json.dumps(asdict(state))
    assert TypeAdapter(WarningState).validate_json(text) == state


def test_a_given_baseline_is_used_from_the_first_measurement_on():
    start = RULE.start(known=[metrics(2.0), metrics(2.2)])
    assert start.mi.baseline == pytest.approx(2.1)
    state = RULE.update(start, metrics(1.0))
    assert state.mi.statistic == pytest.approx(min(LARGEST, (0.7 * 2.1 - 1.0) / 0.1414214) - SLACK)


def test_the_reason_says_what_fell_from_where_to_where():
    assert after(RULE, *STEADY, *[metrics(0.12)] * 2).reason == (
        "mutual information fell to 0.12 from a baseline of 1 nats per token"
    )
    assert after(RULE, *STEADY, *[metrics(retrieval=0.3)] * 2).reason == (
        "retrieval above chance fell to 0.20 from a baseline of 1.00 (1 is perfect, 0 is chance)"
    )
