"""Periods: where a series is cut, and what pooled steps say that single ones cannot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from ragen2.diagnostics import Regime, measure, regime
from ragen2.diagnostics.judging.periods import JUDGED_BY, change_points, periods


@dataclass(frozen=True)
class Step:
    step: int
    metrics: dict[str, float]


def step(number, rng, shares, *, traces=4, strength=6.0, entropy=12.0):
    """A measured step; ``shares`` has the grounded share of each prompt."""
    prompts = len(shares)
    owner_N = np.repeat(np.arange(prompts), traces)
    logp_NP = rng.normal(size=(len(owner_N), prompts)) - entropy
    is_grounded_N = rng.random(len(owner_N)) < np.array(shares)[owner_N]
    logp_NP[np.arange(len(owner_N)), owner_N] += strength * is_grounded_N
    logp_NP -= max(float(logp_NP.max()), 0.0)
    found = measure(logp_NP, np.full(len(owner_N), 10), owner_N, resamples=0)
    return Step(number, {f"collapse/first_turn/{name}": value for name, value in found.items()})


def run(shares_by_step, **settings):
    rng = np.random.default_rng(settings.pop("seed", 0))
    return [step(i + 1, rng, shares, **settings) for i, shares in enumerate(shares_by_step)]


def test_a_steady_run_is_one_period():
    found = periods(run([[1.0] * 8] * 20))
    assert [(one.regime, one.first_step, one.last_step) for one in found] == [
        (Regime.DIVERSE_GROUNDED, 1, 20)
    ]
    assert found[0].num_steps == 20
    assert (found[0].num_traces, found[0].num_prompts) == (640, 8)


def test_half_of_the_prompts_lost_from_step_seven_on_is_partial_since_then():
    lost = [[1.0] * 16] * 6 + [[1.0] * 8 + [0.0] * 8] * 6
    now = periods(run(lost))[-1]
    assert (now.regime, now.since) == (Regime.PARTIAL, 7)
    assert now.low <= 0.5 <= now.high


def test_a_collapse_is_dated():
    found = periods(run([[1.0] * 8] * 10 + [[0.0] * 8] * 10))
    assert [one.regime for one in found] == [Regime.DIVERSE_GROUNDED, Regime.TEMPLATE_COLLAPSE]
    assert found[-1].since == 11


@pytest.mark.parametrize("grounded_steps", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_a_collapse_at_the_last_of_few_steps_is_seen(grounded_steps, seed):
    lost = [[1.0] * 16] * grounded_steps + [[0.0] * 16]
    now = periods(run(lost, traces=8, seed=seed))[-1]
    assert (now.regime, now.since) == (Regime.TEMPLATE_COLLAPSE, grounded_steps + 1)


@pytest.mark.parametrize("num_steps", [2, 3, 4])
def test_few_steps_of_one_kind_are_seldom_cut(num_steps):
    cut = [
        len(periods(run([[0.8] * 16] * num_steps, traces=8, seed=seed))) > 1 for seed in range(40)
    ]
    assert sum(cut) <= 3


def test_dependence_too_weak_for_a_step_shows_in_twenty():
    steps = run([[1.0] * 8] * 20, traces=4, strength=0.6)
    alone = [
        regime({n.removeprefix("collapse/first_turn/"): v for n, v in one.metrics.items()})
        for one in steps
    ]
    assert alone.count(Regime.UNDECIDED) + alone.count(Regime.TEMPLATE_COLLAPSE) >= 15
    (now,) = periods(steps)
    assert now.regime not in {Regime.TEMPLATE_COLLAPSE, Regime.UNDECIDED}
    assert now.low > 0.0


def test_small_steps_that_tell_nothing_alone_collapse_together():
    (now,) = periods(run([[0.0] * 4] * 12, traces=2))
    assert now.regime is Regime.TEMPLATE_COLLAPSE
    assert now.detectable <= 0.5


def test_variety_that_is_lost_begins_a_period_of_its_own():
    rng = np.random.default_rng(0)
    varied = [step(i + 1, rng, [0.0] * 8) for i in range(8)]
    constant = [step(i + 9, rng, [0.0] * 8, entropy=0.0, strength=0.0) for i in range(8)]
    flat = [
        Step(one.step, one.metrics | {"collapse/first_turn/conditional_entropy_seq": 0.02})
        for one in constant
    ]
    found = periods(varied + flat)
    assert found[-1].regime is Regime.LOW_ENTROPY_COLLAPSE
    assert found[-1].since == 9


def test_periods_of_one_regime_have_one_beginning():
    found = periods(run([[1.0] * 8] * 10 + [[0.75] * 8] * 10, seed=2))
    assert [one.regime for one in found] == [Regime.DIVERSE_GROUNDED] * len(found)
    assert {one.since for one in found} == {1}


def test_steps_without_a_measurement_are_passed_over():
    steps = run([[1.0] * 8] * 3)
    unmeasured = [Step(10 + one.step, {"rollout/success": 0.5}) for one in steps]
    assert periods([*steps, *unmeasured])[-1].last_step == 3
    assert periods(unmeasured) == []


def test_a_period_needs_no_other_metrics_than_those_named():
    steps = run([[1.0] * 8] * 3 + [[0.0] * 8] * 3)
    few = [
        Step(
            one.step,
            {n: v for n, v in one.metrics.items() if n.rpartition("/")[2] in JUDGED_BY},
        )
        for one in steps
    ]
    assert periods(few) == periods(steps)


@pytest.mark.parametrize("length", [10, 40, 120])
def test_noise_alone_is_hardly_ever_cut(length):
    rng = np.random.default_rng(0)
    cuts = sum(
        bool(change_points(0.3 * rng.normal(size=length), 0.09, smallest=0.1)) for _ in range(300)
    )
    assert cuts <= 6


def test_a_change_is_found_where_it_is():
    rng = np.random.default_rng(1)
    values = np.concatenate([np.zeros(15), np.ones(9), np.full(20, 0.4)]) + 0.1 * rng.normal(
        size=44
    )
    assert change_points(values, 0.01, smallest=0.1) == {15, 24}


def test_an_undecided_period_asks_for_more_than_it_has():
    undecided = [
        one
        for seed in range(40)
        for one in periods(run([[0.3] * 8], traces=8, strength=2.0, seed=seed))
        if one.regime is Regime.UNDECIDED
    ]
    assert undecided
    assert all(one.traces_needed >= 2 * one.num_traces for one in undecided)
