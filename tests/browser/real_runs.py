"""Real runs and audits for the browser: the embedded model, trained for a few steps."""

from __future__ import annotations

from pathlib import Path

from command_line import run_program
from logged_rollouts import make_rollouts, verl_row, write_jsonl

SMALL = (
    "rollout.prompts=6",
    "rollout.group_size=6",
    "evaluation.every=1",
    "evaluation.tasks=8",
    "evaluation.probe_traces=2",
    "env.max_turns=2",
    "checkpoints.every=100",
)
SOKOBAN = (
    "env.kind=Sokoban",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "rollout.max_tokens=24",
    "env.max_turns=3",
    "diagnostics=[]",
)


def trained(path: Path, *overrides: str) -> Path:
    """A run directory of the embedded model, or of the one that the settings name."""
    from ragen2.backends.agent import open_agent, quiet_transformers
    from ragen2.config import dump_config, load_run
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.loop import train

    quiet_transformers()
    config = load_run(None, [*SMALL, *overrides])
    agent = open_agent(config.model, config.learner, seed=config.seed)
    run = RunDirectory.create(path, dump_config(config))
    train(config, agent.policy, agent.learner, run)
    return path


def ungrounded_model(path: Path, *, steps: int = 70) -> Path:
    """The embedded model, taught to reason about any lake but its own."""
    from ragen2.backends.agent import open_agent, quiet_transformers
    from ragen2.backends.settings import LearnerSettings
    from ragen2.envs import FrozenLake
    from ragen2.trainer.warmstart import WarmstartConfig, warmstart

    quiet_transformers()
    config = WarmstartConfig(
        steps=steps,
        batch=16,
        quality=0.2,
        groundedness=0.0,
        env=FrozenLake(max_turns=1),
        learner=LearnerSettings(lr=1.5e-3, warmup_steps=5),
    )
    agent = open_agent(config.model, config.learner, seed=config.seed)
    warmstart(config, agent.learner)
    path.mkdir()
    agent.learner.save_model(path)
    return path


def audited(folder: Path, *, collapse_at: int = 4, steps: int = 8) -> Path:
    """An audit of another framework's log whose reasoning turns into a template at a step."""
    before = make_rollouts(steps=range(1, collapse_at), members=8)
    after = make_rollouts(steps=range(collapse_at, steps + 1), members=8, grounded=False)
    folder.mkdir()
    write_jsonl(folder / "rollouts.jsonl", [verl_row(one) for one in [*before, *after]])
    done = run_program(folder, "audit", "rollouts.jsonl", "--out", "audit")
    assert done.returncode == 0, done.stderr
    return folder / "audit"
