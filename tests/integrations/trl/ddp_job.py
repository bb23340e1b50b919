"""The same two TRL steps in one process or, under torchrun, in two: ``ddp_job.py OUT``.

Three groups of eight rows: with two processes the middle group lies half on each.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import jobs
import torch

from ragen2.config import Stops
from ragen2.envs import make
from ragen2.integrations.trl import EnvRollout, SNRGRPOTrainer, SNRSettings, env_return
from ragen2.rollout import Rollout

SEEDS = range(200_000, 200_006)
LOSS_TYPES = ("dapo", "grpo")
STOPPED = "stopped"


def trainer_of(out: Path, reward: Any, snr: SNRSettings, **changes: Any) -> SNRGRPOTrainer:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    play = EnvRollout(make("FrozenLake", max_turns=2), Rollout(max_tokens=24))
    return SNRGRPOTrainer(
        model=str(jobs.EMBEDDED),
        reward_funcs=reward,
        rollout_func=play,
        args=jobs.arguments(
            out,
            num_generations=8,
            per_device_train_batch_size=24 // processes,
            entropy_coef=0.0,
            **changes,
        ),
        train_dataset=play.dataset(SEEDS),
        processing_class=jobs.tokenizer(),
        snr=snr,
    )


def train(out: Path, loss_type: str) -> None:
    settings = {"loss_type": loss_type, "max_steps": 2, "learning_rate": 0.05}
    trainer = trainer_of(out, env_return, SNRSettings(), **settings)
    trainer.train()
    if trainer.accelerator.is_main_process:
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(out / "trained")
    if trainer.accelerator.num_processes > 1:
        mine = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        both = trainer.accelerator.gather(mine[None])
        assert torch.equal(both[0], both[1]), "the processes have come apart"


def nothing(ragen2_return: list[float], **_: Any) -> list[float]:
    return [0.0] * len(ragen2_return)


def stop_early(out: Path) -> None:
    """Step 1 keeps nothing, so that training ends after step 2; a process that went on would hang."""
    stops = Stops(empty_steps=1, variance_steps=0, success_evaluations=0)
    trainer = trainer_of(out, nothing, SNRSettings(diagnostics=(), stops=stops), max_steps=4)
    trainer.train()
    steps = trainer.accelerator.gather(torch.tensor([trainer.state.global_step]))
    assert steps.tolist() == [2] * trainer.accelerator.num_processes


if __name__ == "__main__":
    for name in LOSS_TYPES:
        train(Path(sys.argv[1]) / name, name)
    stop_early(Path(sys.argv[1]) / STOPPED)
    if torch.distributed.is_initialized():  # left to the end of Python, gloo's threads may abort it
        torch.distributed.destroy_process_group()
