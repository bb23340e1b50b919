"""The early warning: its sums by hand, what raises it, what clears it, and what must not."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from pydantic import TypeAdapter

from ragen2.diagnostics import EarlyWarning, WarningState
from ragen2.diagnostics.judging.warning import (
    CAP,
    DECIDED,
    EXPECTED_WEIGHT,
    FLOOR,
    LARGEST,
    LEVEL_DECAY,
    REACH,
    SLACK,
    WIDEST,
    carry_mi,
    carry_retrieval,
)
from ragen2.diagnostics.statistics.resampling import Z95

MI_ERROR, RETRIEVAL_ERROR = 0.1, 0.07


def metrics(
    mi: float = 1.0,
    retrieval: float = 1.0,
    *,
    prompts: int = 8,
    precision: float = 1.0,
    **changes: float,
) -> dict[str, float]:
    """A batch of prompts x 8 far from chance; ``retrieval`` is the share above chance."""
    chance = 1.0 / prompts
    accuracy = chance + (1.0 - chance) * retrieval
    mi_half = MI_ERROR / precision * Z95
    retrieval_half = RETRIEVAL_ERROR / precision * (1.0 - chance) * Z95
    return {
        "mi_estimate": mi,
        "mi_estimate_low": mi - mi_half,
        "mi_estimate_high": mi + mi_half,
        "mi_p_value": 0.001,
        "retrieval_accuracy": accuracy,
        "retrieval_accuracy_low": accuracy - retrieval_half,
        "retrieval_accuracy_high": accuracy + retrieval_half,
        "retrieval_chance": chance,
        "retrieval_p_value": 0.001,
        "num_traces": 8.0 * prompts,
        "num_prompts": float(prompts),
    } | changes


def share(left: float, **changes: float) -> dict[str, float]:
    """A batch that keeps this share of a baseline of 1 in both signals."""
    return metrics(left, left, **changes)


def after(rule: EarlyWarning, *batches: dict[str, float]) -> WarningState:
    state = rule.start()
    for batch in batches:
        state = rule.update(state, batch)
    return state


def is_ever_raised(rule: EarlyWarning, batches: list[dict[str, float]]) -> bool:
    state, raised = rule.start(), False
    for batch in batches:
        state = rule.update(state, batch)
        raised = raised or state.is_raised
    return raised


RULE = EarlyWarning()
CALM = EarlyWarning(wander=0.0)
"""Expects no wander, so that the line is at 1 - tolerated."""
STEADY = [metrics()] * 5
ERROR = (MI_ERROR + RETRIEVAL_ERROR) / 2


# --- the sum ---------------------------------------------------------------------------------------


def test_the_first_measurements_make_the_baseline():
    state = after(EarlyWarning(baseline=3), metrics(1.0), metrics(1.3), metrics(1.6))
    assert state.mi.baseline == pytest.approx(1.3)
    assert state.retrieval.baseline == pytest.approx(1.0)
    assert state.statistic == 0.0


def test_a_drop_counts_in_noise_scales_beyond_the_tolerated_share():
    # The line is 0.7; a share of 0.55 is 0.15 below it.
    state = after(CALM, *STEADY, share(0.55))
    assert state.left == pytest.approx(0.55)
    assert state.statistic * CALM.threshold == pytest.approx(0.15 / ERROR - SLACK)


def test_the_share_is_the_mean_over_both_signals():
    assert after(CALM, *STEADY, metrics(0.2, 0.6)).left == pytest.approx(0.4)


def test_mi_that_falls_because_reasoning_gets_longer_is_no_loss_while_retrieval_stays():
    longer = [metrics(max(0.4, 1.0 - 0.02 * step), 1.0) for step in range(60)]
    assert not is_ever_raised(RULE, [*STEADY, *longer])


def test_one_outlier_is_no_alarm_and_two_are():
    assert not after(RULE, *STEADY, share(0.0)).is_raised
    assert after(RULE, *STEADY, share(0.0), share(0.0)).is_raised
    assert not after(RULE, *STEADY, share(0.0), share(1.0), share(0.0)).is_raised


def test_noise_is_what_neighbours_differ_by_when_that_is_more_than_the_intervals_say():
    # Differences of 0.3: half their square is 0.045; at the line of 0.7 that is a spread of 0.148.
    state = after(CALM, *STEADY, *[share(0.85), share(1.15)] * 4)
    assert (state.statistic, wander_of(state, 0.0)) == (0.0, 0.0)
    state = CALM.update(state, share(0.4))
    noise = 0.7 * math.sqrt(0.045)
    assert state.statistic * CALM.threshold == pytest.approx(0.3 / noise - SLACK, abs=0.01)


def wander_of(state: WarningState, expected: float) -> float:
    total = EXPECTED_WEIGHT * expected**2 + max(0.0, state.products)
    return math.sqrt(total / (EXPECTED_WEIGHT + state.pairs))


def test_a_wide_interval_counts_as_noise_now():
    wide = share(0.1, mi_estimate_low=0.1 - 0.5 * Z95, mi_estimate_high=0.1 + 0.5 * Z95)
    state = after(CALM, *STEADY, wide)
    expected = 0.6 / ((0.5 + RETRIEVAL_ERROR) / 2) - SLACK
    assert state.statistic * CALM.threshold == pytest.approx(expected)


def test_without_any_noise_a_drop_counts_as_the_largest():
    bare = {name: v for name, v in metrics().items() if not name.endswith(("_low", "_high"))}
    same = after(RULE, *[bare] * 8)
    assert (same.statistic, same.is_raised) == (0.0, False)
    lower = after(CALM, *[bare] * 5, bare | {"mi_estimate": 0.399})
    assert lower.statistic * CALM.threshold == pytest.approx(LARGEST - SLACK)


def test_missing_measurements_change_nothing():
    state = after(RULE, *STEADY, share(0.5))
    assert RULE.update(state, {}) == state
    one_prompt = metrics(0.0, 0.0, num_prompts=1.0)
    assert RULE.update(state, one_prompt) == state


# --- the baseline ----------------------------------------------------------------------------------


def test_a_rise_is_healthy_and_the_baseline_follows_it_slowly():
    rising = [metrics(1.0 + 0.02 * step) for step in range(150)]
    state = after(RULE, *STEADY, *rising)
    assert state.statistic == 0.0
    assert state.mi.baseline == pytest.approx(
        3.98 - 0.02 * LEVEL_DECAY / (1.0 - LEVEL_DECAY), abs=0.01
    )
    assert after(RULE, *STEADY, *rising, *[metrics(0.1, 0.1)] * 3).is_raised


def test_the_baseline_never_follows_downwards():
    sinking = [share(1.0 - 0.01 * step) for step in range(95)]
    state = after(RULE, *STEADY, *sinking)
    assert state.mi.baseline == pytest.approx(1.0)
    assert state.is_raised


def test_what_was_lost_within_the_tolerated_share_never_adds_up():
    assert after(RULE, *STEADY, *[share(0.71)] * 500).statistic == 0.0


def test_a_given_baseline_is_used_from_the_first_measurement_on():
    start = CALM.start(known=[metrics(2.0), metrics(2.2)])
    assert start.mi.baseline == pytest.approx(2.1)
    state = CALM.update(start, metrics(0.6 * 2.1, 0.6))
    error = (MI_ERROR / 2.1 + RETRIEVAL_ERROR) / 2
    assert state.statistic * CALM.threshold == pytest.approx(0.1 / error - SLACK)


# --- wander ----------------------------------------------------------------------------------------


def wandering(index: int, autocorrelation: float, spread: float) -> np.ndarray:
    """120 shares of a baseline: an autoregression about 1 and the noise of the estimates."""
    rng = np.random.default_rng([7, index])
    fresh = rng.standard_normal(120)
    fresh[1:] *= math.sqrt(1.0 - autocorrelation**2)
    for step in range(1, 120):
        fresh[step] += autocorrelation * fresh[step - 1]
    return 1.0 + spread * fresh


def measured(shares: np.ndarray, index: int, prompts: int = 8) -> list[dict[str, float]]:
    noise = np.random.default_rng([8, index]).standard_normal((len(shares), 2))
    return [
        metrics(
            one + MI_ERROR * own, min(1.0, 0.7 * one + RETRIEVAL_ERROR * other), prompts=prompts
        )
        for one, (own, other) in zip(shares, noise, strict=True)
    ]


@pytest.mark.parametrize("autocorrelation", [0.0, 0.5, 0.9])
def test_healthy_wander_raises_at_most_2_percent_false_alarms(autocorrelation):
    alarms = sum(
        is_ever_raised(RULE, measured(wandering(index, autocorrelation, 0.2), index))
        for index in range(100)
    )
    assert alarms <= 2


@pytest.mark.parametrize("autocorrelation", [0.0, 0.5, 0.9])
def test_a_collapse_of_a_wandering_run_is_found_within_a_few_measurements(autocorrelation):
    delays = []
    for index in range(25):
        shares = wandering(index, autocorrelation, 0.2)
        shares[40:] *= 0.08
        state, alarm = RULE.start(), 120
        for position, batch in enumerate(measured(shares, index)):
            state = RULE.update(state, batch)
            if state.is_raised:
                alarm = min(alarm, position)
        delays.append(alarm - 40)
    assert min(delays) > 0
    assert np.median(delays) <= 3
    assert max(delays) <= 10


def test_what_is_tolerated_follows_the_wander_that_the_run_has_shown():
    # Before anything is shown, 3.25 spreads of 0.2; calm measurements bring it down, slow waves do not.
    fresh = after(RULE, *STEADY)
    assert wander_of(fresh, RULE.wander) == RULE.wander
    assert pytest.approx(0.65) == REACH * RULE.wander == WIDEST
    calm = after(RULE, *STEADY, *[share(1.0)] * 121)
    assert wander_of(calm, RULE.wander) == pytest.approx(0.2 * math.sqrt(40 / 160), abs=1e-3)
    waves = [share(1.0 + 0.28 * math.sin(step / 6.0)) for step in range(121)]
    assert wander_of(after(RULE, *STEADY, *waves), RULE.wander) > 0.17
    jumps = [share(1.0 + 0.2 * (-1.0) ** step) for step in range(121)]
    assert wander_of(after(RULE, *STEADY, *jumps), RULE.wander) < 0.11


def test_half_lost_is_an_alarm_in_a_run_that_was_calm_for_long():
    assert not after(RULE, *STEADY, *[share(0.5)] * 10).is_raised
    assert after(RULE, *STEADY, *[share(1.0)] * 100, *[share(0.5)] * 10).is_raised


# --- the number of prompts -------------------------------------------------------------------------


def evenly_grounded(prompts: int, rival: float, wins: float) -> dict[str, float]:
    """Every trace is ``rival`` times as likely under another prompt, and beats each with chance ``wins``."""
    mi = -math.log(1.0 / prompts + (1.0 - 1.0 / prompts) * rival)
    accuracy = wins ** (prompts - 1)
    above_chance = (accuracy - 1.0 / prompts) / (1.0 - 1.0 / prompts)
    return metrics(mi, above_chance, prompts=prompts, precision=5.0)


def partly_grounded(prompts: int, part: float) -> dict[str, float]:
    """A part of the traces names its prompt, the others are a template."""
    return metrics(part * math.log(prompts), part, prompts=prompts, precision=5.0)


@pytest.mark.parametrize(("before", "now"), [(16, 3), (16, 4), (16, 2), (4, 16), (3, 64)])
def test_another_number_of_prompts_is_no_alarm_and_a_loss_there_is(before, now):
    for make in (
        lambda prompts: evenly_grounded(prompts, 0.3, 0.98),
        lambda prompts: evenly_grounded(prompts, 0.8, 0.9),
        lambda prompts: partly_grounded(prompts, 0.5),
        lambda prompts: partly_grounded(prompts, 1.0),
    ):
        healthy = [make(before)] * 20 + [make(now)] * 60
        assert not is_ever_raised(EarlyWarning(wander=0.05), healthy)
        lost = [metrics(0.0, 0.0, prompts=now, precision=5.0)] * 8
        assert after(RULE, *healthy, *lost).is_raised
        assert after(RULE, *healthy[:20], *lost).is_raised


def test_prompts_that_come_and_go_do_not_wear_the_baseline_down():
    changing = [partly_grounded(16 if step % 2 else 4, 0.8) for step in range(100)]
    state = after(RULE, *[partly_grounded(16, 0.8)] * 5, *changing)
    assert state.mi.baseline == pytest.approx(0.8 * math.log(16))
    assert state.statistic == 0.0


@pytest.mark.parametrize("value", [0.0, 0.05, 0.7, 2.5])
def test_a_carried_value_is_the_least_of_both_models(value):
    assert carry_mi(value, 16, 16) == value
    assert carry_mi(value, 16, 4) == pytest.approx(value / 2)  # all or nothing: log 4 / log 16
    up = carry_mi(value / 2, 4, 16)
    assert up <= value + 1e-12
    rival = (math.exp(-value / 2) - 0.25) / 0.75
    assert up == pytest.approx(-math.log(1 / 16 + 15 / 16 * max(0.0, rival)))


def test_retrieval_is_carried_over_by_its_share_above_chance_or_rival_by_rival():
    assert carry_retrieval(0.6, 16, 4) == 0.6
    won = (0.25 + 0.75 * 0.8) ** 5
    assert carry_retrieval(0.8, 4, 16) == pytest.approx((won - 1 / 16) / (15 / 16))
    assert carry_retrieval(0.2, 4, 64) == 0.0


# --- never grounded --------------------------------------------------------------------------------


def at_chance(p_value: float = 0.5, **changes: float) -> dict[str, float]:
    chances = {"mi_p_value": p_value, "retrieval_p_value": p_value}
    return metrics(0.0, 0.0, **(chances | changes))


def test_reasoning_at_chance_from_the_start_is_no_alarm_but_said_once_and_apart():
    states = [RULE.start()]
    for _ in range(30):
        states.append(RULE.update(states[-1], at_chance()))
    assert not any(state.is_raised or state.statistic for state in states)
    kinds = [state.kind for state in states]
    assert kinds == [""] * 5 + ["never_grounded"] * 26
    assert (
        states[-1].reason
        == states[5].reason
        == (
            "reasoning was never grounded, so there is nothing to lose: since the first of 5 measurements it "
            "is at chance, with at most 4% of the possible retrieval above it (95%)"
        )
    )


def test_a_run_that_loses_grounding_is_never_called_never_grounded():
    state = after(RULE, *STEADY, *[at_chance()] * 40)
    assert (state.kind, state.is_raised) == ("grounding_lost", True)


def test_a_run_that_becomes_grounded_makes_its_baseline_then():
    state = after(RULE, *[at_chance()] * 10, *[metrics()] * 10)
    assert (state.kind, state.reason, state.is_raised) == ("", "", False)
    assert state.mi.baseline == pytest.approx(1.0)
    for _ in range(3):
        state = RULE.update(state, at_chance())
    assert state.kind == "grounding_lost"


def test_small_batches_say_nothing_of_chance_before_they_add_up():
    few = {"num_traces": 16.0, "retrieval_chance": 0.25}
    assert not after(RULE, *[at_chance(prompts=4, **few)] * 6).kind
    assert after(RULE, *[at_chance(prompts=4, **few)] * 12).kind == "never_grounded"
    assert not after(RULE, *[at_chance(num_traces=4.0, prompts=2)] * 20).kind


def test_weak_grounding_that_single_batches_do_not_show_is_not_called_absent():
    weak = metrics(0.1, 0.15, mi_p_value=0.2, retrieval_p_value=0.2)
    state = after(RULE, *[weak] * 40)
    assert (state.kind, state.is_grounded) == ("", False)


def test_the_better_of_the_two_p_values_counts():
    state = after(RULE, at_chance(0.5, mi_p_value=0.01))
    assert state.evidence == pytest.approx(math.log(FLOOR / 0.01))
    assert after(RULE, *[at_chance(0.5, retrieval_p_value=0.001)] * 5).evidence == DECIDED


def test_without_p_values_a_fall_is_still_an_alarm():
    def bare(batch: dict[str, float]) -> dict[str, float]:
        return {name: value for name, value in batch.items() if not name.endswith("p_value")}

    assert not after(RULE, *[bare(at_chance())] * 20).kind
    assert after(RULE, *[bare(metrics())] * 5, *[bare(share(0.0))] * 2).is_raised


# --- hysteresis ------------------------------------------------------------------------------------

DOWN = [share(0.0)] * 2


def test_an_alarm_stays_for_its_dwell_and_then_is_cleared():
    states = []
    state = after(RULE, *STEADY)
    for batch in [*DOWN, *[share(1.0)] * 4]:
        state = RULE.update(state, batch)
        states.append(state.is_raised)
    assert states == [False, True, True, True, False, False]
    assert (state.kind, state.reason) == ("", "")


def test_an_alarm_is_not_cleared_while_the_sum_is_above_the_lower_threshold():
    rule = EarlyWarning(dwell=1, wander=0.0)
    raised = after(rule, *STEADY, *[share(0.0)] * 10)
    assert raised.statistic == CAP
    states = [raised]
    for _ in range(20):
        states.append(rule.update(states[-1], share(0.68)))
    assert [state.is_raised for state in states] == [state.statistic >= 0.2 for state in states]
    between = [state for state in states if 0.2 <= state.statistic < 1.0]
    assert between
    assert all(state.is_raised for state in between)


def test_a_level_between_the_thresholds_raises_nothing_that_was_off():
    state = after(RULE, *STEADY, share(0.0))
    assert 0.2 < state.statistic < 1.0
    assert not state.is_raised


def test_a_long_collapse_is_forgotten_as_fast_as_a_short_one():
    long = after(RULE, *STEADY, *[share(0.0)] * 500)
    assert long.statistic == CAP
    for _ in range(4):
        long = RULE.update(long, share(1.0))
    assert not long.is_raised


# --- the state -------------------------------------------------------------------------------------


def test_the_state_goes_through_json_without_losing_a_bit():
    state = after(RULE, *STEADY, share(0.1 + 0.2), share(1 / 3), at_chance(0.07, prompts=5))
    assert state.statistic > 0.0
    text = json.dumps(asdict(state))
    assert TypeAdapter(WarningState).validate_json(text) == state


def test_the_reason_says_what_fell_from_where_to_where():
    assert after(RULE, *STEADY, *[metrics(0.12, 0.05)] * 2).reason == (
        "grounding is being lost: mutual information fell to 0.12 from a baseline of 1 nats per token, "
        "retrieval above chance to 0.05 from 1.00 (1 is perfect, 0 is chance)"
    )
