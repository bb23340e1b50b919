"""A run of the real model with everything that has a memory: broken off and gone on with, it is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen2.algorithms import PPO, Algorithm
from ragen2.backends.agent import Agent, open_agent
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.config import RunConfig, dump_config
from ragen2.diagnostics import Surface
from ragen2.envs import FrozenLake
from ragen2.filtering import Nonzero
from ragen2.rollout import Rollout
from ragen2.runs.checkpoints import checkpoint_folder
from ragen2.runs.store import RunDirectory
from ragen2.trainer.loop import train
from ragen2.trainer.state import TrainerState, read_state

STEPS = 3
MEMORIES = {
    "critic": (PPO(critic_lr=1e-3, critic_warmup=1), 0),
    "adapters, critic and reference": (
        PPO(critic_lr=1e-3, kl_coefficient=0.01, kl_in="reward", bi_level=True),
        2,
    ),
}
"""Algorithm and rank of LoRA."""


def config(algorithm: Algorithm, lora_rank: int) -> RunConfig:
    return RunConfig(
        steps=STEPS,
        env=FrozenLake(max_turns=2),
        model=ModelSettings(device="cpu", lora_rank=lora_rank),
        rollout=Rollout(prompts=2, group_size=3, max_tokens=40, resample_rounds=2),
        filter=Nonzero(),
        algorithm=algorithm,
        learner=LearnerSettings(lr=1e-4, schedule="cosine", warmup_steps=2, minibatches=2),
        diagnostics=(Surface(),),
        evaluation={"every": 3, "tasks": 2, "probe_prompts": 0},
        checkpoints={"every": 1, "keep": STEPS},
        stops={"variance_baseline": 2, "variance_steps": 50},
        curriculum={"mode": "adaptive", "window": 8, "start_level": 2},
    )


def opened(settings: RunConfig) -> Agent:
    return open_agent(
        settings.model,
        settings.learner,
        seed=settings.seed,
        algorithm=settings.algorithm,
        steps=settings.steps,
    )


def run_to(
    folder: Path, settings: RunConfig, *, until: int = STEPS, resume: int = 0
) -> TrainerState:
    """Play until a step; from a checkpoint, all of it in a learner of its own."""
    agent, state = opened(settings), None
    if resume:
        run = RunDirectory.open(folder)
        checkpoint = checkpoint_folder(folder, resume)
        state = read_state(checkpoint)
        agent.learner.load(checkpoint)
        run.rewind(resume)
    else:
        run = RunDirectory.create(folder, dump_config(settings))

    def stop_asked() -> bool:
        return run.records()[-1].step >= until

    return train(settings, agent.policy, agent.learner, run, state=state, stop_asked=stop_asked)


@pytest.mark.parametrize(
    "memory", [pytest.param("critic", marks=pytest.mark.slow), "adapters, critic and reference"]
)
def test_a_broken_run_goes_on_to_the_same_weights_and_records(tmp_path, memory):
    settings = config(*MEMORIES[memory])
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    wanted = run_to(whole, settings)
    run_to(broken, settings, until=2)
    assert run_to(broken, settings, resume=2) == wanted
    assert wanted.stops.baseline_count > 0
    assert len(wanted.recent) == len(wanted.curriculum.success) == STEPS
    records = [
        [record.model_dump(exclude={"seconds"}) for record in RunDirectory.open(run).records()]
        for run in (whole, broken)
    ]
    assert records[0] == records[1]
    assert max(r["metrics"].get("filter/rounds", 0.0) for r in records[0]) > 1.0
    assert sum(r["metrics"].get("update/steps", 0.0) for r in records[0]) > 1.0
    assert any("update/value_loss" in r["metrics"] for r in records[0])
    last = checkpoint_folder(whole, STEPS)
    names = {path.name for path in last.iterdir()}
    assert {"critic.pt", "optimizer.pt", "model.safetensors"} <= names
    for name in names:
        same = (checkpoint_folder(broken, STEPS) / name).read_bytes() == (last / name).read_bytes()
        assert same, name
