"""One transformer layer as a single step of autograd, with a backward pass written by hand.

Hugging Face's layer is some forty operations forward and eighty backward; for a small model their number
costs more than the arithmetic. This one is ten and twenty: projections that read the same input are one
product, and what can be computed again in passing (norms, activations) is not kept.

Suffixes: T tokens of a packed row, H hidden, Q queries' and K keys' widths in one row, I inner width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ragen2.backends.decoder import Block, Family
from ragen2.backends.device import float_product
from ragen2.backends.learner.fused.operations import Operations, Rotation
from ragen2.backends.learner.packing import Packing, packed_causal
from ragen2.backends.sampling.gpu.weights import BlockWeights


@dataclass(frozen=True, slots=True)
class Kept:
    """What a layer's backward pass starts from."""

    qkv: torch.Tensor | None
    """Only where heads have norms: rotations need no input to be undone."""
    heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    """Rotated queries and keys, and values, (tokens, heads, width): leaves of attention's own graph."""
    attended: torch.Tensor
    middle_TH: torch.Tensor
    """The residual stream between attention and MLP."""
    gates: torch.Tensor


class Layer:
    """Weights and shape of one layer; calling it is differentiable in its input and its parameters."""

    def __init__(
        self, family: Family, block: Block, weights: BlockWeights, operations: Operations
    ) -> None:
        self.weights = weights
        self.ops = operations
        self.eps = family.eps
        self.scale = family.head_dim**-0.5
        self.heads = (family.num_heads, family.num_kv_heads, family.head_dim)
        projections = (block.q, block.k, block.v)
        self.has_bias = block.q.bias is not None
        self.has_norms = block.q_norm is not None
        self.parameters: list[torch.Tensor] = [
            block.norm.weight,
            *(each.weight for each in projections),
            *(each.bias for each in projections if self.has_bias),
            *(each.weight for each in (block.q_norm, block.k_norm) if each is not None),
            block.o.weight,
            block.mlp_norm.weight,
            block.gate.weight,
            block.up.weight,
            block.down.weight,
        ]

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
    ) -> tuple[torch.Tensor, Kept]:
        """Forward; with ``attends``, attention builds a graph of its own."""
        ops, weights = self.ops, self.weights
        normed = ops.norm(x_TH, weights.norm, self.eps)
        qkv = torch.nn.functional.linear(normed, weights.qkv, weights.qkv_bias)
        norms = (weights.q_norm, weights.k_norm)
        heads = ops.split_heads(qkv, self.heads, rotation, norms, self.eps)
        with torch.set_grad_enabled(attends):
            for each in heads:
                each.requires_grad_(attends)
            attended = packed_causal(*heads, packing, self.scale)
        out = attended.detach().flatten(1) @ weights.o.T
        middle_TH, normed = ops.add_norm(x_TH, out, weights.mlp_norm, self.eps)
        gates = normed @ weights.gate_up.T
        out_TH = middle_TH + ops.gate(gates) @ weights.down.T
        return out_TH, Kept(qkv if self.has_norms else None, heads, attended, middle_TH, gates)

    def run_back(
        self, grad_TH: torch.Tensor, x_TH: torch.Tensor, kept: Kept, rotation: Rotation
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Gradients of the input and of ``parameters``, in their order."""
        ops, weights = self.ops, self.weights
        low = grad_TH.to(weights.down.dtype)
        inner, gate_grad = ops.gate_back(kept.gates, low @ weights.down)
        down = float_product(low.T, inner)
        middle_grad, low, normed, mlp_norm = ops.norm_back(
            gate_grad @ weights.gate_up, kept.middle_TH, weights.mlp_norm, grad_TH, self.eps
        )
        gate, up = float_product(gate_grad.T, normed).chunk(2)
        o = float_product(low.T, kept.attended.detach().flatten(1))
        shape = kept.attended.shape
        q, k, v = torch.autograd.grad(kept.attended, kept.heads, (low @ weights.o).view(shape))
        norms = (weights.q_norm, weights.k_norm)
        qkv_grad, norm_grads = ops.join_heads((q, k, v), kept.qkv, rotation, norms, self.eps)
        x_grad, _, normed, norm = ops.norm_back(
            qkv_grad @ weights.qkv, x_TH, weights.norm, middle_grad, self.eps
        )
        nq, nkv, width = self.heads
        sizes = [nq * width, nkv * width, nkv * width]
        qkv = torch.split(float_product(qkv_grad.T, normed), sizes)
        biases = torch.split(qkv_grad.sum(0, dtype=torch.float32), sizes) if self.has_bias else ()
        return x_grad, [norm, *qkv, *biases, *norm_grads, o, mlp_norm, gate, up, down]


class _LayerFunction(torch.autograd.Function):
    """``Layer`` for autograd; parameters are inputs only so that they get their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TH: torch.Tensor,
        layer: Layer,
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
        layer: Layer = ctx.layer
        kept = ctx.kept or layer.run(x_TH, ctx.rotation, ctx.packing, attends=True)[1]
        ctx.kept = None
        x_grad, found = layer.run_back(grads[0], x_TH, kept, ctx.rotation)
        wanted = ctx.needs_input_grad[5:]
        trained = [
            grad if is_wanted else None for grad, is_wanted in zip(found, wanted, strict=True)
        ]
        return x_grad, None, None, None, None, *trained
