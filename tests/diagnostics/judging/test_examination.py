"""The examination names the root of what fails, since when, with its numbers and the next thing to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ragen2.diagnostics import Cause, Question, Status, examine
from ragen2.diagnostics.judging.causes import REMEDIES
from ragen2.runs.record import StepRecord

COLLAPSE = "collapse/first_turn/"
SWAP = "flow/first_turn/reasoning_action_swap"
Levels = dict[str, float]
HEALTHY = {
    "rollout/env_errors": 0.0,
    "rollout/format_validity": 0.97,
    "rollout/cut_ratio": 0.0,
    "rollout/success": 0.4,
    "reward/mean": 0.4,
    "reward/dead_ratio": 0.25,
    "reward/effective_prompts": 5.0,
    "triage/live": 0.75,
    "triage/too_hard": 0.25,
}
GROUNDED = {"accuracy": 0.8, "p": 0.005, "entropy": 20.0}
UNGROUNDED = {"accuracy": 0.125, "p": 0.5, "entropy": 20.0}


def scored(accuracy: float, p: float, entropy: float) -> Levels:
    """What a cross-scoring of 8 prompts x 8 traces records."""
    found = {
        "retrieval_accuracy": accuracy,
        "retrieval_accuracy_low": accuracy - 0.05,
        "retrieval_accuracy_high": accuracy + 0.05,
        "retrieval_chance": 0.125,
        "retrieval_above_chance": accuracy - 0.125,
        "retrieval_p_value": p,
        "mi_p_value": p,
        "conditional_entropy_seq": entropy,
        "num_traces": 64.0,
        "num_prompts": 8.0,
    }
    return {f"{COLLAPSE}{name}": value for name, value in found.items()}


def evaluated(success: float, tasks: int = 256) -> Levels:
    error = 1.96 * (success * (1.0 - success) / tasks) ** 0.5
    return {
        "eval/success": success,
        "eval/success_low": success - error,
        "eval/success_high": success + error,
    }


def run(at: Callable[[int], Levels] = lambda step: {}, steps: int = 40) -> list[StepRecord]:
    """A healthy run of success 0.1 to 0.5, with the levels of ``at`` put over it."""
    records = [StepRecord(step=0, metrics=evaluated(0.1))]
    for step in range(1, steps + 1):
        metrics = HEALTHY | scored(**GROUNDED)
        if step % 10 == 0:
            metrics |= evaluated(0.1 + 0.4 * step / steps)
            metrics |= {f"{SWAP}_p_value": 0.005, f"{SWAP}_seq": 2.0}
        records.append(StepRecord(step=step, metrics=metrics | at(step)))
    return records


def test_a_healthy_run_answers_yes_to_everything():
    found = examine(run())
    assert [one.status for one in found.answers] == [Status.YES] * 5
    assert (found.head, found.tone, found.cause, found.verdict) == (
        "Healthy",
        "good",
        "healthy",
        None,
    )
    assert found.text == (
        "Held-out success went from 10% to 50% (step 0 to 40). "
        "78% of reasoning traces are about their prompt."
    )
    assert found.next == "Go on."


def test_qwen_on_sokoban():
    """From step 2 every rollout earns -0.50, valid replies fall from 67 to 28%, retrieval is at chance."""

    def at(step: int) -> Levels:
        found = {
            "rollout/format_validity": 0.67 - 0.39 * (step - 1) / 11,
            "rollout/success": 0.016 if step == 1 else 0.0,
            "reward/mean": -0.5,
            "reward/dead_ratio": 0.5 if step == 1 else 1.0,
            "triage/live": 0.9,
            "triage/too_hard": 0.1,
            "reward/invalid_gain": -0.1 if step == 1 else 0.0,
            **scored(accuracy=0.2 if step == 1 else 0.14, p=0.3, entropy=3.0),
        }
        return found | evaluated(0.016) if step == 12 else found

    records = run(at, steps=12)
    for record in records[2:]:
        del record.metrics["reward/effective_prompts"]
    found = examine(records)
    assert found.head == "An invalid reply pays as well as an honest one since step 2"
    assert found.verdict is not None
    assert found.verdict.text == (
        "100% of prompts pay all their rollouts the same (-0.50 on average), and a rollout that begins "
        "with an invalid reply earns as much as the others."
    )
    assert found.of(Question.PARSES).explained_by is Question.REWARDED
    assert found.of(Question.PARSES).text.startswith("35% of replies are valid, 62% at")
    assert found.of(Question.GROUNDED).cause is Cause.NEVER_GROUNDED
    assert "replies no longer parse" in found.text
    assert "reasoning was never about its prompt" in found.text
    assert "collapse" not in (found.head + found.text).lower()
    assert "rollout.format_penalty" in found.next
    assert found.tone == "bad"


def flow(p_value: float) -> Levels:
    return {f"{SWAP}_p_value": p_value, f"{SWAP}_seq": 0.0}


CASES: dict[Cause, Callable[[int], Levels]] = {
    Cause.ENVIRONMENT_BROKEN: lambda step: {"rollout/env_errors": 3.0 * (step > 20)},
    Cause.REPLIES_CUT: lambda step: (
        {"rollout/cut_ratio": 0.5, "rollout/format_validity": 0.5} if step > 20 else {}
    ),
    Cause.FORMAT_LOST: lambda step: {"rollout/format_validity": 0.97 - 0.6 * (step > 20)},
    Cause.REWARD_BLIND: lambda step: {"triage/reward_blind": 0.5 * (step > 20)},
    Cause.TOO_HARD: lambda step: (
        {"reward/dead_ratio": 1.0, "triage/too_hard": 1.0, "triage/live": 0.0} if step > 20 else {}
    ),
    Cause.TOO_EASY: lambda step: (
        {"reward/dead_ratio": 1.0, "triage/too_easy": 1.0, "triage/live": 0.0} if step > 20 else {}
    ),
    Cause.LUCK: lambda step: {"reward/luck_ratio": 0.95 if step > 20 else 0.1},
    Cause.INVALID_PAYS: lambda step: {
        "rollout/format_validity": 0.8,
        "reward/invalid_gain": 0.1 if step > 20 else -0.5,
    },
    Cause.TEMPLATE_COLLAPSE: lambda step: scored(**(UNGROUNDED if step > 20 else GROUNDED)),
    Cause.LOW_ENTROPY_COLLAPSE: lambda step: (
        scored(**UNGROUNDED | {"entropy": 0.1}) if step > 20 else {}
    ),
}


@pytest.mark.parametrize("cause", CASES)
def test_each_cause_is_named_and_dated(cause):
    found = examine(run(CASES[cause]))
    assert found.cause == cause
    assert found.verdict is not None
    assert found.verdict.since == 21
    assert found.head == f"{REMEDIES[cause].head} since step 21"
    assert found.next == REMEDIES[cause].next
    assert found.verdict.certainty


def test_actions_that_stop_following_are_dated_by_the_measurement():
    found = examine(run(lambda step: flow(0.005 if step < 20 else 0.4) if step % 10 == 0 else {}))
    assert (found.cause, found.head) == (
        "unused_reasoning",
        "Actions do not follow the reasoning since step 20",
    )


def test_what_a_template_makes_of_actions_is_not_told_twice():
    found = examine(run(lambda step: scored(**UNGROUNDED) | (flow(0.5) if step % 10 == 0 else {})))
    assert found.cause == Cause.NEVER_GROUNDED
    assert found.of(Question.FOLLOWED).explained_by is Question.GROUNDED
    assert found.failures == ()


@pytest.mark.parametrize(
    ("training", "cause"),
    [(lambda step: 0.4, Cause.NOT_LEARNING), (lambda step: 0.1 + step / 50, Cause.OVERFIT)],
)
def test_held_out_success_that_does_not_rise(training, cause):
    def at(step: int) -> Levels:
        return {"rollout/success": training(step)} | (evaluated(0.11) if step % 10 == 0 else {})

    assert examine(run(at)).cause == cause


def test_success_on_the_easier_tasks_of_a_curriculum_is_no_overfitting():
    def at(step: int) -> Levels:
        easier = {"rollout/success": 0.1 + step / 50, "curriculum/level": 1.0}
        return easier | (evaluated(0.11) if step % 10 == 0 else {})

    assert examine(run(at)).cause == Cause.NOT_LEARNING


def test_learnt_and_lost_again():
    levels = {10: 0.3, 20: 0.5, 30: 0.3, 40: 0.2}
    found = examine(run(lambda step: evaluated(levels[step]) if step in levels else {}))
    assert (found.cause, found.head) == (
        Cause.UNLEARNT,
        "What was learnt is lost again since step 20",
    )


def test_too_few_steps_or_tasks_show_nothing_about_learning():
    short = run(lambda step: evaluated(0.1) if step % 10 == 0 else {}, steps=10)
    coarse = run(lambda step: evaluated(0.15, tasks=8) if step % 10 == 0 else {})
    coarse[0] = StepRecord(step=0, metrics=evaluated(0.1, tasks=8))
    for records in (short, coarse):
        assert examine(records).of(Question.LEARNT).status is Status.UNKNOWN


def test_a_task_learnt_to_the_end_is_no_failure():
    def at(step: int) -> Levels:
        if step <= 20:
            return {"rollout/success": 0.2 + 0.035 * step}
        return {"rollout/success": 0.97, "reward/dead_ratio": 0.95, "triage/too_easy": 0.95}

    answer = examine(run(at)).of(Question.REWARDED)
    assert answer.status is Status.YES
    assert "because they are solved" in answer.text


def test_one_bad_step_is_no_verdict():
    bad = {"rollout/env_errors": 5.0, "reward/dead_ratio": 1.0, "rollout/format_validity": 0.1}
    assert examine(run(lambda step: bad if step == 40 else {})).cause == "healthy"


def test_a_severe_failure_is_the_verdict_where_no_question_fails():
    found = examine(run(lambda step: {"rollout/reasoning_tokens": 60.0 if step <= 20 else 20.0}))
    assert found.verdict is None
    assert found.head.startswith("Reasoning shrinkage since step 2")
    assert (found.cause, found.tone) == ("reasoning_shrinkage", "bad")
    assert "dr_grpo" in found.next


def test_without_records_nothing_is_said():
    found = examine([])
    assert (found.head, found.tone, found.cause) == ("Nothing recorded yet", "unknown", "healthy")


def test_what_was_not_measured_is_not_known_with_its_reason():
    record = StepRecord(
        step=1, metrics={"reward/mean": 0.0}, absent={"collapse/first_turn": "1 distinct prompt"}
    )
    found = examine([record])
    assert {one.status for one in found.answers} == {Status.UNKNOWN}
    assert found.of(Question.GROUNDED).text == (
        "Reasoning was not compared across prompts: 1 distinct prompt."
    )
    assert found.tone == "unknown"
    assert found.certainty.startswith("Not known: Do replies parse?")


def test_every_cause_has_a_remedy_with_a_command_or_a_setting():
    assert set(REMEDIES) == set(Cause)
    for remedy in REMEDIES.values():
        assert "`" in remedy.next
        assert remedy.reason.endswith(".")
