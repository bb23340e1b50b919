"""Whole jobs of verl on processors, and what must hold of the run directories they leave."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ragen2.backends.agent import locate, open_policy
from ragen2.config import RunConfig, load_run
from ragen2.diagnostics import Collapse, Evidence
from ragen2.policy import Pair
from ragen2.runs.checkpoints import checkpoint_folder
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.runs.trajectories import groups_of
from ragen2.types import Group

SRC = Path(__file__).parents[3] / "src"
SMALL = (
    "steps=5",
    "seed=11",
    "model.device=cpu",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "rollout.max_tokens=48",
    "learner.minibatches=2",
    "learner.lr=3e-4",
    "evaluation.tasks=6",
    "evaluation.every=5",
    "evaluation.probe_prompts=2",
    "evaluation.probe_traces=3",
    "checkpoints.every=2",
    "checkpoints.keep=9",
)


def train(run: Path, *overrides: str, workers: int) -> str:
    """Train a small run on verl; what it printed."""
    words = [word for one in (*SMALL, *overrides) for word in ("--set", one)]
    return ragen2(
        "train", *words, "--engine", "verl", "--gpus-per-node", str(workers), "--out", str(run)
    )


def train_here(run: Path, *overrides: str) -> str:
    """The same by our own loop."""
    words = [word for one in (*SMALL, *overrides) for word in ("--set", one)]
    return ragen2("train", *words, "--out", str(run))


def ragen2(*words: str) -> str:
    """Run the program in this venv."""
    done = subprocess.run(
        [sys.executable, "-m", "ragen2", *words],
        env={**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


def records_of(run: Path) -> dict[int, StepRecord]:
    return {record.step: record for record in RunDirectory.open(run).records()}


def groups_at(run: Path, step: int) -> list[Group]:
    lines = (run / "rollouts" / f"step_{step:06d}.jsonl").read_text(encoding="utf-8").splitlines()
    return groups_of(lines)


def check_filter(run: Path) -> None:
    """At every step, what was kept is what `select` keeps of the same rewards."""
    config = load_run(run / "run.toml")
    kept = []
    for step in range(1, config.steps + 1):
        record, groups = records_of(run)[step], groups_at(run, step)
        assert record.kept == config.filter.select(groups).kept_P.tolist()
        assert record.seeds == [group.prompt.seed for group in groups]
        kept += record.kept
    assert True in kept
    assert False in kept  # else nothing was tested


def check_information(run: Path, step: int, model: str) -> None:
    """MI and entropies at ``step`` are those of our own scorer under the weights that wrote it."""
    config = load_run(run / "run.toml")
    own = _measured(config, step, groups_at(run, step), model)
    recorded = records_of(run)[step].metrics
    for name in ("mi_estimate", "mi_seq_estimate", "retrieval_accuracy", "conditional_entropy"):
        full = f"collapse/first_turn/{name}"
        assert recorded[full] == pytest.approx(own[full], abs=1e-3), full
    assert own["collapse/first_turn/conditional_entropy"] > 0.0


def _measured(config: RunConfig, step: int, groups: list[Group], model: str) -> dict[str, float]:
    evidence = Evidence(
        step, groups, open_policy(model, "cpu"), config.rollout.temperature, seed=config.seed
    )
    return Collapse().measure(evidence)


def check_tokens(run: Path, step: int, model: str, *, within: float) -> None:
    """Log-probs that the rollout recorded are those of the weights that it was to use."""
    assert _mismatch(run, step, model) < within


def check_pushes(run: Path, step: int, *, within: float) -> None:
    """What was recorded at ``step`` is far from the first weights: else staleness would not show."""
    assert _mismatch(run, step, "ragen2-tiny") > 10 * within


def _mismatch(run: Path, step: int, model: str) -> float:
    """Mean distance between recorded log-probs and those of ``model``."""
    turns = [
        turn for group in groups_at(run, step) for one in group.trajectories for turn in one.turns
    ]
    pairs = [Pair(turn.prompt_ids_T, turn.completion.ids_T) for turn in turns]
    found = open_policy(model, "cpu").score(pairs)
    difference = np.concatenate(
        [own - turn.completion.logprobs_T for own, turn in zip(found, turns, strict=True)]
    )
    return float(np.abs(difference).mean())


def far_apart(one: str, other: str) -> float:
    """Mean distance between the weights of two models."""
    first, second = (_weights(model) for model in (one, other))
    assert first.keys() == second.keys()
    whole = torch.cat([(first[name] - second[name]).abs().flatten() for name in first])
    return float(whole.mean())


def _weights(model: str) -> dict[str, torch.Tensor]:
    opened = AutoModelForCausalLM.from_pretrained(locate(model).source)
    assert {weight.dtype for weight in opened.parameters()} == {torch.float32}
    return {name: weight.detach() for name, weight in opened.named_parameters()}


def weights_at(run: Path, step: int) -> str:
    return str(checkpoint_folder(run, step))
