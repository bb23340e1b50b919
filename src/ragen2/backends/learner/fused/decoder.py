"""A model's layers read by our own code, for gradients of packed rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import embedding, rms_norm

from ragen2.backends.decoder import Family, read_family
from ragen2.backends.device import free_memory
from ragen2.backends.learner.fused.layer import Layer
from ragen2.backends.learner.fused.operations import Operations, Rotation, TorchOperations
from ragen2.backends.learner.packing import HALF, Packing
from ragen2.backends.sampling.gpu.weights import EngineWeights

KEPT_BYTES = 5 * 2**30
"""What layers may keep for the backward pass on a GPU before the rest of them computes again."""
KEPT_SHARE = 0.5
"""The same as a share of what is free, where that is less."""


class FusedDecoder:
    """Hidden rows of a packed row of tokens; call ``refresh`` after the weights have changed."""

    def __init__(self, family: Family, dtype: torch.dtype, operations: Operations) -> None:
        self.family = family
        self.dtype = dtype
        self._weights = EngineWeights(family, dtype, has_head=False)
        self._layers = [
            Layer(family, block, weights, operations)
            for block, weights in zip(family.blocks, self._weights.blocks, strict=True)
        ]
        self._angles = family.rotary(0)

    def refresh(self) -> None:
        """Bring the copies that products read up to the trained weights."""
        self._weights.refresh(self._weights.version + 1)

    def rows(
        self, ids_T: torch.Tensor, packing: Packing, chosen_N: torch.Tensor, *, repeats: bool | None
    ) -> torch.Tensor:
        """Final hidden states of the tokens at ``chosen_N``.

        ``repeats`` says whether layers compute again in the backward pass; None: as memory allows.
        """
        x_TH = embedding(ids_T, self.family.embed.weight)
        rotation = self._rotation(packing)
        kept = len(self._layers) if not repeats else 0
        if repeats is None:
            kept = min(kept, self._kept_layers(len(ids_T)))
        for number, layer in enumerate(self._layers):
            keeps = number >= len(self._layers) - kept  # the last are the first to be let go
            x_TH = layer(x_TH, rotation, packing, keeps=keeps)
        width = x_TH.shape[-1]
        rows_NH = x_TH.index_select(0, chosen_N)
        return rms_norm(rows_NH, (width,), self.family.norm.weight, self.family.eps)

    def _rotation(self, packing: Packing) -> Rotation:
        longest = packing.longest
        if longest > len(self._angles[0]):
            self._angles = self.family.rotary(2 * longest)
        positions = packing.positions[0]
        cos, sin = (each.index_select(0, positions) for each in self._angles)
        return Rotation(cos, sin)

    def _kept_layers(self, tokens: int) -> int:
        device = self.family.embed.weight.device
        if device.type != "cuda":
            return len(self._layers)
        family, size = self.family, self.dtype.itemsize
        hidden = family.embed.weight.shape[1]
        heads = 2 * (family.num_heads + family.num_kv_heads) * family.head_dim
        if family.blocks[0].q_norm is not None:  # heads are kept before and after their norms
            heads += (family.num_heads + 2 * family.num_kv_heads) * family.head_dim
        inner = 2 * family.blocks[0].gate.weight.shape[0]
        a_token = 4 * hidden + (heads + inner) * size + 4 * family.num_heads
        return int(min(KEPT_BYTES, KEPT_SHARE * free_memory(device)) // (a_token * tokens))


def fused_decoder(network: Any, dtype: torch.dtype) -> FusedDecoder | None:
    """Our own reading of ``network``, or None where it has to be left to Hugging Face's code."""
    family = read_family(network)
    if isinstance(family, str):
        return None
    if {parameter.dtype for parameter in network.parameters()} != {torch.float32}:
        return None
    device = family.embed.weight.device
    if device.type == "cpu":
        return FusedDecoder(family, dtype, TorchOperations()) if dtype is torch.float32 else None
    if device.type != "cuda" or dtype not in HALF or family.kernel_problem:
        return None
    from ragen2.backends.learner.fused.gpu_operations import GPUOperations

    return FusedDecoder(family, dtype, GPUOperations(dtype))
