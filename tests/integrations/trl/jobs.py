"""Small real TRL jobs on the CPU whose completions are given, so that two of them can be compared."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig

EMBEDDED = Path(__file__).parents[3] / "src" / "ragen2" / "models" / "ragen2-tiny"
THOUGHTS = ["go down the lake", "the hole is right", "left is safe", "up and away"]
MOVES = ["down", "right", "left", "up"]
GROUP = 4


def prompt(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Task {number}: where to?"}]


def text(number: int, member: int) -> str:
    """What member ``member`` of a task writes: other words and another length for each."""
    words = " ".join(THOUGHTS[(number + i) % 4] for i in range(1 + member % 3))
    return f"<think>{words} {member}</think><answer>{MOVES[member % 4]}</answer>"


class Scripted:
    """A rollout_func that writes ``text``; the task and member of a row follow from its place."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        first = trainer.accelerator.process_index * len(prompts)
        encode = self.tokenizer.encode
        found: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
        for place, one in enumerate(prompts):
            number = int(one[-1]["content"].split()[1].strip(":"))
            # Piece by piece: the tags are where a reader of the text would cut it.
            pieces = re.split("(</?think>)", text(number, (first + place) % size))
            ids = [i for piece in pieces for i in encode(piece, add_special_tokens=False)]
            found["completion_ids"].append([*ids, self.tokenizer.eos_token_id])
            found["logprobs"].append([0.0] * (len(ids) + 1))
            found["prompt_ids"].append(
                self.tokenizer.apply_chat_template(
                    one, add_generation_prompt=True, tokenize=True, return_dict=False
                )
            )
        return found


def paid(rewards: dict[int, list[float]]) -> Any:
    """A reward function that pays by task and by the member that a completion is of."""

    def reward(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        values = []
        for one, completion in zip(prompts, completions, strict=True):
            number = int(one[-1]["content"].split()[1].strip(":"))
            member = int(completion[0]["content"].partition("</think>")[0].rstrip()[-1])
            values.append(rewards[number][member])
        return values

    return reward


def tasks(*numbers: int) -> Dataset:
    return Dataset.from_dict({"prompt": [prompt(number) for number in numbers]})


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED)


def moved_model(folder: Path) -> Any:
    """The embedded model, a little off its saved weights: KL to the saved ones then has a gradient."""
    copied = folder / "model"
    if not copied.exists():
        shutil.copytree(EMBEDDED, copied)
    model = AutoModelForCausalLM.from_pretrained(copied, dtype=torch.float32)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.02 * torch.randn(weights.shape, generator=noise) * weights.std())
    return model


def arguments(folder: Path, **changes: Any) -> GRPOConfig:
    settings: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "max_steps": 1,
        "num_generations": GROUP,
        "max_completion_length": 64,
        "learning_rate": 0.0,
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "beta": 0.1,
        "entropy_coef": 0.05,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "shuffle_dataset": False,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    return GRPOConfig(**(settings | changes))


class Gradients(TrainerCallback):
    """Keeps the gradient of every optimiser step as one vector."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, state, control
        grads = [p.grad for p in kwargs["model"].parameters() if p.grad is not None]
        self.seen.append(torch.cat([grad.detach().flatten().clone() for grad in grads]))


def run(trainer_class: Any, folder: Path, data: Dataset, rewards: Any, **changes: Any) -> Any:
    """Train; the trainer comes back with ``gradients``."""
    extra = {name: changes.pop(name) for name in ("snr",) if name in changes}
    model = changes.pop("model", None) or moved_model(folder)
    resume = changes.pop("resume", None)
    words = changes.pop("tokenizer", None) or tokenizer()
    rollout = changes.pop("rollout_func", Scripted(words))
    kept = Gradients()
    trainer = trainer_class(
        model=model,
        reward_funcs=rewards,
        args=arguments(folder, **changes),
        train_dataset=data,
        processing_class=words,
        rollout_func=rollout,
        callbacks=[kept],
        **extra,
    )
    trainer.train(resume_from_checkpoint=resume)
    trainer.gradients = kept.seen
    return trainer
