"""Held-out evaluation: which tasks, which numbers, which interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.config import Evaluation, RunConfig
from ragen2.diagnostics.metrics.collapse import measured_scopes
from ragen2.diagnostics.statistics.resampling import wilson_of_trials
from ragen2.envs import Bandit, FrozenLake
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.progress import ProgressReport, reported_to
from ragen2.rollout import Rollout
from ragen2.trainer.evaluate import assess, evaluate, evaluate_run, evaluation_metrics

ENV = Bandit(risky_chance=1.0)
ROLLOUT = Rollout(actions_per_turn=1)


def first_arm(prompt: str, rng: np.random.Generator) -> str:
    """Says which arms it is shown, and takes the first."""
    arms = prompt.rpartition("Arms: ")[2].split("assistant", maxsplit=1)[0].strip()
    return f"{arms}</think><answer>{arms.split(',')[0]}</answer>"


GROUNDED = ScriptedPolicy(first_arm, lambda prompt, text: -0.5 if text in prompt else -3.0)


def test_it_plays_each_held_out_task_once():
    _, groups = evaluate(ENV, ScriptedPolicy(first_arm), ROLLOUT, tasks=20)
    assert [group.prompt.seed for group in groups] == list(range(20))
    assert all(len(group.trajectories) == 1 for group in groups)


def test_the_numbers_are_those_of_the_groups():
    metrics, groups = evaluate(ENV, ScriptedPolicy(first_arm), ROLLOUT, tasks=40)
    solved = [group.trajectories[0].solved for group in groups]
    assert metrics["eval/success"] == pytest.approx(np.mean(solved))
    assert metrics["eval/reward"] == pytest.approx(np.mean([g.rewards_G[0] for g in groups]))
    assert (metrics["eval/turns"], metrics["eval/format_validity"]) == (1.0, 1.0)
    low, high = metrics["eval/success_low"], metrics["eval/success_high"]
    assert (low, high) == wilson_of_trials(metrics["eval/success"], 40)


def test_the_same_seed_evaluates_alike():
    policy = ScriptedPolicy(lambda p, rng: first_arm(p, rng) if rng.random() < 0.5 else "x")
    first, again, other = (
        evaluate(ENV, policy, ROLLOUT, tasks=30, seed=seed)[0] for seed in (0, 0, 1)
    )
    assert first == again != other


def test_format_validity_is_left_out_when_nothing_was_written():
    policy = ScriptedPolicy(first_arm)
    policy.max_context = 1
    metrics, _ = evaluate(ENV, policy, ROLLOUT, tasks=2)
    assert "eval/format_validity" not in metrics
    assert metrics["eval/turns"] == 0.0


def test_more_tasks_than_are_held_out_are_refused():
    with pytest.raises(ValueError, match=f"there are {HELD_OUT_SEEDS} held-out tasks"):
        evaluate(ENV, ScriptedPolicy(first_arm), ROLLOUT, tasks=HELD_OUT_SEEDS + 1)


def test_each_run_seed_may_have_held_out_tasks_of_its_own():
    settings = Evaluation(tasks=20, own_tasks=True)
    assert [settings.first_task(seed) for seed in (0, 1, 7)] == [0, 20, 140]
    assert settings.first_task(HELD_OUT_SEEDS // 20) == 0  # all are used up
    assert Evaluation(tasks=20).first_task(7) == 0
    own = assess(config().model_copy(update={"seed": 3, "evaluation": settings}), GROUNDED)
    assert [group.prompt.seed for group in own.evaluated] == list(range(60, 80))
    with pytest.raises(ValueError, match="held-out tasks"):
        evaluate(ENV, ScriptedPolicy(first_arm), ROLLOUT, tasks=2, first=HELD_OUT_SEEDS - 1)


def test_the_same_tasks_are_played_again_at_a_second_temperature(monkeypatch):
    played = []

    def fake(env, policy, rollout, **asked):
        played.append((rollout.temperature, asked["tasks"], asked["first"]))
        return {"eval/success": rollout.temperature, "eval/success_low": 0.0, "eval/turns": 1.0}, []

    monkeypatch.setattr("ragen2.trainer.evaluate.evaluate", fake)
    asked = {"tasks": 20, "probe_prompts": 0}
    run = RunConfig(env=ENV, evaluation=asked)
    assert evaluate_run(run, GROUNDED, None) == {
        "eval/success": 1.0, "eval/success_low": 0.0, "eval/turns": 1.0,
    }  # fmt: skip
    twice = RunConfig(env=ENV, evaluation={**asked, "second_temperature": 0.5})
    assert evaluate_run(twice, GROUNDED, None) == {
        "eval/success": 1.0, "eval/success_low": 0.0, "eval/turns": 1.0,
        "eval/second_success": 0.5, "eval/second_success_low": 0.0,
    }  # fmt: skip
    assert played == [(1.0, 20, 0), (1.0, 20, 0), (0.5, 20, 0)]


def test_success_counts_every_member_of_a_group(group_of):
    metrics = evaluation_metrics([group_of([0.0, 1.0, 1.0, 1.0]), group_of([0.0] * 4)])
    assert metrics["eval/success"] == 3 / 8


# --- the interval ----------------------------------------------------------------------------------


def test_the_interval_is_wilsons():
    low, high = wilson_of_trials(0.5, 100)
    assert (low, high) == pytest.approx((0.4038, 0.5962), abs=1e-4)


def test_no_success_in_a_hundred_is_not_certainty():
    assert wilson_of_trials(0.0, 100) == pytest.approx((0.0, 0.0370), abs=1e-4)
    assert wilson_of_trials(1.0, 100) == pytest.approx((0.9630, 1.0), abs=1e-4)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate_and_stays_a_share(counts):
    solved, count = counts
    rate = solved / count
    low, high = wilson_of_trials(rate, count)
    assert 0.0 <= low <= rate + 1e-12
    assert rate - 1e-12 <= high <= 1.0


# --- assess ----------------------------------------------------------------------------------------


def config(tasks: int = 64, **rollout) -> RunConfig:
    return RunConfig(
        env=ENV,
        rollout=Rollout(prompts=8, group_size=8, actions_per_turn=1, **rollout),
        evaluation={"tasks": tasks},
    )


def test_a_policy_that_names_what_it_sees_is_grounded():
    def likelihood(prompt: str, text: str) -> float:
        return -0.5 if text in prompt else -3.0

    verdict = assess(config(), ScriptedPolicy(first_arm, likelihood))
    assert verdict.regime == "diverse_grounded"
    assert measured_scopes(verdict.metrics) == ["first_turn"]  # a bandit has one turn
    assert verdict.absent == {}
    assert verdict.metrics["collapse/first_turn/retrieval_above_chance"] > 0
    assert all(math.isfinite(value) for value in verdict.metrics.values())


def test_a_policy_that_writes_the_same_for_all_has_no_grounded_reasoning():
    verdict = assess(config(), ScriptedPolicy(lambda p, rng: "who knows</think><answer>x</answer>"))
    assert verdict.metrics["collapse/first_turn/grounded_share"] == 0.0
    assert verdict.metrics["collapse/first_turn/num_prompts"] == 2.0
    assert verdict.regime == "undecided", "two prompts cannot tell a half from none"
    assert verdict.metrics["collapse/first_turn/retrieval_above_chance"] == 0.0


def test_without_reasoning_there_is_success_but_no_verdict():
    verdict = assess(config(thinking=False), ScriptedPolicy(lambda p, rng: "x</answer>"))
    assert verdict.regime is None
    assert "eval/success" in verdict.metrics
    assert not [name for name in verdict.metrics if name.startswith("collapse")]
    assert verdict.absent == {"collapse/first_turn": "0 reasoning traces to score, 2 are needed"}


def test_an_environment_of_several_turns_is_assessed_in_every_scope():
    def walk(prompt: str, rng: np.random.Generator) -> str:
        return f"at turn {prompt.count('assistant: ')}</think><answer>Up</answer>"

    lake = config().model_copy(update={"env": FrozenLake(max_turns=3)})
    verdict = assess(lake, ScriptedPolicy(walk))
    scopes = measured_scopes(verdict.metrics)
    assert scopes[0] == "first_turn"
    assert scopes[-1] == "trajectory"
    missing = [name.removeprefix("collapse/") for name in verdict.absent]
    assert {*scopes, *missing} == {"first_turn", "turn_2", "turn_3", "trajectory"}
    assert verdict.metrics["collapse/first_turn/num_traces"] == 64


@pytest.mark.parametrize(
    ("tasks", "shape"), [(200, (8, 8)), (64, (8, 8)), (63, (8, 7)), (9, (8, 1)), (2, (2, 1))]
)
def test_no_more_episodes_are_compared_than_tasks_were_asked_for(tasks, shape):
    lake = config(tasks).model_copy(update={"env": FrozenLake(max_turns=3)})
    verdict = assess(lake, ScriptedPolicy(lambda p, rng: f"at {p[-9:]}</think><answer>Up</answer>"))
    assert (len(verdict.groups), len(verdict.groups[0].trajectories)) == shape
    assert len(verdict.evaluated) == tasks
    traces = [v for name, v in verdict.metrics.items() if name.endswith("/num_traces")]
    assert 0 < max(traces) <= tasks


def test_one_task_has_nothing_to_be_compared_with():
    verdict = assess(config(1), ScriptedPolicy(first_arm))
    assert verdict.absent == {"collapse/first_turn": "1 reasoning traces to score, 2 are needed"}


def test_without_collapse_nothing_else_is_played_or_scored():
    said: list[ProgressReport] = []
    policy = ScriptedPolicy(first_arm)
    policy.score = None  # would be called
    with reported_to(said.append):
        verdict = assess(config(5), policy, scores_reasoning=False)
    assert (len(verdict.evaluated), verdict.groups, verdict.regime) == (5, [], None)
    assert verdict.absent == {"collapse": "it was not asked for"}
    assert {one.doing for one in said} == {"1 of 1, held-out tasks: playing Bandit"}


def test_phases_say_how_many_there_are_and_how_far_each_is():
    said: list[ProgressReport] = []
    with reported_to(said.append):
        assess(config(20), ScriptedPolicy(first_arm))
    assert list(dict.fromkeys(one.doing for one in said)) == [
        "1 of 3, held-out tasks: playing Bandit",
        "2 of 3, groups to compare: playing Bandit",
        "3 of 3, scoring: 16 traces, first turn",
    ]
    assert {one.total for one in said} == {20, 16, 1}
