"""A decoder's layers run by our own code for gradients of packed rows, with a backward pass written by hand.

Hugging Face's layer is some forty operations forward and eighty backward; for a small model their number
costs more than the arithmetic. This one is ten and twenty: projections that read the same input are one
product, and what can be computed again in passing (norms, activations) is not kept. It is neither engine's
forward pass, because it must be differentiated, and it attends within a packed row instead of over a cache;
the description of the model, its weights and the kernels of norms and activations are the same.

Under LoRA only adapters are trained, so products have no gradients of matrices but those of adapters, which
lie beside them (``adapters.py``).

Suffixes: T tokens of a packed row, H hidden, Q queries' and K keys' widths in one row, I inner width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, rms_norm

from ragen2.backends.adapters import JoinedAdapter, adapt, pull_back
from ragen2.backends.decoder import (
    Decoder,
    DecoderWeights,
    LayerAdapters,
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
        self, weights: DecoderWeights, number: int, operations: TorchOperations, *, adapted: bool
    ) -> None:
        self._weights, self._number, self._adapted = weights, number, adapted
        self.ops = operations
        modules, adapters = weights.decoder.layers[number], self._adapters
        self.scale = weights.decoder.scale
        self.has_bias = modules.has_bias
        self.is_adapted = bool(adapters.all)
        trained = [weight for each in adapters.all for weight in each.parameters]
        self.parameters = trained or modules.parameters

    @property
    def _adapters(self) -> LayerAdapters:
        return self._weights.layers[self._number].adapters if self._adapted else LayerAdapters()

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
        ops, weights, adapters = self.ops, self._weights.opened(self._number), self._adapters
        (gate_up,) = weights.gate_up
        normed = ops.norm(x_TH, weights.norm)
        qkv = torch.nn.functional.linear(normed, weights.qkv, weights.qkv_bias)
        adapt(qkv, normed, adapters.qkv)
        heads = ops.split_heads(qkv, rotation, weights.head_norms)
        with torch.set_grad_enabled(attends):
            for each in heads:
                each.requires_grad_(attends)
            attended = packed_causal(*heads, packing, self.scale)
        rows = attended.detach().flatten(1)
        out = rows @ weights.o.T
        adapt(out, rows, adapters.o)
        middle_TH, normed = ops.add_norm(x_TH, out, weights.mlp_norm)
        gates = normed @ gate_up.T
        adapt(gates, normed, adapters.gate_up)
        gated = ops.gate(gates)
        out = gated @ weights.down.T
        adapt(out, gated, adapters.down)
        out_TH = middle_TH + out
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
        ops, weights, adapters = self.ops, self._weights.opened(self._number), self._adapters
        (gate_up,) = weights.gate_up
        # out = middle + gate(gates) W_down^T: d gate = d out W_down, d W_down = d out^T gate
        low = grad_TH.to(weights.down.dtype)
        inner, gate_grad = ops.gate_back(kept.gates, pull_back(low, weights.down, adapters.down))
        down = self._matrix_grads(low, inner, adapters.down)
        # gates = norm(middle) W_gate_up^T, and middle goes on to out: d middle = d out + through the norm
        middle_grad, low, normed, mlp_norm = ops.norm_back(
            pull_back(gate_grad, gate_up, adapters.gate_up),
            kept.middle_TH,
            weights.mlp_norm,
            grad_TH,
        )
        width = gate_grad.shape[1] // 2
        gates = self._matrix_grads(gate_grad, normed, adapters.gate_up, (width, width))
        # middle = x + attended W_o^T: d attended = d middle W_o, d W_o = d middle^T attended
        o = self._matrix_grads(low, kept.attended.detach().flatten(1), adapters.o)
        pulled = pull_back(low, weights.o, adapters.o).view(kept.attended.shape)
        # Attention is the one part that is left to torch, whose backward pass of it is one kernel.
        q, k, v = torch.autograd.grad(kept.attended, kept.heads, pulled)
        qkv_grad, norm_grads = ops.join_heads((q, k, v), kept.qkv, rotation, weights.head_norms)
        # qkv = norm(x) W_qkv^T + b, and x goes on to middle: d x = d middle + through the norm
        pulled = pull_back(qkv_grad, weights.qkv, adapters.qkv)
        x_grad, _, normed, norm = ops.norm_back(pulled, x_TH, weights.norm, middle_grad)
        nq, nkv, width = ops.heads
        sizes = [nq * width, nkv * width, nkv * width]
        qkv = self._matrix_grads(qkv_grad, normed, adapters.qkv, sizes)
        if self.is_adapted:
            return x_grad, [*qkv, *o, *gates, *down]
        biases = torch.split(qkv_grad.sum(0, dtype=torch.float32), sizes) if self.has_bias else ()
        return x_grad, [norm, *qkv, *biases, *norm_grads, *o, mlp_norm, *gates, *down]

    def _matrix_grads(
        self,
        grad: torch.Tensor,
        rows: torch.Tensor,
        adapter: JoinedAdapter | None,
        sizes: Sequence[int] = (),
    ) -> list[torch.Tensor]:
        """Of the matrices that are joined in a product, ``sizes`` outputs each, or of their adapters."""
        if self.is_adapted:
            return [] if adapter is None else adapter.gradients(grad, rows)
        whole = float_product(grad.T, rows)
        return list(torch.split(whole, list(sizes))) if sizes else [whole]


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
        self._layers, self._bare_layers = (
            [
                FusedLayer(self._weights, number, operations, adapted=adapted)
                for number in range(len(decoder.layers))
            ]
            for adapted in (True, False)
        )
        self._angles = decoder.rotary(0)

    def refresh(self) -> None:
        """Bring the copies that products read up to the trained weights."""
        self._weights.refresh(self._weights.version + 1)

    def rows(
        self,
        ids_T: torch.Tensor,
        packing: Packing,
        chosen_N: torch.Tensor,
        *,
        repeats: bool | None,
        adapted: bool = True,
    ) -> torch.Tensor:
        """Final hidden states of the tokens at ``chosen_N``.

        ``repeats`` says whether layers compute again in the backward pass; None: as memory allows. Without
        ``adapted``, LoRA's adapters add nothing.
        """
        x_TH = embedding(ids_T, self.decoder.embed.weight).float()
        rotation = self._rotation(packing)
        kept = len(self._layers) if not repeats else 0
        if repeats is None:
            kept = min(kept, self._kept_layers(len(ids_T)))
        for number, layer in enumerate(self._layers if adapted else self._bare_layers):
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
    decoder = describe_decoder(network, adapters=True)
    if isinstance(decoder, str) or not _has_known_weights(network, dtype):
        return None
    shape = decoder.eps, (decoder.num_heads, decoder.num_kv_heads, decoder.head_dim)
    if decoder.device.type == "cpu":
        is_plain = dtype is torch.float32
        return FusedDecoder(decoder, dtype, TorchOperations(*shape)) if is_plain else None
    if decoder.device.type != "cuda" or dtype not in HALF or decoder.kernel_problem:
        return None
    return FusedDecoder(decoder, dtype, GPUOperations(*shape, dtype))


def _has_known_weights(network: Any, dtype: torch.dtype) -> bool:
    """Whether what is trained is float32, adapters or all but them, and what is frozen that or ``dtype``."""
    trained = {name: p.dtype for name, p in network.named_parameters() if p.requires_grad}
    frozen = {p.dtype for p in network.parameters() if not p.requires_grad}
    is_lora = any(".lora_" in name for name in trained)
    is_whole = not is_lora or all(".lora_" in name for name in trained)
    known = {torch.float32, torch.uint8, dtype}  # whole numbers are weights in 4 bits
    return is_whole and {*trained.values()} <= {torch.float32} and frozen <= known
