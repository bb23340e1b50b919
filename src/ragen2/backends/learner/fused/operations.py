"""What a layer does between its products, in plain torch; ``gpu_operations`` has the same as kernels.

Norms are written out: their inputs are kept anyway, so that a backward pass needs nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import silu

Norms = tuple[torch.Tensor | None, torch.Tensor | None]
"""Weights of the norms of queries' and keys' heads, where a model has them."""
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of every token's position, half a head wide, in float32."""

    cos: torch.Tensor
    sin: torch.Tensor


class Operations(Protocol):
    """The parts of a layer that are no matrix products."""

    def norm(self, x_TH: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm, in the type that products are computed in."""
        ...

    def add_norm(
        self, x_TH: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum in float32, and its norm."""
        ...

    def norm_back(
        self,
        grad: torch.Tensor,
        x_TH: torch.Tensor,
        weight: torch.Tensor,
        beside_TH: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """``beside`` plus x's gradient, the same in the products' type, the norm, the weight's gradient."""
        ...

    def gate(self, gates: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half of each row."""
        ...

    def gate_back(
        self, gates: torch.Tensor, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``gate`` again, and the gradient of its input."""
        ...

    def split_heads(
        self,
        qkv: torch.Tensor,
        heads: tuple[int, int, int],
        rotation: Rotation,
        norms: Norms,
        eps: float,
    ) -> Heads:
        """Queries, keys and values as (tokens, heads, width); queries and keys normalised and rotated."""
        ...

    def join_heads(
        self, grads: Heads, qkv: torch.Tensor | None, rotation: Rotation, norms: Norms, eps: float
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The gradient of ``qkv``, and those of the heads' norms."""
        ...


class TorchOperations:
    """For a CPU: few passes over memory, in float32."""

    def norm(self, x_TH: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm."""
        return (x_TH * _inverse(x_TH, eps)).mul_(weight)

    def add_norm(
        self, x_TH: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum, and its norm."""
        total_TH = x_TH + delta
        return total_TH, self.norm(total_TH, weight, eps)

    def norm_back(
        self,
        grad: torch.Tensor,
        x_TH: torch.Tensor,
        weight: torch.Tensor,
        beside_TH: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """With u = x / rms: d x = (g w - u mean(g w u)) / rms."""
        x_grad, unit, weight_grad = _norm_back(grad, x_TH, weight, eps)
        x_grad += beside_TH
        return x_grad, x_grad, unit.mul_(weight), weight_grad

    def gate(self, gates: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half of each row."""
        first, second = gates.chunk(2, dim=-1)
        return silu(first).mul_(second)

    def gate_back(
        self, gates: torch.Tensor, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``gate`` again, and the gradient of its input."""
        first, second = gates.chunk(2, dim=-1)
        grads = torch.empty_like(gates)
        first_grad, second_grad = grads.chunk(2, dim=-1)
        act = silu(first)
        torch.mul(grad, act, out=second_grad)
        first_grad.copy_(torch.ops.aten.silu_backward(grad * second, first))
        return act.mul_(second), grads

    def split_heads(
        self,
        qkv: torch.Tensor,
        heads: tuple[int, int, int],
        rotation: Rotation,
        norms: Norms,
        eps: float,
    ) -> Heads:
        """Queries, keys and values; queries and keys normalised and rotated."""
        nq, nkv, width = heads
        each = qkv.view(len(qkv), -1, width)
        q, k, v = torch.split(each, [nq, nkv, nkv], dim=1)
        if norms[0] is None or norms[1] is None:
            q, k = torch.split(_rotated(each[:, : nq + nkv], rotation), [nq, nkv], dim=1)
        else:
            q = _rotated(self.norm(q, norms[0], eps), rotation)
            k = _rotated(self.norm(k, norms[1], eps), rotation)
        return q.detach(), k.detach(), v.detach()

    def join_heads(
        self, grads: Heads, qkv: torch.Tensor | None, rotation: Rotation, norms: Norms, eps: float
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Rotations back, then the norms."""
        q, k, v = grads
        back = Rotation(rotation.cos, -rotation.sin)
        found = [_rotated(q, back), _rotated(k, back)]
        norm_grads = []
        if qkv is not None:
            nq, nkv, width = q.shape[1], k.shape[1], q.shape[2]
            before = torch.split(qkv.view(len(qkv), -1, width), [nq, nkv, nkv], dim=1)
            for place, weight in enumerate(norms):
                assert weight is not None  # noqa: S101 - both or none
                found[place], _, grad = _norm_back(found[place], before[place], weight, eps)
                norm_grads.append(grad)
        return torch.cat([*found, v], dim=1).flatten(1), norm_grads


def _inverse(x: torch.Tensor, eps: float) -> torch.Tensor:
    """One over the root of the mean square of the last dimension."""
    length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _norm_back(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradient of x, x over its root mean square, gradient of the weight."""
    inverse = _inverse(x, eps)
    unit = x * inverse
    both = grad * unit
    weight_grad = both.flatten(0, -2).sum(0)
    share = (
        torch.mv(both.flatten(0, -2), weight).view(inverse.shape).mul_(inverse).div_(-x.shape[-1])
    )
    x_grad = (grad * weight).mul_(inverse)
    return x_grad.addcmul_(unit, share), unit, weight_grad


def _rotated(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """(tokens, heads, width) turned by every token's angles."""
    half = heads.shape[-1] // 2
    cos, sin = rotation.cos[:, None], rotation.sin[:, None]
    first, second = heads[..., :half], heads[..., half:]
    out = torch.empty(heads.shape, dtype=heads.dtype)
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
    return out
