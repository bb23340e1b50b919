"""The torch learner: AdamW over micro-batches whose cut cannot change the gradient."""

from __future__ import annotations

import copy
import math
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from ragen2.algorithms.functions import kl_estimate
from ragen2.backends.adapters import save_merged
from ragen2.backends.device import compute_dtype, disk_errors, side_by_side
from ragen2.backends.distributed.parallelism import SINGLE_PROCESS, Parallelism, whole_tensor
from ragen2.backends.four_bits import (
    FourBitLinear,
    pack_linear_layers,
    refuse_four_bits_without_lora,
)
from ragen2.backends.frozen import hold_frozen
from ragen2.backends.learner.critic import Critic
from ragen2.backends.learner.forward import LogprobForward
from ragen2.backends.learner.logprobs import SplitModel, base_of
from ragen2.backends.learner.microbatches import Microbatch, random_parts
from ragen2.backends.learner.optimiser import (
    BadSteps,
    TensorGradient,
    adamw,
    add_lora,
    home_of,
    lr_share,
    step_within_memory,
)
from ragen2.backends.memory import give_back_spare
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.backends.vision.embedding import ImageEmbedder, tower_weights
from ragen2.errors import ConfigError, RunError
from ragen2.policy import CriticSettings, KLEstimator, LossInputs, Objective
from ragen2.types import FloatArray, Sample, Update

OPTIMISER_FILE = "optimizer.pt"
DAMAGED = (
    OSError,
    RuntimeError,
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    SafetensorError,
    pickle.UnpicklingError,
)
"""What torch and safetensors raise over files that are cut, mixed up or not theirs."""


class TorchLearner:
    """Holds the trained weights and their optimiser; ``HFPolicy`` samples from the same weights."""

    def __init__(
        self,
        network: Any,
        tokenizer: TemplateTokenizer,
        model: ModelSettings,
        settings: LearnerSettings,
        *,
        seed: int,
        parallelism: Parallelism = SINGLE_PROCESS,
    ) -> None:
        self.tokenizer = tokenizer
        self.parallelism = parallelism
        self.settings = settings
        self.seed = seed
        if tokenizer.images is not None and model.vision == "frozen":
            for weight in tower_weights(network):
                weight.requires_grad_(False)
        device = next(network.parameters()).device
        dtype = compute_dtype(model.precision, device)
        if model.frozen == "nf4":
            refuse_four_bits_without_lora(model)
            pack_linear_layers(network, dtype, device)
        self.network = add_lora(network, model, seed) if model.lora_rank else network
        self.is_lora = model.lora_rank > 0
        if self.is_lora and dtype is not torch.float32:
            hold_frozen(base_of(self.network), dtype)
        self.split_model = SplitModel(
            base_of(self.network), self._embedder(is_trained=model.vision == "trained")
        )
        self.forward = LogprobForward(self.split_model, settings, dtype, parallelism)
        self.num_updates = 0
        self._lr_scale = 1.0
        self._reference: LogprobForward | None = None
        self._critic: Critic | None = None
        self._total_updates = 0
        self._bad = BadSteps("policy", settings.max_bad_updates, "lower learner.lr")
        self.optimiser = adamw(
            [parameter for parameter in self.network.parameters() if parameter.requires_grad],
            lr=settings.lr,
            weight_decay=settings.weight_decay,
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device  # type: ignore[no-any-return]  # untyped HF model

    @property
    def whole(self) -> Any:
        """A model with all weights as they are now: to sample from, to copy, to save."""
        return self.network

    @property
    def embedder(self) -> ImageEmbedder | None:
        """How the model reads images; None for one that reads text only."""
        return self.split_model.embedder

    @property
    def critic(self) -> Critic | None:
        """The critic beside the model, if one was started."""
        return self._critic

    def keep_reference(self) -> None:
        """Remember the weights as they are now: the model that KL is measured against."""
        if not self.is_lora:
            frozen = copy.deepcopy(self.whole)
            frozen.requires_grad_(False)
            never_trained = self.settings.model_copy(update={"gradient_checkpointing": False})
            images = self.tokenizer.images
            split_model = SplitModel(
                frozen, None if images is None else ImageEmbedder(frozen, images)
            )
            self._reference = LogprobForward(split_model, never_trained, self.forward.dtype)

    def set_spare(self, spare: Callable[[], bool]) -> None:
        """Whom to ask for memory when it runs out; says whether there was any to give back."""
        self.forward.spare = spare
        if self._critic is not None:
            self._critic.forward.spare = spare

    def set_lr_scale(self, scale: float) -> None:
        """Multiply the learning rate of the updates to come."""
        self._lr_scale = scale

    def set_total_updates(self, total: int) -> None:
        """How many optimiser steps the run will make: what a falling learning rate falls over."""
        self._total_updates = total

    def start_critic(self, lr: float) -> None:
        """Put a critic beside the model; it starts from the weights as they are now, in float32."""
        if any(isinstance(module, FourBitLinear) for module in self.network.modules()):
            raise ConfigError(
                'model.frozen is "nf4", but a critic trains whole weights; leave it out, or use an '
                "algorithm without a critic"
            )
        plain = copy.deepcopy(self.whole).float().merge_and_unload() if self.is_lora else self.whole
        images, replicas = self.tokenizer.images, self.parallelism.replicas
        self._critic = Critic(plain, self.settings, lr, self.forward.dtype, images, replicas)
        self._critic.forward.spare = self.forward.spare

    def values(self, samples: Sequence[Sample]) -> list[FloatArray]:
        """The critic's value before each written token."""
        return self._need_critic().values(samples)

    def update_critic(
        self, samples: Sequence[Sample], settings: CriticSettings
    ) -> dict[str, float]:
        """Train the critic towards each sample's returns."""
        return self._need_critic().update(samples, settings)

    @torch.no_grad()
    def kl_to_reference(
        self, samples: Sequence[Sample], estimator: KLEstimator
    ) -> list[FloatArray]:
        """KL to the starting model at each written token, under the log-probs it was sampled with."""

        def kl_of(batch: Microbatch) -> torch.Tensor:
            with self.forward.precision():
                reference = self._reference_logp(batch)
            return kl_estimate(batch.old_logp_N, reference, estimator)

        def run() -> dict[int, FloatArray]:
            with self._ready():
                return self.forward.by_sample(samples, kl_of)

        joined = self.parallelism.join(self.forward.within_memory(run))
        return [joined[row] for row in range(len(samples))]

    def update(self, samples: Sequence[Sample], objective: Objective, *, scale: float) -> Update:
        """``epochs`` passes of ``minibatches`` optimiser steps each over all samples.

        Metrics are means over the steps taken. A step whose loss or gradient is not finite is left
        out and counted; when all are, there is nothing else to report.
        """
        totals: dict[str, float] = defaultdict(float)
        num_tokens = sum(int(sample.loss_mask_T.sum()) for sample in samples)
        taken = skipped = 0
        for epoch in range(self.settings.epochs):
            for part in random_parts(
                len(samples), self.settings.minibatches, self.seed, self.num_updates, epoch
            ):
                minibatch = [samples[index] for index in part]
                self._set_lr()
                found = self._step(minibatch, objective, scale)
                for name, value in (found or {}).items():
                    totals[name] += value
                taken, skipped = taken + (found is not None), skipped + (found is None)
                self.num_updates += 1
                self._bad.count(is_bad=found is None)
        metrics = {name: value / taken for name, value in totals.items()}
        metrics |= {"skipped_steps": skipped, "lr": self.optimiser.param_groups[0]["lr"]}
        give_back_spare(self.device)
        return Update(metrics, num_tokens, taken)

    def gradients(
        self, samples: Sequence[Sample], objective: Objective, *, scale: float = 1.0
    ) -> dict[str, float]:
        """Fill ``.grad`` with the gradient of the loss over all samples; return its parts.

        Losses are sums as the objective weighs tokens; all other parts are means over tokens by the
        same weights, so that their unit does not depend on the aggregation.
        """
        lengths = [int(sample.loss_mask_T.sum()) for sample in samples]
        weights = objective.token_weights(lengths)
        total = float(weights @ np.asarray(lengths, dtype=np.float64))

        def run() -> dict[str, torch.Tensor]:
            self.optimiser.zero_grad(set_to_none=True)
            with self._ready():
                batches = (batch for _, batch in self.forward.batches(samples, weights))
                run_all = (
                    self._backward_in_threads
                    if self.forward.is_threaded
                    else self._backward_in_turn
                )
                return run_all(batches, objective, scale * self.parallelism.loss_factor)

        sums = self.forward.within_memory(run)
        self.parallelism.sum_gradients(self._trained)
        # The only wait for the device; a process that had no micro-batch has no sums.
        values = torch.stack(list(sums.values())).tolist() if sums else []
        whole = self.parallelism.sum_numbers(dict(zip(sums, values, strict=True)))
        return {
            name: value if name.endswith("loss") else value / total for name, value in whole.items()
        }

    def gradient(self, samples: Sequence[Sample], objective: Objective) -> TensorGradient:
        """The gradient over all samples as one vector, in the order of the trained parameters."""
        self.gradients(samples, objective)
        home = home_of(self._trained)
        parts = [
            torch.zeros(p.numel(), device=home)
            if p.grad is None
            else whole_tensor(p.grad.detach()).to(home, torch.float32).flatten()
            for p in self._trained
        ]
        self.optimiser.zero_grad(set_to_none=True)
        return TensorGradient(torch.cat(parts))

    def save_model(self, folder: Path) -> None:
        """A folder that ``from_pretrained`` opens; LoRA adapters are merged into the weights, in float32."""
        with disk_errors():
            if self.is_lora:
                save_merged(self.network, folder)
            else:
                self.whole.save_pretrained(folder)
            self.tokenizer.save(folder)

    def save(self, folder: Path) -> None:
        """``save_model`` plus the optimiser's state. Of several processes the first one writes."""
        moments = self._optimiser_state()
        if self.parallelism.rank:
            return
        self.save_model(folder)
        state = {
            "optimiser": moments,
            "num_updates": self.num_updates,
            "bad_in_a_row": self._bad.in_a_row,
        }
        if self.is_lora:
            state["trained"] = {
                name: value for name, value in self.network.state_dict().items() if "lora_" in name
            }
        with disk_errors(), (folder / OPTIMISER_FILE).open("wb") as file:
            torch.save(state, file)
        if self._critic is not None:
            self._critic.save(folder)

    def load(self, folder: Path) -> None:
        """Restore exactly what ``save`` wrote."""
        try:
            state = torch.load(folder / OPTIMISER_FILE, map_location=self.device, weights_only=True)
            if self._critic is not None:
                self._critic.load(folder)
            if self.is_lora:
                self.network.load_state_dict({**self.network.state_dict(), **state["trained"]})
            else:
                saved = type(self.network).from_pretrained(folder, dtype=torch.float32)
                self._load_weights(saved.state_dict())
            self._load_optimiser(state["optimiser"])
            self.num_updates = int(state["num_updates"])
            self._bad.in_a_row = int(state.get("bad_in_a_row", 0))  # older checkpoints lack it
        except DAMAGED as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            if isinstance(error, KeyError):
                reason = f"it lacks {reason}"
            if isinstance(
                error, pickle.UnpicklingError
            ):  # torch's own words are how to run the code
                reason = (
                    "it is damaged, or a pickle with more than tensors in it, which could run code"
                )
            raise RunError(f"checkpoint {folder} cannot be read: {reason}") from error

    def describe(self) -> Mapping[str, str]:
        """Facts for the log."""
        # In 4 bits, two weights are one byte.
        total = sum(p.numel() * (1 + (p.dtype is torch.uint8)) for p in self.network.parameters())
        trained = sum(p.numel() for p in self.network.parameters() if p.requires_grad)
        return {
            "architecture": str(self.network.config.model_type),
            "parameters": f"{total:,}",
            "trained": f"{trained:,}",
            "device": str(self.device),
            **({"processes": f"{self.parallelism.size}"} if self.parallelism.size > 1 else {}),
        }

    def _embedder(self, *, is_trained: bool) -> ImageEmbedder | None:
        images = self.tokenizer.images
        return (
            None
            if images is None
            else ImageEmbedder(base_of(self.network), images, is_trained=is_trained)
        )

    @property
    def _trained(self) -> list[torch.nn.Parameter]:
        return [p for group in self.optimiser.param_groups for p in group["params"]]

    def _optimiser_state(self) -> dict[str, Any]:
        """What a checkpoint holds of the optimiser; all processes must ask together."""
        return self.optimiser.state_dict()

    def _load_optimiser(self, state: dict[str, Any]) -> None:
        self.optimiser.load_state_dict(state)

    def _load_weights(self, state: Mapping[str, torch.Tensor]) -> None:
        self.network.load_state_dict(state)

    def _need_critic(self) -> Critic:
        if self._critic is None:
            raise RunError("this algorithm needs a critic; call start_critic() before training")
        return self._critic

    def _set_lr(self) -> None:
        share = lr_share(self.settings, self.num_updates, self._total_updates)
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.lr * share * self._lr_scale

    def _step(
        self, samples: Sequence[Sample], objective: Objective, scale: float
    ) -> dict[str, float] | None:
        """One optimiser step; None when loss or gradient is not finite and nothing was changed."""
        parts = self.gradients(samples, objective, scale=scale)
        norm = float(
            whole_tensor(torch.nn.utils.clip_grad_norm_(self._trained, self.settings.grad_clip))
        )
        is_usable = math.isfinite(norm) and math.isfinite(parts["loss"])
        if is_usable:
            step_within_memory(self.optimiser, self.forward.spare)
        self.optimiser.zero_grad(set_to_none=True)
        measured = {"grad_norm": norm, "padding": self.forward.padding(samples)}
        return {**parts, **measured} if is_usable else None

    def _backward_in_turn(
        self, batches: Iterator[Microbatch], objective: Objective, scale: float
    ) -> dict[str, torch.Tensor]:
        """Add the gradients of micro-batches to ``.grad``; sums for the log."""
        sums: dict[str, torch.Tensor] = {}
        for batch in batches:
            with self.forward.precision():
                loss, found = self._loss(batch, objective)
            (loss * scale).backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
            sums = _added(sums, found)
        return sums

    def _backward_in_threads(
        self, batches: Iterator[Microbatch], objective: Objective, scale: float
    ) -> dict[str, torch.Tensor]:
        """As in turn, a thread per micro-batch; their gradients are added in the order of the batches."""
        trained = self._trained

        def work(
            batch: Microbatch,
        ) -> tuple[tuple[torch.Tensor | None, ...], dict[str, torch.Tensor]]:
            with torch.enable_grad(), self.forward.precision():
                loss, found = self._loss(batch, objective)
                return torch.autograd.grad(loss * scale, trained, allow_unused=True), found

        sums: dict[str, torch.Tensor] = {}
        for grads, found in side_by_side(work, list(batches)):
            sums = _added(sums, found)
            for parameter, grad in zip(trained, grads, strict=True):
                if grad is not None:
                    parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
        return sums

    def _loss(
        self, batch: Microbatch, objective: Objective
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of a micro-batch and weighted sums for the log, all still on the device."""
        logp, entropy = self.forward.logprobs(batch)
        reference = self._reference_logp(batch) if objective.needs_reference else None
        inputs = LossInputs(logp, batch.old_logp_N, batch.advantages_N, entropy, reference)
        loss = objective.loss(inputs)
        total = (batch.weights_N * loss.total_N).sum()
        with torch.no_grad():
            logged = {**loss.parts, "loss": loss.total_N, "entropy": entropy}
            logged["sampler_mismatch"] = (logp - batch.old_logp_N).abs()
            sums = {n: (batch.weights_N * part).sum().double() for n, part in logged.items()}
        return total, sums

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Around all passes of the policy and of its reference."""
        with self.forward.ready(), self._reference.ready() if self._reference else nullcontext():
            yield

    @torch.no_grad()
    def _reference_logp(self, batch: Microbatch) -> torch.Tensor:
        if self.is_lora:
            # Threads share Hugging Face's layers, so there they are not told; our own need not be.
            is_told = nullcontext() if self.forward.is_fused else self.network.disable_adapter()
            with is_told:
                return self.forward.bare_logprobs(batch)[0]
        if self._reference is None:
            raise RunError("KL needs the starting model; call keep_reference() before training")
        return self._reference.logprobs(batch)[0]


def _added(sums: dict[str, torch.Tensor], more: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: sums[name] + value if sums else value for name, value in more.items()}
