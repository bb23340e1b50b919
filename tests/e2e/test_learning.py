"""Learning: a task that anyone can learn is learned, end to end, in a dozen steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen2.backends.agent import open_agent, quiet_transformers
from ragen2.config import dump_config, load_run
from ragen2.runs.store import RunDirectory
from ragen2.trainer.loop import train


@pytest.mark.usefixtures("one_thread")
def test_a_trivial_task_is_learned(only_down: str, tmp_path: Path) -> None:
    quiet_transformers()
    config = load_run(
        None,
        [
            *(f"env.kind={only_down}", "env.max_turns=1", "env.max_actions=1"),
            *("steps=12", "rollout.prompts=4", "rollout.group_size=8", "learner.lr=5e-4"),
            *("evaluation.tasks=64", "evaluation.every=12", 'diagnostics=[{kind="surface"}]'),
        ],
    )
    agent = open_agent(config.model, config.learner, seed=0)
    run = RunDirectory.create(tmp_path / "run", dump_config(config))
    train(config, agent.policy, agent.learner, run)
    records = run.records()
    before, after = records[0].metrics["eval/success"], records[-1].metrics["eval/success"]
    assert before < 0.5
    assert after > before + 0.4
