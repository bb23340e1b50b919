"""What an update trains and how: LoRA adapters, AdamW, its learning rate, bad steps, gradients as vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import increment_version

from ragen2.backends.device import free_memory
from ragen2.backends.memory import until_it_fits
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.errors import DependencyError, RunError
from ragen2.seeding import stream_key

VECTORS = 10
"""Room for as many is looked for: a probe holds a handful at once."""
CHUNK = 1 << 24
"""Numbers that are widened at a time: a copy of a whole gradient in double precision may not fit."""


@dataclass(slots=True)
class BadSteps:
    """Steps in a row whose loss or gradient was not finite. ``limit`` 0 allows any number."""

    whose: str
    limit: int
    cure: str
    in_a_row: int = 0

    def count(self, *, is_bad: bool) -> None:
        """Note a step; at the limit the run ends."""
        self.in_a_row = self.in_a_row + 1 if is_bad else 0
        if self.limit and self.in_a_row >= self.limit:
            raise RunError(
                f"{self.limit} updates of the {self.whose} in a row had a loss or gradient that is not "
                f"finite; {self.cure} or go on from an earlier checkpoint"
            )


def adamw(
    parameters: Iterable[torch.nn.Parameter], *, lr: float, weight_decay: float
) -> torch.optim.AdamW:
    """Fused on CPU and GPU: a step reads each weight once instead of once per operation."""
    optimiser = torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True)
    optimiser.register_step_post_hook(_tell_that_weights_changed)
    return optimiser


def _tell_that_weights_changed(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    """The fused step leaves versions as they are, and samplers know new weights by their versions."""
    increment_version([p for group in optimiser.param_groups for p in group["params"]])


def step_within_memory(optimiser: torch.optim.Optimizer, spare: Callable[[], bool]) -> None:
    """A step of AdamW; where its averages find no memory at the first, ``spare`` is asked for some."""

    def step() -> None:
        for parameter, averages in list(optimiser.state.items()):
            if "exp_avg_sq" not in averages:  # memory ran out while they were made
                del optimiser.state[parameter]
        optimiser.step()

    until_it_fits(step, lambda: "less kept by the sampler" if spare() else "")


def lr_share(settings: LearnerSettings, done: int, total: int) -> float:
    """Share of ``lr`` at the update after ``done``: up over the warm-up, then as the schedule says.

    A falling schedule ends at ``lr_end`` of ``lr`` with the last update; without a total it stays up.
    """
    warmup = settings.warmup_steps
    if done < warmup:
        return (done + 1) / warmup
    if settings.schedule == "constant" or total <= warmup + 1:
        return 1.0
    progress = min(1.0, (done - warmup) / (total - 1 - warmup))
    is_linear = settings.schedule == "linear"
    fall = progress if is_linear else 0.5 * (1.0 - math.cos(math.pi * progress))
    return 1.0 - (1.0 - settings.lr_end) * fall


@dataclass(frozen=True, slots=True, eq=False)
class TensorGradient:
    """A gradient as one long vector: one number per trained weight."""

    values: torch.Tensor

    def dot(self, other: TensorGradient) -> float:
        """Inner product, summed in double precision."""
        mine, others = (torch.split(each.values, CHUNK) for each in (self, other))
        parts = [
            torch.dot(a.double(), b.to(a.device, torch.float64))
            for a, b in zip(mine, others, strict=True)
        ]
        return float(torch.stack(parts).sum())

    def added_to(self, total: TensorGradient | None, factor: float) -> TensorGradient:
        """``factor`` times this, added to a sum, which is changed; without one, a new sum."""
        if total is None:
            return TensorGradient(self.values * factor)
        total.values.add_(self.values.to(total.values.device), alpha=factor)
        return total


def home_of(trained: Sequence[torch.Tensor]) -> torch.device:
    """Where gradients of these parameters are kept: their device, or the host where that is too full."""
    device = trained[0].device
    need = VECTORS * sum(p.numel() for p in trained) * torch.float32.itemsize
    fits = device.type != "cuda" or free_memory(device) >= need
    return device if fits else torch.device("cpu")


def add_lora(network: Any, model: ModelSettings, seed: int) -> Any:
    """Wrap the model so that only low-rank adapters of its linear layers are trained."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise DependencyError("LoRA needs peft; pip install 'ragen2[lora]'") from error
    settings = LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=targets(network, model),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(stream_key(seed, "lora") % 2**63)
        return get_peft_model(network, settings)


def targets(network: Any, model: ModelSettings) -> str | list[str]:
    """Which layers get adapters: all linear ones, or those of the language model if the rest is frozen."""
    decoder = network.get_decoder()
    if model.vision == "trained" or not reads_images(network):
        return "all-linear"
    start = next(name for name, module in network.named_modules() if module is decoder)
    return [
        f"{start}.{name}"
        for name, module in decoder.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]


def reads_images(network: Any) -> bool:
    """Whether a model has anything before its language model that images go through."""
    return hasattr(network, "get_image_features") and hasattr(network.config, "vision_config")
