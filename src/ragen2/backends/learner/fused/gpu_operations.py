"""What a layer does between its products, as Triton kernels."""

from __future__ import annotations

import torch
import triton

from ragen2.backends.learner.fused import kernels
from ragen2.backends.learner.fused.operations import Heads, Norms, Rotation
from ragen2.backends.sampling.gpu.kernels import gate

GATE_BLOCK = 1024
ROWS = 16
"""Rows of one program of a norm's backward pass, which adds up the weight's gradient over them."""


class GPUOperations:
    """For a GPU: one kernel each; the residual stream is float32, what products read is ``dtype``."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def norm(self, x_TH: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm."""
        tokens, hidden = x_TH.shape
        out = torch.empty_like(x_TH, dtype=self.dtype)
        kernels.norm[(tokens,)](x_TH, weight, out, eps, HIDDEN=hidden, BLOCK=_block(hidden))
        return out

    def add_norm(
        self, x_TH: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum in float32, and its norm."""
        tokens, hidden = x_TH.shape
        total, out = torch.empty_like(x_TH), torch.empty_like(x_TH, dtype=self.dtype)
        kernels.add_norm[(tokens,)](
            x_TH, delta, weight, total, out, eps, HIDDEN=hidden, BLOCK=_block(hidden)
        )
        return total, out

    def norm_back(
        self,
        grad: torch.Tensor,
        x_TH: torch.Tensor,
        weight: torch.Tensor,
        beside_TH: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """``beside`` plus x's gradient, the same in the products' type, the norm, the weight's gradient."""
        tokens, hidden = x_TH.shape
        programs = triton.cdiv(tokens, ROWS)
        found = torch.empty_like(x_TH)
        low, out = (torch.empty_like(x_TH, dtype=self.dtype) for _ in range(2))
        parts = torch.empty(programs, hidden, dtype=torch.float32, device=x_TH.device)
        kernels.norm_back[(programs,)](
            grad,
            x_TH,
            weight,
            beside_TH,
            found,
            low,
            out,
            parts,
            eps,
            tokens,
            HIDDEN=hidden,
            BLOCK=_block(hidden),
            ROWS=ROWS,
        )
        return found, low, out, parts.sum(0)

    def gate(self, gates: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half of each row."""
        tokens, inner = len(gates), gates.shape[1] // 2
        out = torch.empty(tokens, inner, dtype=self.dtype, device=gates.device)
        grid = (tokens, triton.cdiv(inner, GATE_BLOCK))
        gate[grid](gates, out, INNER=inner, BLOCK=GATE_BLOCK)
        return out

    def gate_back(
        self, gates: torch.Tensor, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``gate`` again, and the gradient of its input."""
        tokens, inner = len(gates), gates.shape[1] // 2
        out, found = torch.empty_like(grad), torch.empty_like(gates)
        grid = (tokens, triton.cdiv(inner, GATE_BLOCK))
        kernels.gate_back[grid](gates, grad, out, found, INNER=inner, BLOCK=GATE_BLOCK)
        return out, found

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
        tokens = len(qkv)
        q, k, v = (
            torch.empty(tokens, count, width, dtype=self.dtype, device=qkv.device)
            for count in (nq, nkv, nkv)
        )
        kernels.split_heads[(tokens, nq + 2 * nkv)](
            qkv,
            q,
            k,
            v,
            rotation.cos,
            rotation.sin,
            *norms,
            eps,
            NQ=nq,
            NKV=nkv,
            D=width,
            HAS_NORM=norms[0] is not None,
            num_warps=1,
        )
        return q, k, v

    def join_heads(
        self, grads: Heads, qkv: torch.Tensor | None, rotation: Rotation, norms: Norms, eps: float
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The gradient of ``qkv``, and those of the heads' norms."""
        q, k, v = (each.contiguous() for each in grads)
        tokens, nq, width = q.shape
        nkv = k.shape[1]
        found = torch.empty(tokens, (nq + 2 * nkv) * width, dtype=self.dtype, device=q.device)
        shape = (tokens, nq + nkv, width) if qkv is not None else (1,)
        norm_grads = torch.empty(shape, dtype=torch.float32, device=q.device)
        kernels.join_heads[(tokens, nq + 2 * nkv)](
            q,
            k,
            v,
            qkv,
            found,
            rotation.cos,
            rotation.sin,
            *norms,
            norm_grads,
            eps,
            NQ=nq,
            NKV=nkv,
            D=width,
            HAS_NORM=qkv is not None,
            num_warps=1,
        )
        if qkv is None:
            return found, []
        return found, [each.sum((0, 1)) for each in torch.split(norm_grads, [nq, nkv], dim=1)]


def _block(hidden: int) -> int:
    return int(triton.next_power_of_2(hidden))
