"""The whole loop on every environment, with the embedded model."""

import pytest

from ragen2.backends.agent import open_agent
from ragen2.config import dump_config, load_run
from ragen2.envs import Env
from ragen2.runs.store import RunDirectory
from ragen2.trainer.loop import train

SMALL = (
    "steps=2",
    "rollout.prompts=2",
    "rollout.group_size=3",
    "rollout.max_tokens=32",
    "evaluation.tasks=2",
    "evaluation.probe_prompts=2",
    "evaluation.probe_traces=2",
)


@pytest.mark.parametrize("kind", Env.kinds())
def test_two_steps_of_training_run(kind, tmp_path):
    overrides = [*SMALL, f"env.kind={kind}"]
    if load_run(None, overrides).env.max_turns > 2:
        overrides.append("env.max_turns=2")
    config = load_run(None, overrides)
    agent = open_agent(config.model, config.learner, seed=config.seed)
    run = RunDirectory.create(tmp_path / "run", dump_config(config))
    final = train(config, agent.policy, agent.learner, run)
    records = run.records()
    assert final.step == 2
    assert [record.step for record in records] == [0, 1, 2]
    assert all(record.metrics["rollout/env_errors"] == 0 for record in records[1:])
    assert "eval/success" in records[-1].metrics
