"""What a layer does between its matrix products, forward and backward: in plain torch, and as GPU kernels.

Nothing is kept for the backward pass that can be computed again from what is kept anyway: norms and
activations are, from their inputs. Both classes round alike: the residual stream and all sums are float32,
and on a GPU what products read is in their type.

Suffixes: T tokens of a packed row, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import silu

Norms = tuple[torch.Tensor, torch.Tensor] | None
"""Weights of the norms of queries' and keys' heads, where a model has them."""
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values (or their gradients), tokens x heads x width each."""
NORM_ROWS = 16
"""Rows of one program of a norm's backward pass, which adds up the weight's gradient over them."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of every token's position, half a head wide, in float32."""

    cos: torch.Tensor
    sin: torch.Tensor

    @property
    def back(self) -> Rotation:
        """The inverse, which is also the transpose: what gradients go through."""
        return Rotation(self.cos, -self.sin)


class TorchOperations:
    """For a CPU: few passes over memory, in float32.

    Args:
        eps: what norms add to a mean square.
        heads: how many heads queries have, how many keys and values, and numbers of a head.
    """

    def __init__(self, eps: float, heads: tuple[int, int, int]) -> None:
        self.eps, self.heads = eps, heads

    def norm(self, x_TH: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm, in the type that products are computed in."""
        return (x_TH * self._inverse_rms(x_TH)).mul_(weight)

    def add_norm(
        self, x_TH: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum in float32, and its norm."""
        total_TH = x_TH + delta
        return total_TH, self.norm(total_TH, weight)

    def norm_back(
        self,
        grad: torch.Tensor,
        x_TH: torch.Tensor,
        weight: torch.Tensor,
        beside_TH: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """``beside`` plus x's gradient, the same in the products' type, the norm, the weight's gradient.

        ``beside_TH`` is the gradient that goes past the norm, along the residual stream.
        """
        x_grad, unit, weight_grad = self._norm_back(grad, x_TH, weight)
        x_grad += beside_TH
        return x_grad, x_grad, unit.mul_(weight), weight_grad

    def gate(self, gates: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half of each row."""
        first, second = gates.chunk(2, dim=-1)
        return silu(first).mul_(second)

    def gate_back(
        self, gates: torch.Tensor, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``gate`` again, and the gradient of its input.

        With out = silu(a) b and s = sigmoid(a): d b = g silu(a), d a = g b s (1 + a (1 - s)).
        """
        first, second = gates.chunk(2, dim=-1)
        grads = torch.empty_like(gates)
        first_grad, second_grad = grads.chunk(2, dim=-1)
        act = silu(first)
        torch.mul(grad, act, out=second_grad)
        first_grad.copy_(torch.ops.aten.silu_backward(grad * second, first))
        return act.mul_(second), grads

    def split_heads(self, qkv: torch.Tensor, rotation: Rotation, norms: Norms) -> Heads:
        """Queries, keys and values as (tokens, heads, width); the first two normalised and rotated."""
        nq, nkv, width = self.heads
        each = qkv.view(len(qkv), -1, width)
        q, k, v = torch.split(each, [nq, nkv, nkv], dim=1)
        if norms is None:
            q, k = torch.split(_rotated(each[:, : nq + nkv], rotation), [nq, nkv], dim=1)
        else:
            q = _rotated(self.norm(q, norms[0]), rotation)
            k = _rotated(self.norm(k, norms[1]), rotation)
        return q.detach(), k.detach(), v.detach()

    def join_heads(
        self, grads: Heads, qkv: torch.Tensor | None, rotation: Rotation, norms: Norms
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The gradient of ``qkv``, and those of the heads' norms: back through rotations, then norms.

        ``qkv`` is needed only where there are norms: a rotation is undone without its input.
        """
        q, k, v = grads
        found = [_rotated(q, rotation.back), _rotated(k, rotation.back)]
        norm_grads = []
        if qkv is not None and norms is not None:
            nq, nkv, width = self.heads
            before = torch.split(qkv.view(len(qkv), -1, width), [nq, nkv, nkv], dim=1)
            for at, weight in enumerate(norms):
                found[at], _, grad = self._norm_back(found[at], before[at], weight)
                norm_grads.append(grad)
        return torch.cat([*found, v], dim=1).flatten(1), norm_grads

    def _inverse_rms(self, x: torch.Tensor) -> torch.Tensor:
        """One over the root of the mean square of the last dimension."""
        length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return length.square_().div_(x.shape[-1]).add_(self.eps).rsqrt_()

    def _norm_back(
        self, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradient of x, u = x / rms, gradient of the weight.

        out = w u, so d w = sum over tokens of g u. Since rms depends on x, with p = g w:
        d x = (p - u mean(p u)) / rms.
        """
        inverse = self._inverse_rms(x)
        unit = x * inverse
        both = grad * unit
        weight_grad = both.flatten(0, -2).sum(0)
        share = torch.mv(both.flatten(0, -2), weight).view(inverse.shape)
        share = share.mul_(inverse).div_(-x.shape[-1])
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


class GPUOperations(TorchOperations):
    """For a GPU: the same, one kernel each; what products read is ``dtype``."""

    def __init__(self, eps: float, heads: tuple[int, int, int], dtype: torch.dtype) -> None:
        super().__init__(eps, heads)
        # Triton is there on a GPU only.
        from ragen2.backends import kernels as shared
        from ragen2.backends.learner import kernels as own

        self.dtype = dtype
        self._shared: Any = shared
        self._own: Any = own

    def norm(self, x_TH: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm."""
        out = torch.empty_like(x_TH, dtype=self.dtype)
        self._shared.norm[(len(x_TH),)](x_TH, weight, out, self.eps, **_width(x_TH))
        return out

    def add_norm(
        self, x_TH: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum in float32, and its norm."""
        total, out = torch.empty_like(x_TH), torch.empty_like(x_TH, dtype=self.dtype)
        self._shared.add_norm[(len(x_TH),)](
            x_TH, delta, weight, total, out, self.eps, **_width(x_TH)
        )
        return total, out

    def norm_back(
        self,
        grad: torch.Tensor,
        x_TH: torch.Tensor,
        weight: torch.Tensor,
        beside_TH: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """As in torch; each program writes its own sum of the weight's gradient, and torch adds them.

        Atomic additions would need no second pass, but they come in any order, and a seed must give
        one run.
        """
        tokens, hidden = x_TH.shape
        programs = -(-tokens // NORM_ROWS)
        found = torch.empty_like(x_TH)
        low, out = (torch.empty_like(x_TH, dtype=self.dtype) for _ in range(2))
        parts = torch.empty(programs, hidden, dtype=torch.float32, device=x_TH.device)
        read, written = (grad, x_TH, weight, beside_TH), (found, low, out, parts)
        self._own.norm_back[(programs,)](
            *read, *written, self.eps, tokens, **_width(x_TH), ROWS=NORM_ROWS
        )
        return found, low, out, parts.sum(0)

    def gate(self, gates: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half of each row."""
        tokens, inner = len(gates), gates.shape[1] // 2
        out = torch.empty(tokens, inner, dtype=self.dtype, device=gates.device)
        block = self._shared.GATE_BLOCK
        self._shared.gate[(tokens, -(-inner // block))](gates, out, INNER=inner, BLOCK=block)
        return out

    def gate_back(
        self, gates: torch.Tensor, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``gate`` again, and the gradient of its input."""
        tokens, inner = len(gates), gates.shape[1] // 2
        out, found = torch.empty_like(grad), torch.empty_like(gates)
        block = self._shared.GATE_BLOCK
        self._own.gate_back[(tokens, -(-inner // block))](
            gates, grad, out, found, INNER=inner, BLOCK=block
        )
        return out, found

    def split_heads(self, qkv: torch.Tensor, rotation: Rotation, norms: Norms) -> Heads:
        """Queries, keys and values; the first two normalised and rotated."""
        nq, nkv, width = self.heads
        q, k, v = (
            torch.empty(len(qkv), count, width, dtype=self.dtype, device=qkv.device)
            for count in (nq, nkv, nkv)
        )
        self._own.split_heads[(len(qkv), nq + 2 * nkv)](
            qkv, q, k, v, *self._turn(rotation, norms), self.eps, **self._counts(norms)
        )
        return q, k, v

    def join_heads(
        self, grads: Heads, qkv: torch.Tensor | None, rotation: Rotation, norms: Norms
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The gradient of ``qkv``, and those of the heads' norms."""
        q, k, v = (each.contiguous() for each in grads)
        nq, nkv, width = self.heads
        device = q.device
        found = torch.empty(len(q), (nq + 2 * nkv) * width, dtype=self.dtype, device=device)
        shape = (1,) if norms is None else (len(q), nq + nkv, width)
        norm_grads = torch.empty(shape, dtype=torch.float32, device=device)
        turn = self._turn(rotation, norms)
        self._own.join_heads[(len(q), nq + 2 * nkv)](
            q, k, v, qkv, found, *turn, norm_grads, self.eps, **self._counts(norms)
        )
        if norms is None:
            return found, []
        return found, [each.sum((0, 1)) for each in torch.split(norm_grads, [nq, nkv], dim=1)]

    def _turn(self, rotation: Rotation, norms: Norms) -> tuple[torch.Tensor | None, ...]:
        return rotation.cos, rotation.sin, *(norms or (None, None))

    def _counts(self, norms: Norms) -> dict[str, int]:
        nq, nkv, width = self.heads
        return {"NQ": nq, "NKV": nkv, "D": width, "HAS_NORM": norms is not None, "num_warps": 1}


def _width(x_TH: torch.Tensor) -> dict[str, int]:
    """A row's width, and the power of two that holds it."""
    hidden = x_TH.shape[1]
    return {"HIDDEN": hidden, "BLOCK": 1 << (hidden - 1).bit_length()}
