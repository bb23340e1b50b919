"""What a step of training takes on one GPU, all weights or LoRA: seconds, and GiB at the peak.

    python benchmarks/lora_memory.py --out results/lora_memory_h200.json

Networks have the shapes of Qwen2.5 and random weights, made on the device in the type they are held in, so
nothing is downloaded. Steps are the default run's: FrozenLake, 8 prompts with 16 rollouts each, 5 turns of 64
tokens, diagnostics and four optimiser steps; nothing is filtered, since random replies have one reward. No
reply ends early. Each case has a process of its own; its way is full, lora, or nf4 (LoRA over 4 bits). 3B and
7B under LoRA get 24 and 40 GiB of the GPU, of which one is left to CUDA itself, as cards of that size would.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402 - runs from a checkout, uninstalled
from transformers import AutoModelForCausalLM, Qwen2Config  # noqa: E402

from ragen2.backends.agent import open_tokenizer, pick_device, quiet_transformers  # noqa: E402
from ragen2.backends.device import compute_dtype  # noqa: E402
from ragen2.backends.learner.learner import TorchLearner  # noqa: E402
from ragen2.backends.sampling.hf import HFPolicy  # noqa: E402
from ragen2.backends.settings import EMBEDDED, GPU_SHARE, ModelSettings  # noqa: E402
from ragen2.backends.tokenizer import TemplateTokenizer  # noqa: E402
from ragen2.bench.device import machine, wait_for  # noqa: E402
from ragen2.bench.rollout import engine_of  # noqa: E402
from ragen2.config import RunConfig, dump_config, load_run  # noqa: E402
from ragen2.runs.store import RunDirectory  # noqa: E402
from ragen2.trainer.loop import train_step  # noqa: E402
from ragen2.trainer.step_ledger import LedgerSettings, StepLedger  # noqa: E402

GIB = 2**30
RANK = 16
COMMON = {"vocab_size": 151_936, "max_position_embeddings": 4096, "tie_word_embeddings": True}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"sizes": (64, 128, 2, 4, 2), "vocab_size": 512},
    "0.5B": {"sizes": (896, 4864, 24, 14, 2)},
    "1.5B": {"sizes": (1536, 8960, 28, 12, 2)},
    "3B": {"sizes": (2048, 11_008, 36, 16, 2)},
    "7B": {"sizes": (3584, 18_944, 28, 28, 4), "vocab_size": 152_064, "tie_word_embeddings": False},
}
"""Hidden and inner width, layers, heads, key-value heads, and what differs from the others."""
CASES = ("7B:lora", "3B:lora", "1.5B:lora", "0.5B:lora", "0.5B:full", "1.5B:full", "3B:full")
"""What is asked about comes first: the time limit may leave out the last."""
CARDS = {"3B:lora": 24, "7B:lora": 40}
"""GiB of the card that a case is to fit on."""
FOR_CUDA = 1.0
"""GiB that CUDA takes beside torch's tensors."""
ALWAYS = ("filter.kind=keep_all", "steps=1000", "evaluation.every=1000")


def config_of(shape: str) -> Qwen2Config:
    """The configuration of a model of this shape."""
    more = dict(SHAPES[shape])
    hidden, inner, layers, heads, kv_heads = more.pop("sizes")
    return Qwen2Config(
        **{**COMMON, **more},
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
    )


def open_random(shape: str, way: str, run: RunConfig, device: str) -> tuple[TorchLearner, HFPolicy]:
    """A learner and its sampler over random weights, as a run has them."""
    model = ModelSettings(
        device=device,
        lora_rank=0 if way == "full" else RANK,
        frozen="nf4" if way == "nf4" else "auto",
    )
    dtype = compute_dtype(model.precision, torch.device(device))
    torch.manual_seed(0)
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(
            config_of(shape), dtype=torch.float32 if way == "full" else dtype
        ).eval()
    tokenizer = TemplateTokenizer(open_tokenizer(EMBEDDED).hf, [])  # no token ends a reply
    learner = TorchLearner(network, tokenizer, model, run.learner, seed=0)
    policy = HFPolicy(learner.whole, tokenizer, score_tokens=model.score_tokens)
    learner.set_spare(policy.give_back)
    return learner, policy


def measure(shape: str, way: str, steps: int, overrides: list[str], device: str) -> dict[str, Any]:
    """Figures of one case, in this process."""
    lines: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda one: lines.append(one.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ragen2.backends").addHandler(listener)
    run = load_run(None, [*overrides, *ALWAYS])
    learner, policy = open_random(shape, way, run, device)
    opened = _allocated(device)
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder) / "run", dump_config(run))
        ledger = StepLedger(LedgerSettings.of(run), directory)
        took = []
        for step in range(1, steps + 2):
            started = time.perf_counter()
            ledger.open(step)
            train_step(run, policy, learner, ledger, step)
            ledger.close()
            wait_for(learner.device)
            took.append(time.perf_counter() - started)
        records = directory.records()
    return {
        **learner.describe(),
        "lora_rank": 0 if way == "full" else RANK,
        "engine": engine_of(policy),
        "is_fused": learner.forward.is_fused,
        "seconds": sum(took[1:]) / steps,
        "seconds_first": took[0],
        "seconds_by_phase": dict(records[-1].seconds),
        "tokens": int(records[-1].metrics["update/tokens"]),
        "opened_gib": opened,
        **_peaks(device),
        "said": lines,
    }


def _allocated(device: str) -> float | None:
    return torch.cuda.memory_allocated() / GIB if device == "cuda" else None


def _peaks(device: str) -> dict[str, float | None]:
    """Of tensors, of what torch took for them, and of what CUDA holds beside it now."""
    if device != "cuda":
        return dict.fromkeys(("peak_gib", "peak_reserved_gib", "beside_gib"))
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_gib": torch.cuda.max_memory_allocated() / GIB,
        "peak_reserved_gib": torch.cuda.max_memory_reserved() / GIB,
        "beside_gib": (total - free - torch.cuda.memory_reserved()) / GIB,
    }


def run_case(case: str, asked: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """One case in a process of its own; one that fails or takes too long says so."""
    words = [sys.executable, __file__, "--child", case, "--device", asked.device]
    words += ["--steps", str(asked.steps), *(f"--set={one}" for one in asked.set)]
    found: dict[str, Any] = {"case": case, "card_gib": CARDS.get(case)}
    try:
        done = subprocess.run(  # noqa: S603 - this file, with settings of its user
            words, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return {**found, "error": f"no end after {seconds:.0f} s"}
    if done.returncode:
        return {**found, "error": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    return {**found, **json.loads(done.stdout.splitlines()[-1])}


def child(asked: argparse.Namespace) -> None:
    """Measure one case and print it as a line of JSON."""
    shape, way = asked.child.split(":")
    if asked.device == "cuda" and (card := CARDS.get(asked.child)):
        total = torch.cuda.get_device_properties(0).total_memory
        os.environ[GPU_SHARE] = f"{(card - FOR_CUDA) * GIB / total:.5f}"
    quiet_transformers()
    pick_device(asked.device)
    print(json.dumps(measure(shape, way, asked.steps, asked.set, asked.device)))


def main() -> None:
    """Write one file, again after each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file of the figures")
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="SHAPE:WAY")
    parser.add_argument("--steps", type=int, default=2, help="steps that count, after a first one")
    parser.add_argument("--seconds", type=float, default=570.0, help="for all cases together")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked)
        return
    if asked.out is None:
        parser.error("--out is missing: the file that figures are written to")
    began, cases = time.perf_counter(), []
    for case in asked.cases:
        left = asked.seconds - (time.perf_counter() - began)
        found = {"case": case, "error": "no time left"} if left < 1 else run_case(case, asked, left)
        cases.append(found)
        print(json.dumps(found))
        about = {"machine": machine(torch.device(asked.device)), "steps": asked.steps}
        asked.out.write_text(json.dumps({**about, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
