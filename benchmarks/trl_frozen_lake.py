"""Does the embedded model learn FrozenLake inside TRL, through our environment, with the SNR filter?

Runs in a venv that has TRL (`make peers` makes .venv-trl). Trains GRPOTrainer's subclass for 30 generation
batches of 8 tasks and 16 episodes, as many as `ragen2 train` plays, and writes success on 256 held-out tasks
before and after.

    .venv-trl/bin/python benchmarks/trl_frozen_lake.py --out runs/trl
    .venv-trl/bin/python benchmarks/trl_frozen_lake.py --out runs/trl --publish     # into results/ as well
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402 - runs from a checkout, uninstalled
import trl  # noqa: E402
from trl import GRPOConfig  # noqa: E402

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

RESULTS = ROOT / "results" / "trl_frozen_lake.json"
MODEL = ROOT / "src" / "ragen2" / "models" / "ragen2-tiny"
PROMPTS, GROUP, UPDATES = 8, 16, 4
GAIN = 0.10
"""Points of held-out success that the run must gain."""


def arguments(out: Path, batches: int, seed: int) -> GRPOConfig:
    """Four updates of 32 rows for each generation batch of 128, at the embedded recipe's learning rate."""
    return GRPOConfig(
        output_dir=str(out),
        max_steps=batches * UPDATES,
        per_device_train_batch_size=PROMPTS * GROUP // UPDATES,
        steps_per_generation=UPDATES,
        gradient_accumulation_steps=1,
        num_generations=GROUP,
        num_generations_eval=1,
        per_device_eval_batch_size=128,
        eval_strategy="steps",
        eval_steps=batches * UPDATES,
        eval_on_start=True,
        max_completion_length=512,
        loss_type="dapo",
        learning_rate=1.5e-4,
        lr_scheduler_type="constant",
        beta=0.0,
        seed=seed,
        logging_steps=1,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        disable_tqdm=True,
    )


def train(out: Path, *, batches: int, tasks: int, seed: int = 0) -> dict[str, Any]:
    """One run; success before and after, and what it took."""
    play = EnvRollout(make("FrozenLake"), Rollout(max_tokens=64))
    first = HELD_OUT_SEEDS + seed * 10_000_000
    trainer = SNRGRPOTrainer(
        model=str(MODEL),
        reward_funcs=env_return,
        rollout_func=play,
        args=arguments(out, batches, seed),
        train_dataset=play.dataset(range(first, first + batches * PROMPTS)),
        eval_dataset=play.dataset(range(tasks)),
        snr=SNRSettings(),
    )
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    records = RunDirectory.open(out / "ragen2").records()
    curve = [(one.step, one.metrics) for one in records if "eval/success" in one.metrics]
    before, after = curve[0][1], curve[-1][1]
    kept = [one.metrics["filter/kept_ratio"] for one in records if one.kept]
    return {
        "seed": seed,
        "tasks": tasks,
        "generation_batches": batches,
        "updates": curve[-1][0],
        "success_before": before["eval/success"],
        "success_after": after["eval/success"],
        "gain": after["eval/success"] - before["eval/success"],
        "interval_before": [before["eval/success_low"], before["eval/success_high"]],
        "interval_after": [after["eval/success_low"], after["eval/success_high"]],
        "mean_kept_ratio": sum(kept) / len(kept),
        "last_regime": records[-1].regime,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Train each seed, print the rows, and publish them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--publish", action="store_true", help="write results/ too")
    given = parser.parse_args()
    rows = [
        train(given.out / f"seed{seed}", batches=given.batches, tasks=given.tasks, seed=seed)
        for seed in given.seeds
    ]
    about = {
        "trl": trl.__version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "asked_gain": GAIN,
    }
    text = json.dumps({"about": about, "runs": rows}, indent=1) + "\n"
    print(text)
    if given.publish:
        write_atomically(RESULTS, text)


if __name__ == "__main__":
    main()
