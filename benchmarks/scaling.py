"""How the cost of a step grows with prompts, group size, turns, reply length and model size.

Models have random weights, so that no reply is ever valid: every episode lasts all its turns, and every reply
is as long as allowed. One setting is varied at a time. Writes results/scaling_LABEL.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ragen2.backends.agent import open_tokenizer, pick_device, quiet_transformers
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import EMBEDDED, LearnerSettings, ModelSettings
from ragen2.bench.device import machine, wait_for
from ragen2.bench.peer_job import EndlessSampler
from ragen2.bench.rollout import endless_policy
from ragen2.config import RunConfig, load_run
from ragen2.runs.files import write_atomically
from ragen2.trainer.batch import play_batch
from ragen2.trainer.update import update

RESULTS = Path(__file__).parents[1] / "results"
CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama to be filled with random weights."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


SHAPES = {
    "tiny": Shape(128, 384, 5, 4, 4, 512),
    "3M": Shape(256, 640, 4, 4, 4, 2048),
    "8M": Shape(320, 896, 6, 5, 5, 4096),
    "30M": Shape(384, 1024, 12, 6, 2, 16_384),
    "135M": Shape(576, 1536, 30, 9, 3, 49_152),
    "360M": Shape(960, 2560, 32, 15, 5, 49_152),
}
"""The last two are shaped like SmolLM2-135M and SmolLM2-360M, the first like the embedded model."""


@dataclass(frozen=True, slots=True)
class Work:
    """A step to be timed."""

    model: str
    prompts: int
    group_size: int
    turns: int
    tokens: int


AXES: dict[str, dict[str, list[Any]]] = {
    "cpu": {
        "prompts": [1, 2, 4, 8],
        "group_size": [2, 4, 8, 16],
        "turns": [1, 2, 3, 5],
        "tokens": [8, 16, 32, 64],
        "model": ["tiny", "3M", "8M"],
    },
    "cuda": {
        "prompts": [2, 4, 8, 16, 32],
        "group_size": [4, 8, 16, 32],
        "turns": [1, 2, 3, 5],
        "tokens": [16, 32, 64, 128],
        "model": ["tiny", "30M", "135M", "360M"],
    },
}
BASE = {"cpu": Work("tiny", 4, 4, 2, 16), "cuda": Work("135M", 8, 16, 3, 64)}


@cache
def random_agent(name: str, device: str) -> tuple[HFPolicy, TorchLearner]:
    """A policy that never ends a reply, and a learner, over the same random weights."""
    shape = SHAPES[name]
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(device):
        network = LlamaForCausalLM(config).eval()
    tokenizer = open_tokenizer(EMBEDDED)
    learner = TorchLearner(network, tokenizer, ModelSettings(), LearnerSettings(), seed=0)
    return endless_policy(network, tokenizer), learner


def settings(work: Work) -> RunConfig:
    """One optimiser step over everything that was played; nothing is filtered or diagnosed."""
    return load_run(
        None,
        [
            f"rollout.prompts={work.prompts}",
            f"rollout.group_size={work.group_size}",
            f"rollout.max_tokens={work.tokens}",
            f"env.max_turns={work.turns}",
            "rollout.resample_rounds=0",
            "filter.kind=keep_all",
            "learner.minibatches=1",
            "diagnostics=[]",
        ],
    )


def timed_steps(
    work: Work, policy: HFPolicy, learner: TorchLearner, repeats: int
) -> dict[str, float]:
    """Median seconds of rollout and update after one step that does not count."""
    config, sampler = settings(work), EndlessSampler(policy)
    rollouts, updates = [], []
    for step in range(1, repeats + 2):
        started = _now(policy)
        batch = play_batch(config, sampler, step)
        played = _now(policy)
        done = update(config, learner, batch.selection, batch.groups, step)
        rollouts.append(played - started)
        updates.append(_now(policy) - played)
    trajectories = [one for group in batch.groups for one in group.trajectories]
    if done is None or {len(one.turns) for one in trajectories} != {work.turns}:
        raise RuntimeError(f"an episode of {work} ended early: its cost is not that of its size")
    return {
        "seconds_rollout": statistics.median(rollouts[1:]),
        "seconds_update": statistics.median(updates[1:]),
        "sampled_tokens": sum(one.num_tokens for one in trajectories),
        "trained_tokens": done.num_tokens,
    }


def points(axis: str, values: list[Any], base: Work, device: str, repeats: int) -> list[Any]:
    """One timed step for each value of one setting."""
    found = []
    for value in values:
        work = replace(base, **{axis: value})
        policy, learner = random_agent(work.model, device)
        cost = timed_steps(work, policy, learner, repeats)
        parameters = sum(parameter.numel() for parameter in policy.network.parameters())
        found.append({"axis": axis, "value": value, "parameters": parameters, **cost})
        print(f"{axis} {value}: {cost}", flush=True)
    return found


def _now(policy: HFPolicy) -> float:
    wait_for(policy.device)
    return time.perf_counter()


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--axes", nargs="+", default=list(AXES["cpu"]), choices=list(AXES["cpu"]))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--label", required=True, help="names the machine in the result's file name"
    )
    given = parser.parse_args()
    quiet_transformers()
    device = pick_device(given.device)
    base = BASE[device]
    found = {
        **machine(torch.device(device)),
        "base": {axis: getattr(base, axis) for axis in AXES[device]},
        "points": [
            one
            for axis in given.axes
            for one in points(axis, AXES[device][axis], base, device, given.repeats)
        ],
    }
    RESULTS.mkdir(exist_ok=True)
    write_atomically(RESULTS / f"scaling_{given.label}.json", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
