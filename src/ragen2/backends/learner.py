"""The torch learner: AdamW over micro-batches whose cut cannot change the gradient."""

from __future__ import annotations

import copy
import math
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from ragen2.algorithms.base import LossInputs, Objective
from ragen2.backends.chat import TemplateTokenizer
from ragen2.backends.logprobs import Trunk, chosen_logprobs
from ragen2.backends.saving import disk_errors
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.errors import DependencyError, RunError
from ragen2.seeding import stream, stream_key
from ragen2.types import FloatArray, Sample, Update

OPTIMISER_FILE = "optimizer.pt"


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
    ) -> None:
        self.tokenizer = tokenizer
        self.settings = settings
        self.seed = seed
        self.network = add_lora(network, model, seed) if model.lora_rank else network
        self.is_lora = model.lora_rank > 0
        self.trunk = Trunk(_inner(self.network))
        self.num_updates = 0
        self._lr_scale = 1.0
        self._reference: Trunk | None = None
        self.optimiser = torch.optim.AdamW(
            [parameter for parameter in self.network.parameters() if parameter.requires_grad],
            lr=settings.lr,
            weight_decay=settings.weight_decay,
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device  # type: ignore[no-any-return]  # untyped HF model

    def keep_reference(self) -> None:
        """Remember the weights as they are now: the model that KL is measured against."""
        if not self.is_lora:
            frozen = copy.deepcopy(self.network)
            frozen.requires_grad_(False)
            self._reference = Trunk(frozen)

    def set_lr_scale(self, scale: float) -> None:
        """Multiply the learning rate of the updates to come."""
        self._lr_scale = scale

    def update(self, samples: Sequence[Sample], objective: Objective, *, scale: float) -> Update:
        """``epochs`` passes of ``minibatches`` optimiser steps each over all samples.

        Metrics are means over the steps taken. A step whose loss or gradient is not finite is left
        out and counted; when all are, there is nothing else to report.
        """
        totals: dict[str, float] = defaultdict(float)
        num_tokens = sum(int(sample.loss_mask_T.sum()) for sample in samples)
        taken = skipped = 0
        for epoch in range(self.settings.epochs):
            for part in self._minibatches(len(samples), epoch):
                minibatch = [samples[index] for index in part]
                self._set_lr()
                found = self._step(minibatch, objective, scale)
                for name, value in (found or {}).items():
                    totals[name] += value
                taken, skipped = taken + (found is not None), skipped + (found is None)
                self.num_updates += 1
        metrics = {name: value / taken for name, value in totals.items()}
        metrics |= {"skipped_steps": skipped, "lr": self.optimiser.param_groups[0]["lr"]}
        return Update(metrics, num_tokens, taken)

    def gradients(
        self, samples: Sequence[Sample], objective: Objective, *, scale: float = 1.0
    ) -> dict[str, float]:
        """Fill ``.grad`` with the gradient of the loss over all samples; return its parts."""
        self.optimiser.zero_grad(set_to_none=True)
        lengths = [int(sample.loss_mask_T.sum()) for sample in samples]
        weights = objective.token_weights(lengths)
        parts: dict[str, float] = defaultdict(float)
        for rows in micro_batches(
            [len(sample.ids_T) for sample in samples], self.settings.micro_tokens
        ):
            batch = _Batch.of([samples[row] for row in rows], weights[rows], self.device)
            with self._precision():
                loss, found = self._loss(batch, objective)
            (loss * scale).backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
            for name, value in found.items():
                parts[name] += value
        return dict(parts)

    def save_model(self, folder: Path) -> None:
        """A folder that ``from_pretrained`` opens; LoRA adapters are merged into the weights."""
        plain = copy.deepcopy(self.network).merge_and_unload() if self.is_lora else self.network
        with disk_errors():
            plain.save_pretrained(folder)
            self.tokenizer.hf.save_pretrained(folder)

    def save(self, folder: Path) -> None:
        """``save_model`` plus the optimiser's state."""
        self.save_model(folder)
        state = {"optimiser": self.optimiser.state_dict(), "num_updates": self.num_updates}
        if self.is_lora:
            state["trained"] = {
                name: value for name, value in self.network.state_dict().items() if "lora_" in name
            }
        with disk_errors(), (folder / OPTIMISER_FILE).open("wb") as file:
            torch.save(state, file)

    def load(self, folder: Path) -> None:
        """Restore exactly what ``save`` wrote."""
        try:
            state = torch.load(folder / OPTIMISER_FILE, map_location=self.device, weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise RunError(f"checkpoint {folder} cannot be read: {reason}") from error
        if self.is_lora:
            self.network.load_state_dict({**self.network.state_dict(), **state["trained"]})
        else:
            saved = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            self.network.load_state_dict(saved.state_dict())
        self.optimiser.load_state_dict(state["optimiser"])
        self.num_updates = int(state["num_updates"])

    def describe(self) -> Mapping[str, str]:
        """Facts for the log."""
        total = sum(parameter.numel() for parameter in self.network.parameters())
        trained = sum(p.numel() for p in self.network.parameters() if p.requires_grad)
        return {
            "architecture": str(self.network.config.model_type),
            "parameters": f"{total:,}",
            "trained": f"{trained:,}",
            "device": str(self.device),
        }

    def _minibatches(self, count: int, epoch: int) -> list[list[int]]:
        if self.settings.minibatches == 1:
            return [list(range(count))]
        order = stream(self.seed, "minibatches", self.num_updates, epoch).permutation(count)
        parts = np.array_split(order, min(self.settings.minibatches, count))
        return [part.tolist() for part in parts]

    def _set_lr(self) -> None:
        warmup = self.settings.warmup_steps
        share = min(1.0, (self.num_updates + 1) / warmup) if warmup else 1.0
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.lr * share * self._lr_scale

    def _step(
        self, samples: Sequence[Sample], objective: Objective, scale: float
    ) -> dict[str, float] | None:
        """One optimiser step; None when loss or gradient is not finite and nothing was changed."""
        parts = self.gradients(samples, objective, scale=scale)
        trained = [p for group in self.optimiser.param_groups for p in group["params"]]
        norm = float(torch.nn.utils.clip_grad_norm_(trained, self.settings.grad_clip))
        is_usable = math.isfinite(norm) and math.isfinite(parts["loss"])
        if is_usable:
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return {**parts, "grad_norm": norm} if is_usable else None

    def _loss(self, batch: _Batch, objective: Objective) -> tuple[torch.Tensor, dict[str, float]]:
        logp, entropy = self._chosen(self.trunk, batch)
        reference = None
        if objective.kl_coefficient > 0.0:
            reference = self._reference_logp(batch)
        inputs = LossInputs(logp, batch.old_logp_N, batch.advantages_N, entropy, reference)
        loss = objective.loss(inputs)
        total = (batch.weights_N * loss.total_N).sum()
        with torch.no_grad():
            logged = {**loss.parts, "loss": loss.total_N, "entropy": entropy}
            logged["sampler_mismatch"] = (logp - batch.old_logp_N).abs()
            parts = {name: float((batch.weights_N * part).sum()) for name, part in logged.items()}
        return total, parts

    def _reference_logp(self, batch: _Batch) -> torch.Tensor:
        with torch.no_grad():
            if self.is_lora:
                with self.network.disable_adapter():
                    return self._chosen(self.trunk, batch)[0]
            if self._reference is None:
                raise RunError("KL needs the starting model; call keep_reference() before training")
            return self._chosen(self._reference, batch)[0]

    def _chosen(self, trunk: Trunk, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, head, _ = trunk(batch.ids, batch.mask, use_cache=False)
        rows = hidden[:, :-1][batch.loss_mask[:, 1:]]
        return chosen_logprobs(rows, batch.targets_N, head, batch.temperature)

    def _precision(self) -> torch.autocast:
        is_gpu = self.device.type == "cuda"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_gpu)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Samples as right-padded tensors; suffix N counts loss positions in row-major order."""

    ids: torch.Tensor
    mask: torch.Tensor
    loss_mask: torch.Tensor
    targets_N: torch.Tensor
    old_logp_N: torch.Tensor
    advantages_N: torch.Tensor
    weights_N: torch.Tensor
    temperature: float

    @classmethod
    def of(cls, samples: Sequence[Sample], weights: FloatArray, device: torch.device) -> _Batch:
        width = max(len(sample.ids_T) for sample in samples)
        ids = np.zeros((len(samples), width), dtype=np.int64)
        mask = np.zeros((len(samples), width), dtype=np.int64)
        loss_mask = np.zeros((len(samples), width), dtype=np.bool_)
        for row, sample in enumerate(samples):
            length = len(sample.ids_T)
            ids[row, :length] = sample.ids_T
            mask[row, :length] = 1
            loss_mask[row, :length] = sample.loss_mask_T
        chosen = [sample.loss_mask_T for sample in samples]

        def joined(arrays: list[Any]) -> torch.Tensor:
            kept = [array[where] for array, where in zip(arrays, chosen, strict=True)]
            return torch.as_tensor(np.concatenate(kept), dtype=torch.float32, device=device)

        per_token = [np.full(len(s.ids_T), w) for s, w in zip(samples, weights, strict=True)]
        return cls(
            ids=torch.as_tensor(ids, device=device),
            mask=torch.as_tensor(mask, device=device),
            loss_mask=torch.as_tensor(loss_mask, device=device),
            targets_N=torch.as_tensor(ids[loss_mask], device=device),
            old_logp_N=joined([sample.old_logprobs_T for sample in samples]),
            advantages_N=joined([sample.advantages_T for sample in samples]),
            weights_N=joined(per_token),
            temperature=samples[0].temperature,
        )


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group rows of similar length so that rows x longest stays inside ``budget`` tokens."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    batches: list[list[int]] = []
    for row in order:
        if batches and lengths[row] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def add_lora(network: Any, model: ModelSettings, seed: int) -> Any:
    """Wrap the model so that only low-rank adapters of its linear layers are trained."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise DependencyError("LoRA needs peft; pip install 'ragen2[lora]'") from error
    settings = LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(stream_key(seed, "lora") % 2**63)
        return get_peft_model(network, settings)


def _inner(network: Any) -> Any:
    """The Hugging Face model inside a PEFT wrapper, or the model itself."""
    return network.get_base_model() if hasattr(network, "get_base_model") else network
