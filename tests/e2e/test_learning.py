"""Learning: a task that anyone can learn is learned, end to end, in a dozen steps."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from ragen2.backends.opening import open_agent, quiet_transformers
from ragen2.config import dump_config, load_run
from ragen2.envs import FrozenLake, Step
from ragen2.envs.base import normalise
from ragen2.envs.frozen_lake import LakeEpisode
from ragen2.runs.store import RunDirectory
from ragen2.trainer.loop import train


@pytest.fixture
def only_down(own_kinds: None) -> str:
    """The kind of an environment that looks like a lake, where the one thing that pays is Down."""

    class DownEpisode(LakeEpisode):
        def step(self, action: str) -> Step:
            is_down = normalise(action) == "down"
            return Step(reward=float(is_down), done=True, solved=is_down)

    class OnlyDown(FrozenLake):
        kind: Literal["OnlyDown"] = "OnlyDown"

        def start(self, seed: int, luck: int) -> DownEpisode:
            episode = super().start(seed, luck)
            return DownEpisode(self, episode.lake, episode._slips)

    return OnlyDown().kind


@pytest.mark.slow
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
    agent = open_agent(config.model, config.learner, seed=0, needs_reference=False)
    run = RunDirectory.create(tmp_path / "run", dump_config(config))
    train(config, agent.policy, agent.learner, run)
    records = run.records()
    before, after = records[0].metrics["eval/success"], records[-1].metrics["eval/success"]
    assert before < 0.5
    assert after > before + 0.4
