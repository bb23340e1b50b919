"""A checkpoint is an ordinary model that plays exactly as it did in training.

Weights are saved in float32 and every draw comes from a named stream, so an evaluation of the same tasks
with the same seed is equal to the one in the log, not only near it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from command_line import records, run_program, settings
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.config import load_run
from ragen2.trainer.evaluate import evaluate


def last_evaluation(run: Path) -> dict[str, float]:
    """The ``eval/`` metrics of the last step."""
    metrics = records(run)[-1]["metrics"]
    return {name: value for name, value in metrics.items() if name.startswith("eval/")}


@pytest.mark.usefixtures("one_thread")
def test_a_checkpoint_opened_with_transformers_plays_as_the_log_says(whole_run: Path) -> None:
    folder = whole_run / "checkpoints" / "step_000008"
    network = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    policy = HFPolicy(network, TemplateTokenizer(tokenizer, [tokenizer.eos_token_id]))
    config = load_run(whole_run / "run.toml")
    found, _ = evaluate(
        config.env,
        policy,
        config.rollout,
        tasks=config.evaluation.tasks,
        seed=config.seed,
        prompt=config.prompt,
    )
    assert found == last_evaluation(whole_run)


def test_the_eval_verb_agrees_with_the_log(whole_run: Path, tmp_path: Path) -> None:
    max_tokens = load_run(whole_run / "run.toml").rollout.max_tokens
    done = run_program(
        tmp_path,
        "eval",
        whole_run,
        *("--env", "FrozenLake", "--tasks", "8", "--json", "metrics.json"),
        *settings(f"rollout.max_tokens={max_tokens}", "rollout.prompts=4"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert last_evaluation(whole_run).items() <= found["metrics"].items()
    assert found["regime"] == "diverse_grounded"
    assert "grounded share" in done.stdout
    assert done.stdout.startswith("Reasoning is about its prompt.")
