"""What do the filter and the diagnostics cost of a TRL step?

Runs in a venv that has TRL (`make peers` makes .venv-trl). In one process, jobs of plain GRPOTrainer and of
SNRGRPOTrainer take turns on the same tasks: 8 prompts of 16 completions a step, one generation batch, one
optimiser step. Two kinds of job: TRL's own `generate`, one turn, all of it scored; our FrozenLake, several
turns. Two numbers for each: time spent in our code over the rest of the step, from the run's records, and the
ratio of step times as TRL logs them. The first is free of the machine's noise.

    .venv-trl/bin/python benchmarks/trl_overhead.py --rounds 5 --publish
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402 - runs from a checkout, uninstalled
import trl  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from ragen2.envs import make  # noqa: E402
from ragen2.envs.base import HELD_OUT_SEEDS  # noqa: E402
from ragen2.integrations.trl import (  # noqa: E402
    EnvRollout,
    SNRGRPOTrainer,
    SNRSettings,
    env_return,
)
from ragen2.rollout import Rollout  # noqa: E402
from ragen2.runs.files import write_atomically  # noqa: E402
from ragen2.runs.store import RunDirectory  # noqa: E402

RESULTS = ROOT / "results" / "trl_overhead.json"
MODEL = ROOT / "src" / "ragen2" / "models" / "ragen2-tiny"
LIMIT = 0.10
"""Share of a step that the filter and the diagnostics may take."""
OURS = ("score", "diagnose", "read")
STEPS = 4


def arguments(out: Path, seed: int) -> GRPOConfig:
    """Four micro-batches of 32 rows, the first step being left out of the count."""
    return GRPOConfig(
        output_dir=str(out),
        max_steps=STEPS,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=4,
        num_generations=16,
        max_completion_length=64,
        learning_rate=1e-5,
        seed=seed,
        logging_steps=1,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        disable_tqdm=True,
    )


def mixed(completions: list[Any], **_: Any) -> list[float]:
    """Rewards that vary within most groups and cost nothing."""
    return [float(len(one[0]["content"]) % 2) for one in completions]


def job(kind: str, *, is_ours: bool, seed: int, out: Path) -> dict[str, list[float]]:
    """One short training; seconds of its steps after the first, and of our part of them."""
    play = EnvRollout(make("FrozenLake"), Rollout(max_tokens=64))
    first = HELD_OUT_SEEDS + seed * 1000
    more: dict[str, Any] = {"reward_funcs": mixed}
    if kind == "frozen_lake":
        more = {"reward_funcs": env_return, "rollout_func": play}
    if is_ours:
        more["snr"] = SNRSettings(reasoning="think" if kind == "frozen_lake" else "all")
    trainer = (SNRGRPOTrainer if is_ours else GRPOTrainer)(
        model=str(MODEL),
        args=arguments(out, seed),
        train_dataset=play.dataset(range(first, first + 8 * STEPS)),
        **more,
    )
    trainer.train()
    steps = [one["step_time"] for one in trainer.state.log_history if "step_time" in one]
    found = {"step": steps[1:], "ours": []}
    if is_ours:
        records = RunDirectory.open(out / "ragen2").records()
        assert all("collapse/first_turn/mi_estimate" in one.metrics for one in records)  # noqa: S101
        found["ours"] = [sum(one.seconds[name] for name in OURS) for one in records[1:]]
    return found


def measure(kind: str, rounds: int) -> dict[str, Any]:
    """Plain and ours in turns; medians over all steps, and the share of each step that is ours."""
    plain: list[float] = []
    ours: list[float] = []
    shares: list[float] = []
    for seed in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            plain += job(kind, is_ours=False, seed=seed, out=Path(folder) / "plain")["step"]
            found = job(kind, is_ours=True, seed=seed, out=Path(folder) / "ours")
        ours += found["step"]
        shares += [
            part / (whole - part) for part, whole in zip(found["ours"], found["step"], strict=True)
        ]
    return {
        "job": kind,
        "steps": len(shares),
        "step_seconds_plain": round(statistics.median(plain), 3),
        "step_seconds_with": round(statistics.median(ours), 3),
        "ratio_of_steps": round(statistics.median(ours) / statistics.median(plain) - 1.0, 4),
        "share_of_ours": round(statistics.median(shares), 4),
    }


def main() -> None:
    """Measure both jobs, print, and publish if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="write results/ too")
    given = parser.parse_args()
    rows = [measure(kind, given.rounds) for kind in ("generate", "frozen_lake")]
    about = {
        "trl": trl.__version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "limit": LIMIT,
    }
    text = json.dumps({"about": about, "jobs": rows}, indent=1) + "\n"
    print(text)
    if given.publish:
        write_atomically(RESULTS, text)


if __name__ == "__main__":
    main()
