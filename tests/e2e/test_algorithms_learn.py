"""Every algorithm learns: a trivial task in a dozen steps, and FrozenLake from the embedded recipes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ragen2.backends.agent import open_agent, quiet_transformers
from ragen2.config import dump_config, load_run, recipe_names
from ragen2.runs.store import RunDirectory
from ragen2.trainer.loop import train

TEXT = [name for name in recipe_names() if name.startswith("frozen_lake_")]
RECIPES = [name for name in TEXT if name != "frozen_lake_tiny"]
# GRPO is the embedded default: test_learning.py has it.
QUICK = [name for name in RECIPES if not name.endswith(("_unfiltered", "_grpo"))]
QUICK.append("frozen_lake_dr_grpo")


def held_out_success(recipe: str, overrides: Sequence[str], folder: Path) -> tuple[float, float]:
    """Before and after training."""
    quiet_transformers()
    config = load_run(Path(recipe), overrides)
    agent = open_agent(
        config.model,
        config.learner,
        seed=config.seed,
        algorithm=config.algorithm,
        steps=config.steps,
    )
    run = RunDirectory.create(folder / "run", dump_config(config))
    train(config, agent.policy, agent.learner, run)
    records = run.records()
    return records[0].metrics["eval/success"], records[-1].metrics["eval/success"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("recipe", QUICK)
def test_a_trivial_task_is_learned_by_every_other_algorithm(
    recipe: str, only_down: str, tmp_path: Path
) -> None:
    # Dr. GRPO's small gradients let AdamW take steps that at 5e-4 now and then unlearn it all again.
    lr = 2e-4 if recipe == "frozen_lake_dr_grpo" else 5e-4
    overrides = [
        *(f"env.kind={only_down}", "env.max_turns=1", "env.max_actions=1"),
        *("steps=12", "rollout.prompts=4", "rollout.group_size=8", f"learner.lr={lr}"),
        *("evaluation.tasks=64", "evaluation.every=12", 'diagnostics=[{kind="surface"}]'),
    ]
    before, after = held_out_success(recipe, overrides, tmp_path)
    assert before < 0.5
    assert after > before + 0.4


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_gains_15_points_of_held_out_success(recipe: str, tmp_path: Path) -> None:
    before, after = held_out_success(recipe, (), tmp_path)
    assert after >= before + 0.15


@pytest.mark.slow
@pytest.mark.learning
def test_a_model_that_sees_gains_20_points_from_images_alone(tmp_path: Path) -> None:
    before, after = held_out_success("vision_frozen_lake", (), tmp_path)
    assert after >= before + 0.20
