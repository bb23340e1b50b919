"""Failures planted in simulated runs are found and dated; healthy runs with the same noise are not blamed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from ragen2.diagnostics import Finding, find_failures
from ragen2.diagnostics.judging.detectors import DETECTORS, noise_of_change
from ragen2.diagnostics.statistics.resampling import wilson_of_trials
from ragen2.runs.record import StepRecord

STEPS = 60
COLLAPSE = "collapse/first_turn/"
Level = Callable[[int], float]


@dataclass
class Run:
    """Levels over steps; what is left out is healthy."""

    tokens: Level = lambda step: 60.0
    information: Level = lambda step: 0.3 + 0.2 * step / STEPS
    entropy: Level = lambda step: 0.8 - 0.2 * step / STEPS
    entropy_seq: Level = lambda step: 20.0
    oscillation: Level = lambda step: 0.03
    stuck: Level = lambda step: 0.05
    swap_p: Level = lambda step: 0.005
    action_p: Level = lambda step: 0.005
    grounding: Level = lambda step: 0.9
    copied: Level = lambda step: 0.2
    rest: Level = lambda step: 0.6
    own_numbers: Level = lambda step: 0.5


def records(run: Run, seed: int) -> list[StepRecord]:
    """A run with correlated noise; cross-scores every step, the flow every tenth."""
    rng = np.random.default_rng(seed)
    noise = {name: _noise(rng) for name in ("tokens", "information", "entropy", "stuck")}
    found = []
    for step in range(1, STEPS + 1):
        information = run.information(step) + 0.05 * noise["information"][step - 1]
        entropy = run.entropy(step) + 0.05 * noise["entropy"][step - 1]
        grounded = run.information(step) > 0.05
        metrics = {
            "rollout/reasoning_tokens": run.tokens(step) * (1 + 0.05 * noise["tokens"][step - 1]),
            "rollout/stuck": float(
                np.clip(run.stuck(step) + 0.02 * noise["stuck"][step - 1], 0, 1)
            ),
            "rollout/oscillation": float(rng.binomial(300, run.oscillation(step)) / 300),
            "rollout/oscillation_null": 0.03,
            "rollout/oscillation_p_value": 0.005 if run.oscillation(step) > 0.06 else rng.random(),
            **quotation(run, step, rng),
            f"{COLLAPSE}mi_estimate": information,
            f"{COLLAPSE}mi_estimate_low": information - 0.1,
            f"{COLLAPSE}mi_estimate_high": information + 0.1,
            f"{COLLAPSE}conditional_entropy": entropy,
            f"{COLLAPSE}conditional_entropy_low": entropy - 0.1,
            f"{COLLAPSE}conditional_entropy_high": entropy + 0.1,
            f"{COLLAPSE}conditional_entropy_seq": run.entropy_seq(step),
            f"{COLLAPSE}reasoning_entropy_seq": run.entropy_seq(step) + information,
            f"{COLLAPSE}retrieval_accuracy": 0.8 if grounded else 0.125,
            f"{COLLAPSE}retrieval_chance": 0.125,
            f"{COLLAPSE}retrieval_above_chance": 0.675 if grounded else 0.0,
            f"{COLLAPSE}retrieval_p_value": 0.005 if grounded else 0.05 + 0.95 * rng.random(),
            f"{COLLAPSE}mi_p_value": 0.005 if grounded else 0.05 + 0.95 * rng.random(),
            f"{COLLAPSE}num_traces": 64.0,
            f"{COLLAPSE}num_prompts": 8.0,
        }
        if step == 1 or step % 10 == 0:
            metrics["flow/first_turn/reasoning_action_swap_p_value"] = run.swap_p(step)
            metrics["flow/first_turn/input_action_p_value"] = run.action_p(step)
            share = float(rng.binomial(32, run.grounding(step)) / 32)
            metrics["vision/first_turn/grounding"] = share
            metrics["vision/first_turn/grounding_low"] = wilson_of_trials(share, 32)[0]
        found.append(StepRecord(step=step, metrics=metrics))
    return found


def quotation(run: Run, step: int, rng: np.random.Generator) -> dict[str, float]:
    own = run.own_numbers(step) + 0.05 * rng.normal()
    depends = run.rest(step) > 0.05
    return {
        "rollout/copied_ratio": run.copied(step) + 0.03 * rng.random(),
        "rollout/rest_dependence": run.rest(step) + 0.05 * rng.normal(),
        "rollout/rest_p_value": 0.005 if depends else rng.random(),
        "rollout/foreign_numbers": 0.9 * (1.0 - run.own_numbers(step)),
        "rollout/own_numbers": own,
        "rollout/own_numbers_low": own - 0.1,
        "rollout/own_numbers_high": own + 0.1,
    }


def _noise(rng: np.random.Generator) -> np.ndarray:
    """Unit noise of which half carries over from step to step."""
    values = rng.normal(size=STEPS)
    for step in range(1, STEPS):
        values[step] = 0.5 * values[step - 1] + math.sqrt(0.75) * values[step]
    return values


def names(found: list[Finding]) -> set[str]:
    return {finding.name for finding in found}


def fall(high: float, low: float, start: int = 20, end: int = 40) -> Level:
    return lambda step: float(np.interp(step, [start, end], [high, low]))


FLAT = Run(information=lambda step: 0.4, entropy=lambda step: 0.7)
LEARNING = Run()
TRADING = Run(
    tokens=fall(60.0, 58.0),
    information=fall(0.5, 0.4),
    entropy=lambda step: 0.7 - 0.1 * step / STEPS,
)
"""Shorter by a little, compressing: entropy and information fall together."""


@pytest.mark.parametrize("run", [FLAT, LEARNING, TRADING], ids=["flat", "learning", "trading"])
def test_healthy_runs_are_blamed_at_most_once_in_twenty(run):
    blamed = [names(find_failures(records(run, seed))) for seed in range(100)]
    assert sum(map(bool, blamed)) <= 5


PLANTED = {
    "reasoning_shrinkage": Run(tokens=fall(60.0, 25.0)),
    "entropy_gaming": Run(information=fall(0.5, 0.2), entropy=fall(0.6, 1.0)),
    "action_oscillation": Run(oscillation=fall(0.03, 0.4)),
    "stuck_actions": Run(stuck=fall(0.05, 0.4)),
    "unused_reasoning": Run(swap_p=lambda step: 0.005 if step < 30 else 0.4),
    "input_blind_actions": Run(action_p=lambda step: 0.005 if step < 30 else 0.4),
    "image_blind_reasoning": Run(grounding=lambda step: 0.9 if step < 30 else 0.5),
    "reasoning_echo": Run(copied=fall(0.2, 0.6), rest=lambda step: 0.6 if step < 30 else 0.0),
    "misgrounded_reasoning": Run(own_numbers=lambda step: 0.5 if step < 30 else 0.0),
    "template_collapse": Run(information=lambda step: 0.4 if step < 30 else 0.0),
    "low_entropy_collapse": Run(
        information=lambda step: 0.4 if step < 30 else 0.0,
        entropy_seq=lambda step: 20.0 if step < 30 else 0.1,
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_failure_is_found_and_dated(name):
    dates = []
    for seed in range(20):
        found = {one.name: one for one in find_failures(records(PLANTED[name], seed))}
        if name in found:
            dates.append(found[name].since_step)
            assert all(math.isfinite(value) for value in found[name].evidence.values())
    assert len(dates) >= 16
    assert 20 <= np.median(dates) <= 40


@pytest.mark.parametrize("name", PLANTED)
def test_a_failure_alone_is_mostly_found_alone(name):
    expected = {name}
    others = [names(find_failures(records(PLANTED[name], seed))) - expected for seed in range(20)]
    assert sum(map(bool, others)) <= 2


def test_severe_findings_come_first():
    run = Run(tokens=fall(60.0, 45.0), information=lambda step: 0.4 if step < 30 else 0.0)
    found = find_failures(records(run, 0))
    assert [one.severity for one in found] == ["severe", "warning"]
    assert [one.name for one in found] == ["template_collapse", "reasoning_shrinkage"]


def test_the_size_of_a_shrinkage_is_told_and_a_small_one_is_not():
    (found,) = find_failures(records(Run(tokens=fall(60.0, 25.0)), 0))
    assert found.evidence["drop"] == pytest.approx(35 / 60, abs=0.15)
    assert found.severity == "severe"
    assert found.text.startswith("Reasoning shrinks: ")
    assert find_failures(records(Run(tokens=fall(60.0, 58.0)), 0)) == []


def test_longer_reasoning_is_no_failure():
    assert find_failures(records(Run(tokens=fall(25.0, 60.0)), 0)) == []


def test_entropy_that_rises_with_information_is_no_gaming():
    run = Run(information=fall(0.2, 0.5), entropy=fall(0.6, 1.0))
    assert find_failures(records(run, 0)) == []


def test_a_change_inside_the_intervals_is_no_gaming():
    wide = [
        StepRecord(
            step=one.step,
            metrics=one.metrics
            | {
                f"{COLLAPSE}mi_estimate_low": -9.0,
                f"{COLLAPSE}mi_estimate_high": 9.0,
            },
        )
        for one in records(PLANTED["entropy_gaming"], 0)
    ]
    assert find_failures(wide) == []


def test_the_policys_own_entropy_serves_where_cross_scores_have_none():
    def bare(one: StepRecord) -> StepRecord:
        kept = {f"{COLLAPSE}mi_estimate": one.metrics[f"{COLLAPSE}mi_estimate"]}
        kept["update/entropy"] = one.metrics[f"{COLLAPSE}conditional_entropy"]
        return StepRecord(step=one.step, metrics=kept)

    found = find_failures([bare(one) for one in records(PLANTED["entropy_gaming"], 0)])
    assert names(found) == {"entropy_gaming"}


def test_noise_of_a_change_is_that_of_two_means():
    """Intervals of +-0.196 are standard errors of 0.1; thirds of four measurements."""
    made = [
        StepRecord(step=n, metrics={"m": 1.0, "m_low": 0.804, "m_high": 1.196}) for n in range(12)
    ]
    assert noise_of_change(made, "m") == pytest.approx(1.96 * math.sqrt(2 * 0.01 / 4))
    assert noise_of_change(made, "other") == 0.0


def test_one_collapsed_measurement_is_not_yet_a_finding():
    run = Run(information=lambda step: 0.0 if step == STEPS else 0.4)
    assert find_failures(records(run, 0)) == []


def test_much_copying_is_no_echo_while_the_rest_depends_on_the_prompt():
    assert find_failures(records(Run(copied=lambda step: 0.7), 0)) == []


def test_a_template_that_copies_nothing_is_no_echo():
    run = Run(copied=lambda step: 0.0, rest=lambda step: 0.0)
    assert find_failures(records(run, 0)) == []


def test_with_one_reply_per_prompt_only_much_copying_is_told():
    for copied, expected in ((0.3, []), (0.6, ["reasoning_echo"])):
        bare = [StepRecord(step=1, metrics={"rollout/copied_ratio": copied})]
        assert [one.name for one in find_failures(bare)] == expected


def test_numbers_that_a_batch_could_not_have_shown_to_be_its_own_are_not_blamed():
    wide = {"own_numbers": 0.0, "own_numbers_low": -0.4, "own_numbers_high": 0.4}
    made = {f"rollout/{name}": value for name, value in (wide | {"foreign_numbers": 0.9}).items()}
    log = [StepRecord(step=step, metrics=made) for step in range(9)]
    assert find_failures(log[:1]) == []
    assert names(find_failures(log)) == {"misgrounded_reasoning"}  # five together could have


def test_a_link_that_never_held_is_not_lost():
    assert find_failures(records(Run(swap_p=lambda step: 0.5), 0)) == []


def test_runs_too_short_or_without_metrics_give_nothing():
    assert find_failures([]) == []
    assert find_failures([StepRecord(step=n, metrics={}) for n in range(30)]) == []
    for failing in PLANTED.values():
        assert find_failures(records(failing, 0)[:1]) == []


def test_every_detector_has_a_planted_failure():
    found = set().union(*(names(find_failures(records(run, 0))) for run in PLANTED.values()))
    assert found == set(PLANTED)
    assert len(DETECTORS) == len(PLANTED) - 1  # one detector names both collapses
