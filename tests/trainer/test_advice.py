"""The rules of preflight, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ragen2.diagnostics import Cause
from ragen2.diagnostics.judging.causes import REMEDIES
from ragen2.trainer.advice import Decision, PreflightFindings, advise

HEALTHY = {
    "rollout/env_errors": 0.0,
    "rollout/format_validity": 0.95,
    "reward/dead_ratio": 0.25,
    "reward/effective_prompts": 5.0,
    "reward/variance_std_over_mean": 1.2,
    "triage/too_easy": 0.0,
    "triage/too_hard": 0.25,
    "triage/reward_blind": 0.0,
    "triage/format_only": 0.0,
}
FOUND = PreflightFindings(HEALTHY, num_prompts=8, ratio_interval=(0.7, 1.6))


def decide(found: PreflightFindings = FOUND, **metrics: float):
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return advise(replace(found, metrics=HEALTHY | named))


@pytest.mark.parametrize(
    ("ratio", "decision", "line"),
    [
        (1.29, Decision.FILTER, "GO: use the filter"),
        (1.0, Decision.FILTER, "GO: use the filter"),
        (0.99, Decision.EITHER, "GO: with or without the filter"),
        (0.51, Decision.EITHER, "GO: with or without the filter"),
        (0.5, Decision.NO_FILTER, "GO: train without the filter"),
        (0.33, Decision.NO_FILTER, "GO: train without the filter"),
    ],
)
def test_the_ratio_decides_where_nothing_is_broken(ratio, decision, line):
    advice = decide(reward__variance_std_over_mean=ratio)
    assert (advice.decision, advice.line, advice.go) == (decision, line, True)
    assert advice.reasons[0].startswith(f"Std(RV)/Mean(RV) is {ratio:.2f} (0.70 to 1.60): ")


@pytest.mark.parametrize(
    ("metrics", "reason", "cause"),
    [
        (
            {"rollout__env_errors": 2.0},
            "The environment raised in 2 episodes per step.",
            Cause.ENVIRONMENT_BROKEN,
        ),
        (
            {"rollout__format_validity": 0.49},
            "49% of replies are valid.",
            Cause.FORMAT_NEVER_LEARNT,
        ),
        (
            {"triage__reward_blind": 0.25},
            "On 25% of prompts rollouts do different things and are paid the same.",
            Cause.REWARD_BLIND,
        ),
        (
            {
                "reward__dead_ratio": 0.875,
                "triage__too_hard": 0.75,
                "reward__effective_prompts": 1.0,
            },
            "88% of prompts pay all their rollouts the same; 75% are too hard.",
            Cause.TOO_HARD,
        ),
        (
            {"reward__dead_ratio": 1.0, "triage__too_hard": 0.0, "triage__too_easy": 1.0},
            "100% of prompts pay all their rollouts the same; 100% are too easy.",
            Cause.TOO_EASY,
        ),
    ],
)
def test_what_is_broken_comes_first(metrics, reason, cause):
    advice = decide(**metrics)
    assert (advice.decision, advice.line, advice.go) == (
        Decision.FIX_FIRST,
        "NO-GO: fix this first",
        False,
    )
    assert advice.reasons == (f"{reason} {REMEDIES[cause].next}",)


def test_two_live_prompts_are_enough_to_go_on():
    assert decide(reward__dead_ratio=0.75).decision is Decision.FILTER


@pytest.mark.parametrize(
    ("share", "decision"),
    [(0.5, Decision.NO_FILTER), (0.49, Decision.FILTER), (None, Decision.FILTER)],
)
def test_the_filter_does_not_rank_by_luck(share, decision):
    assert decide(replace(FOUND, environment_ratio=share)).decision is decision


def test_remarks_follow_the_reason_that_decided():
    scope = "collapse__first_turn__"
    template = {"retrieval_accuracy": 0.125, "retrieval_chance": 0.125, "num_traces": 512.0}
    advice = decide(
        replace(FOUND, ratio_interval=(0.3, 1.8)),
        triage__reward_blind=0.125,
        triage__format_only=0.5,
        **{f"{scope}{name}": value for name, value in template.items()},
    )
    assert advice.reasons[1:] == (
        "the reward does not see what is done on 12% of prompts",
        "50% of prompts vary by format penalties alone",
        "0% of reasoning traces are about their prompt. 95% interval 0% to 14%, from 512 traces of 1 step; a "
        "share of 14% would have shown.",
        "8 prompts leave the ratio open; raise rollout.prompts to be surer",
    )


@pytest.mark.parametrize(
    ("success", "easier_levels", "is_advised"),
    [(0.019, 3, True), (0.0, 3, True), (0.02, 3, False), (0.019, 0, False)],
)
def test_rare_success_asks_for_easier_tasks_where_there_are_any(success, easier_levels, is_advised):
    advice = decide(replace(FOUND, easier_levels=easier_levels), rollout__success=success)
    remark = (
        f"{success:.1%} of rollouts succeed, too few to learn from; 3 easier levels are there: "
        "`--set curriculum.mode=adaptive`"
    )
    assert (remark in advice.reasons) is is_advised
    assert advice.decision is Decision.FILTER


def test_a_batch_without_any_variance_has_no_ratio_and_needs_none():
    metrics = {name: value for name, value in HEALTHY.items() if "over_mean" not in name}
    found = PreflightFindings(metrics | {"reward/dead_ratio": 1.0}, num_prompts=8)
    assert advise(found).decision is Decision.FIX_FIRST
