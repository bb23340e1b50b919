"""The same two TRL steps in one process or, under torchrun, in two: ``ddp_job.py OUT``.

Three groups of eight rows: with two processes the middle group lies half on each.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import jobs
import torch

from ragen2.envs import make
from ragen2.integrations.trl import EnvRollout, SNRGRPOTrainer, SNRSettings, env_return
from ragen2.rollout import Rollout

SEEDS = range(200_000, 200_006)
LOSS_TYPES = ("dapo", "grpo")


def train(out: Path, loss_type: str) -> None:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    play = EnvRollout(make("FrozenLake", max_turns=2), Rollout(max_tokens=24))
    trainer = SNRGRPOTrainer(
        model=str(jobs.EMBEDDED),
        reward_funcs=env_return,
        rollout_func=play,
        args=jobs.arguments(
            out,
            loss_type=loss_type,
            num_generations=8,
            per_device_train_batch_size=24 // processes,
            max_steps=2,
            learning_rate=0.05,
            entropy_coef=0.0,
        ),
        train_dataset=play.dataset(SEEDS),
        processing_class=jobs.tokenizer(),
        snr=SNRSettings(),
    )
    trainer.train()
    if trainer.accelerator.is_main_process:
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(out / "trained")
    if processes > 1:
        mine = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        both = trainer.accelerator.gather(mine[None])
        assert torch.equal(both[0], both[1]), "the processes have come apart"


if __name__ == "__main__":
    for name in LOSS_TYPES:
        train(Path(sys.argv[1]) / name, name)
