"""A decoder's layers run by our own code for gradients of packed rows, with a backward pass written by hand.

Hugging Face's layer is some forty operations forward and eighty backward; for a small model their number
costs more than the arithmetic. This one is ten and twenty: projections that read the same input are one
product, and what can be computed again in passing (norms, activations) is not kept. It is neither engine's
forward pass, because it must be differentiated, and it attends within a packed row instead of over a cache;
the description of the model, its weights and the kernels of norms and activations are the same.

Suffixes: T tokens of a packed row, H hidden, Q queries' and K keys' widths in one row, I inner width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, rms_norm

from ragen2.backends.decoder import (
    Decoder,
    DecoderWeights,
    LayerModules,
    LayerWeights,
    describe_decoder,
)
from ragen2.backends.device import float_product, free_memory
from ragen2.backends.learner.operations import GPUOperations, Rotation, TorchOperations
from ragen2.backends.learner.packing import HALF, Packing, packed_causal

KEPT_BYTES = 5 * 2**30
"""What layers may keep for the backward pass on a GPU before the rest of them computes again."""
KEPT_SHARE = 0.5
"""The same as a share of what is free, where that is less."""


@dataclass(frozen=True, slots=True)
class KeptActivations:
    """What a layer's backward pass starts from."""

    qkv: torch.Tensor | None
    """Only where heads have norms: rotations need no input to be undone."""
    heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    """Rotated queries and keys, and values, (tokens, heads, width): leaves of attention's own graph."""
    attended: torch.Tensor
    middle_TH: torch.Tensor
    """The residual stream between attention and MLP."""
    gates: torch.Tensor


class FusedLayer:
    """Weights and shape of one layer; calling it is differentiable in its input and its parameters."""

    def __init__(
        self,
        decoder: Decoder,
        modules: LayerModules,
        weights: LayerWeights,
        operations: TorchOperations,
    ) -> None:
        self.weights = weights
        self.ops = operations
        self.scale = decoder.scale
        self.has_bias = modules.has_bias
        self.parameters = modules.parameters

    def __call__(
        self, x_TH: torch.Tensor, rotation: Rotation, packing: Packing, *, keeps: bool
    ) -> torch.Tensor:
        """The residual stream after this layer; ``keeps`` or computes again for the backward pass."""
        if not torch.is_grad_enabled():
            return self.run(x_TH, rotation, packing)[0]
        result: torch.Tensor = _LayerFunction.apply(  # type: ignore[no-untyped-call]  # torch's is untyped
            x_TH, self, rotation, packing, keeps, *self.parameters
        )
        return result

    def run(
        self, x_TH: torch.Tensor, rotation: Rotation, packing: Packing, *, attends: bool = False
    ) -> tuple[torch.Tensor, KeptActivations]:
        """Forward; with ``attends``, attention builds a graph of its own."""
        ops, weights = self.ops, self.weights
        (gate_up,) = weights.gate_up
        normed = ops.norm(x_TH, weights.norm)
        qkv = torch.nn.functional.linear(normed, weights.qkv, weights.qkv_bias)
        heads = ops.split_heads(qkv, rotation, weights.head_norms)
        with torch.set_grad_enabled(attends):
            for each in heads:
                each.requires_grad_(attends)
            attended = packed_causal(*heads, packing, self.scale)
        out = attended.detach().flatten(1) @ weights.o.T
        middle_TH, normed = ops.add_norm(x_TH, out, weights.mlp_norm)
        gates = normed @ gate_up.T
        out_TH = middle_TH + ops.gate(gates) @ weights.down.T
        before = qkv if weights.head_norms else None
        return out_TH, KeptActivations(before, heads, attended, middle_TH, gates)

    def run_back(
        self, grad_TH: torch.Tensor, x_TH: torch.Tensor, kept: KeptActivations, rotation: Rotation
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Gradients of the input and of ``parameters``, in their order.

        Written d z for the gradient of z, from the last line of ``run`` to its first. A product y = x W^T
        gives d x = d y W and d W = d y^T x; the gradients of norms, gates and heads are derived in
        ``operations``. Gradients are in the products' type where a product reads them (``low``), and those
        of weights are summed in float32.
        """
        ops, weights = self.ops, self.weights
        (gate_up,) = weights.gate_up
        # out = middle + gate(gates) W_down^T: d gate = d out W_down, d W_down = d out^T gate
        low = grad_TH.to(weights.down.dtype)
        inner, gate_grad = ops.gate_back(kept.gates, low @ weights.down)
        down = float_product(low.T, inner)
        # gates = norm(middle) W_gate_up^T, and middle goes on to out: d middle = d out + through the norm
        middle_grad, low, normed, mlp_norm = ops.norm_back(
            gate_grad @ gate_up, kept.middle_TH, weights.mlp_norm, grad_TH
        )
        gate, up = float_product(gate_grad.T, normed).chunk(2)
        # middle = x + attended W_o^T: d attended = d middle W_o, d W_o = d middle^T attended
        o = float_product(low.T, kept.attended.detach().flatten(1))
        shape = kept.attended.shape
        # Attention is the one part that is left to torch, whose backward pass of it is one kernel.
        q, k, v = torch.autograd.grad(kept.attended, kept.heads, (low @ weights.o).view(shape))
        qkv_grad, norm_grads = ops.join_heads((q, k, v), kept.qkv, rotation, weights.head_norms)
        # qkv = norm(x) W_qkv^T + b, and x goes on to middle: d x = d middle + through the norm
        x_grad, _, normed, norm = ops.norm_back(
            qkv_grad @ weights.qkv, x_TH, weights.norm, middle_grad
        )
        nq, nkv, width = ops.heads
        sizes = [nq * width, nkv * width, nkv * width]
        qkv = torch.split(float_product(qkv_grad.T, normed), sizes)
        biases = torch.split(qkv_grad.sum(0, dtype=torch.float32), sizes) if self.has_bias else ()
        return x_grad, [norm, *qkv, *biases, *norm_grads, o, mlp_norm, gate, up, down]


class _LayerFunction(torch.autograd.Function):
    """``FusedLayer`` for autograd; parameters are inputs only so that they get their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TH: torch.Tensor,
        layer: FusedLayer,
        rotation: Rotation,
        packing: Packing,
        keeps: bool,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        """The layer's output."""
        del parameters
        out_TH, kept = layer.run(x_TH, rotation, packing, attends=keeps)
        ctx.layer, ctx.rotation, ctx.packing = layer, rotation, packing
        ctx.kept = kept if keeps else None
        ctx.save_for_backward(x_TH)
        return out_TH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The input's gradient, and each parameter's that is trained."""
        (x_TH,) = ctx.saved_tensors
        layer: FusedLayer = ctx.layer
        kept = ctx.kept or layer.run(x_TH, ctx.rotation, ctx.packing, attends=True)[1]
        ctx.kept = None
        x_grad, found = layer.run_back(grads[0], x_TH, kept, ctx.rotation)
        wanted = ctx.needs_input_grad[5:]
        trained = [
            grad if is_wanted else None for grad, is_wanted in zip(found, wanted, strict=True)
        ]
        return x_grad, None, None, None, None, *trained


class FusedDecoder:
    """Hidden rows of a packed row of tokens; call ``refresh`` after the weights have changed."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype, operations: TorchOperations) -> None:
        self.decoder = decoder
        self.dtype = dtype
        self._weights = DecoderWeights(decoder, dtype, has_head=False)
        self._layers = [
            FusedLayer(decoder, modules, weights, operations)
            for modules, weights in zip(decoder.layers, self._weights.layers, strict=True)
        ]
        self._angles = decoder.rotary(0)

    def refresh(self) -> None:
        """Bring the copies that products read up to the trained weights."""
        self._weights.refresh(self._weights.version + 1)

    def rows(
        self, ids_T: torch.Tensor, packing: Packing, chosen_N: torch.Tensor, *, repeats: bool | None
    ) -> torch.Tensor:
        """Final hidden states of the tokens at ``chosen_N``.

        ``repeats`` says whether layers compute again in the backward pass; None: as memory allows.
        """
        x_TH = embedding(ids_T, self.decoder.embed.weight)
        rotation = self._rotation(packing)
        kept = len(self._layers) if not repeats else 0
        if repeats is None:
            kept = min(kept, self._kept_layers(len(ids_T)))
        for number, layer in enumerate(self._layers):
            keeps = number >= len(self._layers) - kept  # the last are the first to be let go
            x_TH = layer(x_TH, rotation, packing, keeps=keeps)
        width = x_TH.shape[-1]
        rows_NH = x_TH.index_select(0, chosen_N)
        return rms_norm(rows_NH, (width,), self.decoder.norm.weight, self.decoder.eps)

    def _rotation(self, packing: Packing) -> Rotation:
        longest = packing.longest
        if longest > len(self._angles[0]):
            self._angles = self.decoder.rotary(2 * longest)
        positions = packing.positions[0]
        cos, sin = (each.index_select(0, positions) for each in self._angles)
        return Rotation(cos, sin)

    def _kept_layers(self, tokens: int) -> int:
        """How many layers may keep their activations, by the bytes that ``KeptActivations`` has per token."""
        decoder, size = self.decoder, self.dtype.itemsize
        if decoder.device.type != "cuda":
            return len(self._layers)
        heads = 2 * (decoder.num_heads + decoder.num_kv_heads) * decoder.head_dim
        if decoder.layers[0].has_head_norms:  # heads are kept before and after their norms
            heads += (decoder.num_heads + 2 * decoder.num_kv_heads) * decoder.head_dim
        per_token = 4 * decoder.hidden + (heads + 2 * decoder.inner) * size + 4 * decoder.num_heads
        room = min(KEPT_BYTES, KEPT_SHARE * free_memory(decoder.device))
        return int(room // (per_token * tokens))


def fused_decoder(network: Any, dtype: torch.dtype) -> FusedDecoder | None:
    """Our own forward pass of ``network``, or None where it has to be left to Hugging Face's code."""
    decoder = describe_decoder(network)
    if isinstance(decoder, str):
        return None
    if {parameter.dtype for parameter in network.parameters()} != {torch.float32}:
        return None
    shape = decoder.eps, (decoder.num_heads, decoder.num_kv_heads, decoder.head_dim)
    if decoder.device.type == "cpu":
        is_plain = dtype is torch.float32
        return FusedDecoder(decoder, dtype, TorchOperations(*shape)) if is_plain else None
    if decoder.device.type != "cuda" or dtype not in HALF or decoder.kernel_problem:
        return None
    return FusedDecoder(decoder, dtype, GPUOperations(*shape, dtype))
