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
from typing import Any

import numpy as np
import torch
from torch.nn.functional import rms_norm
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from ragen2.backends.device import deterministic_sums, has_deterministic_sums
from ragen2.backends.distributed.parallelism import SINGLE_PROCESS, Parallelism
from ragen2.backends.learner.fused import fused_decoder
from ragen2.backends.learner.logprobs import SplitModel, chosen_logprobs, identity
from ragen2.backends.learner.microbatches import (
    MAX_PADDING,
    Microbatch,
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


MICRO_TOKENS = {"cpu": 2_048, "cuda": 32_768}
"""Tokens of a micro-batch by default: on a CPU what its caches hold, on a GPU what keeps it busy."""
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
        self.micro_tokens = settings.micro_tokens or MICRO_TOKENS[self.device.type]
        self.tokens_run = 0
        """Tokens of all micro-batches so far, padding and all."""
        self._layers = _layers_to_repeat(network, settings)
        if embedder is not None and embedder.encoder.is_trained and self._layers:
            self._layers += embedder.encoder.layers()
        self._call: Callable[..., Any] = network
        if settings.compile:
            _need_compiler()
            self._call = torch.compile(network, dynamic=True)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device  # type: ignore[no-any-return]  # untyped HF model

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
        budget = self.parallelism.budget(self.micro_tokens, sum(lengths))
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
        if self._fused is not None and batch.packing is not None:
            repeats = None if self._repeats == "auto" else self._repeats
            ids_T = batch.ids[0]
            return self._fused.rows(ids_T, batch.packing, batch.predictors_N, repeats=repeats)
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

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Around every pass, forward and backward; outside it the network is as everyone knows it."""
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


def _need_compiler() -> None:
    names = [os.environ.get("CXX") or "c++", "g++", "clang++", "gcc", "cl"]
    if not any(shutil.which(name) for name in names):
        raise ConfigError(
            "learner.compile needs a C++ compiler and found none; install one, or leave it false"
        )


def _layers_to_repeat(network: Any, settings: LearnerSettings) -> list[Any]:
    """Layers that are computed again in the backward pass: on a GPU all of them by default."""
    is_asked = settings.gradient_checkpointing
    is_gpu = next(network.parameters()).device.type == "cuda"
    if is_asked is False or (is_asked == "auto" and not is_gpu):
        return []
    layers = [m for m in network.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers and is_asked is True:
        kind = network.config.model_type
        raise ConfigError(
            f"learner.gradient_checkpointing must be false for a model of type {kind}: "
            "transformers has no layers of it to compute again"
        )
    return layers
