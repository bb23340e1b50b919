"""The step benchmark: phases add up, evaluations are spread, tokens are counted."""

from __future__ import annotations

import pytest

from ragen2.backends.agent import open_agent
from ragen2.bench.step import _Meter, measure_steps
from ragen2.config import RunConfig, load_run
from ragen2.errors import RunError
from ragen2.runs.record import StepRecord

SHORT = (
    "env.max_turns=1",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "rollout.max_tokens=6",
    "filter.kind=keep_all",
    "diagnostics=[]",
    "evaluation.tasks=2",
    "evaluation.probe_prompts=0",
)


def measured(config: RunConfig, *, warmup: int, repeats: int):
    agent = open_agent(config.model, config.learner, seed=0, algorithm=config.algorithm)
    return measure_steps(config, agent.policy, agent.learner, warmup=warmup, repeats=repeats)


def test_the_phases_of_real_steps_add_up():
    found = measured(load_run(None, SHORT), warmup=1, repeats=2)
    assert {"rollout", "update", "evaluate", "other"} <= set(found.phases)
    assert sum(found.phases.values()) == pytest.approx(found.seconds)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert len(found.steps) == 2
    assert 0 < found.sampled_tokens <= 2 * 2 * 6
    assert found.trained_tokens == found.sampled_tokens
    assert found.seconds_evaluation > 0


def test_a_run_that_ends_early_is_not_measured():
    stopping = [*SHORT, "stops.empty_steps=1", "filter.kind=top_p", "filter.mass=0.9"]
    stopping += ["env.kind=Bandit", "env.risky_chance=0.0", "env.steady_reward=0.0"]
    stopping += ["rollout.format_penalty=0.0"]
    with pytest.raises(RunError, match=r"ended after step 1 of 3: .*time fewer steps"):
        measured(load_run(None, stopping), warmup=1, repeats=2)


def record(number: int, **seconds: float) -> StepRecord:
    return StepRecord(step=number, metrics={"update/tokens": 10.0 * number}, seconds=seconds)


def test_evaluations_are_spread_and_the_rest_is_other():
    meter = _Meter(
        records=[
            record(0, evaluate=50.0),
            record(1, rollout=90.0, update=9.0, step=99.0),
            record(2, rollout=2.0, update=1.0, step=3.0),
            record(3, rollout=4.0, score=1.0, update=3.0, evaluate=8.0, step=16.0),
        ],
        ended=[100.0, 200.0, 204.0, 222.0],
        sampled=[7, 8, 30, 50],
    )
    found = meter.costs(warmup=1, evaluated_every=4)
    assert found.steps == (4.0, 10.0)  # the second without its evaluation of 8 seconds
    wanted = {"rollout": 3.0, "update": 2.0, "score": 0.5, "other": 1.5, "evaluate": 2.0}
    assert found.phases == wanted
    assert found.seconds == 9.0
    assert found.seconds_evaluation == 8.0
    assert found.first_seconds == 100.0
    assert (found.sampled_tokens, found.trained_tokens) == (40.0, 25.0)


def test_only_the_tokens_of_a_rollout_count():
    meter = _Meter()
    for phase, tokens in (("evaluate", 100), ("rollout", 5), ("rollout", 6), ("evaluate", 9)):
        meter.phase(phase)
        meter.count(tokens)
    meter.record(record(1))
    assert meter.sampled == [11]
    assert meter.tokens == 0
