"""The forward pass over micro-batches of samples for a gradient.

Samples are packed where the model honours it, our own fused layers run it where they know it, and layers are
computed again in the backward pass where asked.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn.functional import rms_norm
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from ragen2.backends.device import deterministic_sums, free_memory, has_deterministic_sums
from ragen2.backends.distributed.parallelism import SINGLE_PROCESS, Parallelism
from ragen2.backends.learner.fused import fused_decoder
from ragen2.backends.learner.logprobs import SplitModel, chosen_logprobs, identity
from ragen2.backends.learner.microbatches import (
    MAX_PADDING,
    Microbatch,
    TokenBudget,
    packed_batches,
    padded_batches,
    shared_beginnings,
)
from ragen2.backends.learner.packing import (
    HALF,
    honours_packing,
    packed_attention,
    rows_of,
    run_packed_row,
)
from ragen2.backends.memory import fitting, training_bytes, until_it_fits
from ragen2.backends.settings import LearnerSettings
from ragen2.backends.vision.embedding import ImageEmbedder
from ragen2.errors import ConfigError, ModelError
from ragen2.types import FloatArray, IntArray, Sample

NORMS = ("LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
"""Classes whose forward is ``weight * x / sqrt(mean(x^2) + eps)`` and nothing else."""


@contextmanager
def fused_norms(network: Any) -> Iterator[None]:
    """Within it, the norms of ``network`` that torch has a kernel for use it."""
    norms = [module for module in network.modules() if type(module).__name__ in NORMS]
    for norm in norms:
        norm.forward = partial(_forward, norm, norm.forward)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _forward(norm: Any, plain: Any, x: torch.Tensor) -> torch.Tensor:
    """Lower precisions are left alone: there the model's own code rounds in between."""
    if x.dtype is not torch.float32 or norm.weight.dtype is not torch.float32:
        result: torch.Tensor = plain(x)
        return result
    return rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


Result = TypeVar("Result")

MICRO_TOKENS = {"cpu": 2_048, "cuda": 32_768}
"""Tokens of a micro-batch by default: on a CPU what its caches hold, on a GPU what keeps it busy."""
LEAST_MICRO_TOKENS = 1_024
"""Fewer are not planned for; when memory runs out, they are tried."""
SMALL_MODEL = 2**24
"""Parameters up to which products are too small for several threads to share."""
AT_ONCE = 2
"""Micro-batches that run side by side where they do."""


class TrainingForward:
    """Runs samples through ``network``: a decoder, or a whole model that is not split from its head.

    With ``causal``, the model whose decoder ``network`` is, our own layers run it if they can. With
    ``embedder``, samples may hold images.
    """

    def __init__(
        self,
        network: Any,
        settings: LearnerSettings,
        dtype: torch.dtype,
        parallelism: Parallelism = SINGLE_PROCESS,
        *,
        causal: Any | None = None,
        embedder: ImageEmbedder | None = None,
    ) -> None:
        self.network = network
        self.parallelism = parallelism
        self.embedder = embedder
        self.dtype = dtype
        self.is_packed = honours_packing(network, dtype)
        can_fuse = self.is_packed and not settings.compile and not parallelism.shards_weights
        self._fused = fused_decoder(causal, dtype) if can_fuse and causal is not None else None
        self._is_small = sum(p.numel() for p in network.parameters()) <= SMALL_MODEL
        self._repeats = settings.gradient_checkpointing
        self._budget = TokenBudget(settings.micro_tokens or MICRO_TOKENS[self.device.type])
        self._is_planned = not settings.micro_tokens and self.device.type == "cuda"
        self.spare: Callable[[], bool] = lambda: False
        """Has others give back what they keep on the device; whether there was anything."""
        self.tokens_run = 0
        """Tokens of all micro-batches so far, padding and all."""
        self._layers = self._repeatable() if self._repeats_layers(settings) else []
        self._call: Callable[..., Any] = network
        if settings.compile:
            _need_compiler()
            self._call = torch.compile(network, dynamic=True)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device  # type: ignore[no-any-return]  # untyped HF model

    @property
    def micro_tokens(self) -> int:
        """Tokens of a micro-batch at most; fewer are taken where memory is short."""
        return self._budget.most

    def batches(
        self, samples: Sequence[Sample], weights: FloatArray | None = None
    ) -> Iterator[tuple[list[int], Microbatch]]:
        """Micro-batches of this process's share, each with the numbers of its samples among all."""
        token_weights = np.zeros(len(samples)) if weights is None else weights
        samples = [self._with_image_ids(sample) for sample in samples]
        lengths = [len(sample.ids_T) for sample in samples]
        for rows, is_real in self.parallelism.share(self._cut(samples), lengths):
            chosen = [samples[row] for row in rows]
            shared = shared_beginnings(chosen) if self.shares else None
            batch = Microbatch.of(
                chosen,
                token_weights[rows] * is_real,
                self.device,
                is_packed=self.is_packed,
                shared=shared,
                positions=self._positions(chosen),
            )
            self.tokens_run += batch.ids.numel()
            yield rows, batch

    def by_sample(
        self, samples: Sequence[Sample], values_of: Callable[[Microbatch], torch.Tensor]
    ) -> dict[int, FloatArray]:
        """A number for each written token of this process's samples, by the number of the sample."""
        found: dict[int, FloatArray] = {}
        for rows, batch in self.batches(samples):
            values = values_of(batch).double().cpu().numpy()
            bounds = np.cumsum([int(samples[row].loss_mask_T.sum()) for row in rows])[:-1]
            found |= zip(rows, np.split(values, bounds), strict=True)
        return found

    def _with_image_ids(self, sample: Sample) -> Sample:
        """The sample with its images told apart by its ids."""
        if not sample.images:
            return sample
        if self.embedder is None:
            raise ModelError("a sample holds images, but this model reads text only")
        ids_T = self.embedder.with_image_ids(sample.ids_T, sample.images)
        if sample.loss_mask_T[ids_T != sample.ids_T].any():
            raise ValueError("an image token carries loss; only what was written is trained on")
        return dataclasses.replace(sample, ids_T=ids_T)

    def _positions(self, samples: Sequence[Sample]) -> list[IntArray] | None:
        """Positions on several axes; None where a token's index in its sample says it."""
        if self.embedder is None or not self.embedder.has_grid:
            return None
        return [self.embedder.positions(sample.ids_T) for sample in samples]

    def _cut(self, samples: Sequence[Sample]) -> list[list[int]]:
        lengths = [len(sample.ids_T) for sample in samples]
        budget = self.parallelism.budget(self._budget.now, sum(lengths))
        parts = self._cut_to(budget, samples, lengths)
        self._budget.note(parts, lengths)
        return parts

    def _cut_to(
        self, budget: int, samples: Sequence[Sample], lengths: list[int]
    ) -> list[list[int]]:
        """Parts of no more than ``budget`` tokens each; what samples share is taken off ``lengths``."""
        if not self.is_packed:
            return padded_batches(lengths, budget, MAX_PADDING[self.device.type])
        order = list(range(len(samples)))
        if self.shares:  # what begins alike comes together; only the first is run from its start
            order.sort(key=lambda row: samples[row].ids_T.tobytes())
            begins = shared_beginnings([samples[row] for row in order])
            for row, (_, count) in zip(order, begins, strict=True):
                lengths[row] -= count
        # Not by how many threads this machine has: another cut adds gradients in another order.
        at_once = AT_ONCE if self.is_threaded else 1
        parts = packed_batches([lengths[row] for row in order], budget, at_once)
        return [[order[number] for number in part] for part in parts]

    @property
    def is_fused(self) -> bool:
        """Whether our own layers run packed rows."""
        return self._fused is not None and self.is_packed

    @property
    def is_threaded(self) -> bool:
        """Whether micro-batches run side by side: small models on a CPU."""
        return self._fused is not None and self.device.type == "cpu" and self._is_small

    @property
    def shares(self) -> bool:
        """Whether one pass over a beginning serves all samples that share it.

        Not on a GPU: the gradients of a beginning's keys would be summed in no fixed order.
        """
        return self.is_packed and self.device.type == "cpu"

    def padding(self, samples: Sequence[Sample]) -> float:
        """Share of the tokens in micro-batches that are no sample's."""
        if self.is_packed:
            return 0.0
        lengths = np.array([len(sample.ids_T) for sample in samples])
        batches = self._cut(samples)
        whole = sum(int(lengths[rows].max()) * len(rows) for rows in batches)
        return 1.0 - int(lengths.sum()) / whole

    def rows(self, batch: Microbatch) -> torch.Tensor:
        """What the network makes of the token before each one that carries loss."""
        return self._rows(batch, adapted=True)

    def bare_rows(self, batch: Microbatch) -> torch.Tensor:
        """The same without what adapters add; Hugging Face's layers have to be told beforehand."""
        return self._rows(batch, adapted=False)

    def _rows(self, batch: Microbatch, *, adapted: bool) -> torch.Tensor:
        if self._fused is not None and batch.packing is not None:
            repeats = None if self._repeats == "auto" else self._repeats
            chosen_N = batch.predictors_N
            return self._fused.rows(
                batch.ids[0], batch.packing, chosen_N, repeats=repeats, adapted=adapted
            )
        given = {"input_ids": batch.ids}
        if self.embedder is not None:
            given = {"inputs_embeds": self.embedder.embed(batch.ids)}
        if batch.positions is not None:
            given["position_ids"] = batch.positions
        if batch.packing is not None:
            out = run_packed_row(self._call, given, batch.packing)
        else:
            out = self._call(**given, attention_mask=batch.mask, use_cache=False)
        return rows_of(out).flatten(0, 1)[batch.predictors_N]

    def precision(self) -> torch.autocast:
        """Around a forward pass: products in this pass's type, weights as they are."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype in HALF)

    def within_memory(self, work: Callable[[], Result]) -> Result:
        """``work()``, which runs passes; with ever smaller ones for as long as memory runs out.

        Not where weights are sharded: the other processes then wait in the middle of a pass.
        """
        if self.parallelism.shards_weights:
            return work()
        return until_it_fits(work, self.shrink, smallest=self.parallelism.smallest)

    def shrink(self) -> str:
        """Make passes smaller after memory has run out: how, in words; nothing if they can be no smaller.

        What needs only time comes first; cutting samples otherwise changes how gradients are rounded. All
        processes must shrink alike, so what one of them alone has given back does not count.
        """
        if self.spare() and self.parallelism.size == 1:
            return "less kept by the sampler"
        if self._repeats is not True:
            before, self._layers = len(self._layers), self._repeatable()
            self._repeats = True
            if self._fused is not None or len(self._layers) > before:
                return "layers that compute again in the backward pass"
        if not self._budget.halve():
            return ""
        return f"micro-batches of up to {self.micro_tokens:,} tokens"

    def _plan(self) -> None:
        """Decide how large micro-batches are, by what is free before all of them."""
        self._budget.now = self.micro_tokens
        if self._is_planned:
            trained = (p for p in self.network.parameters() if p.requires_grad and p.grad is None)
            free = max(0, free_memory(self.device) - sum(p.nbytes for p in trained))
            least = min(LEAST_MICRO_TOKENS, self.micro_tokens)
            size = training_bytes(
                self.network.config.get_text_config(),
                size=self.dtype.itemsize,
                keeps_layers=self._repeats is False,
                is_fused=self.is_fused,
            )
            found = fitting(self.micro_tokens, size, free, least=least)
            self._budget.now = self.parallelism.smallest(found)

    def _repeatable(self) -> list[Any]:
        """Layers that can be computed again in the backward pass."""
        layers = [m for m in self.network.modules() if isinstance(m, GradientCheckpointingLayer)]
        if self.embedder is not None and self.embedder.encoder.is_trained and layers:
            layers += self.embedder.encoder.layers()
        return layers

    def _repeats_layers(self, settings: LearnerSettings) -> bool:
        """Whether layers of Hugging Face's are computed again: on a GPU by default."""
        is_asked = settings.gradient_checkpointing
        if is_asked is True and not self._repeatable():
            kind = self.network.config.model_type
            raise ConfigError(
                f"learner.gradient_checkpointing must be false for a model of type {kind}: "
                "transformers has no layers of it to compute again"
            )
        return is_asked is True or (is_asked == "auto" and self.device.type == "cuda")

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Around every pass, forward and backward; outside it the network is as everyone knows it."""
        self._plan()
        with ExitStack() as stack:
            if self._fused is not None:
                self._fused.refresh()
            if self.is_packed:
                stack.enter_context(packed_attention(self.network))
            if self.device.type == "cuda":
                stack.enter_context(fused_norms(self.network))
            if has_deterministic_sums(self.network):
                stack.enter_context(deterministic_sums())
            for layer in self._layers:
                layer.forward = partial(
                    checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
                )
                stack.callback(delattr, layer, "forward")
            yield


class LogprobForward(TrainingForward):
    """A forward pass that goes on to how likely the tokens were."""

    def __init__(
        self,
        split_model: SplitModel,
        settings: LearnerSettings,
        dtype: torch.dtype,
        parallelism: Parallelism = SINGLE_PROCESS,
    ) -> None:
        network = split_model.decoder if split_model.splits else split_model.network
        causal = split_model.network if split_model.splits else None
        super().__init__(
            network, settings, dtype, parallelism, causal=causal, embedder=split_model.embedder
        )
        self.head: Callable[[torch.Tensor], torch.Tensor] = (
            split_model.head if split_model.splits else identity
        )

    def logprobs(self, batch: Microbatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-prob of each token that carries loss, and the entropy of the choice it was."""
        return chosen_logprobs(self.rows(batch), batch.targets_N, self.head, batch.temperature)

    def bare_logprobs(self, batch: Microbatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The same without what adapters add."""
        rows_NH = self.bare_rows(batch)
        return chosen_logprobs(rows_NH, batch.targets_N, self.head, batch.temperature)


def _need_compiler() -> None:
    names = [os.environ.get("CXX") or "c++", "g++", "clang++", "gcc", "cl"]
    if not any(shutil.which(name) for name in names):
        raise ConfigError(
            "learner.compile needs a C++ compiler and found none; install one, or leave it false"
        )
