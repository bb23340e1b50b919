"""Log-probs and entropies of a linear head, forward and backward, a chunk of logits at a time.

Suffixes: N rows, C rows of a chunk, V vocabulary. Autograd would keep float32 log-probs of every row for
the backward pass; this keeps two numbers a row and forms the gradient of a chunk's logits by itself:
with z the logits over the temperature, p their softmax and H its entropy,
d log p(t) / dz = [t] - p and dH / dz = -p (log p + H).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ragen2.backends.precision import float_product


class LinearLogprobs(torch.autograd.Function):
    """``(hidden, weight, bias, targets, temperature, rows of a chunk) -> (log-prob, entropy)``."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets_N: torch.Tensor,
        temperature: float,
        size: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Values; what the backward pass needs is one normaliser and one entropy a row."""
        ctx.dtype = _product_dtype(hidden)
        ctx.temperature, ctx.size = temperature, size
        found = []
        with torch.autocast(hidden.device.type, enabled=False):
            cast = weight.to(ctx.dtype)
            for part in _chunks(len(hidden), size):
                z_CV = _scaled_logits(hidden[part], cast, bias, temperature)
                norm_C = z_CV.logsumexp(-1)
                chosen_C = z_CV.gather(-1, targets_N[part, None]).squeeze(-1) - norm_C
                logp_CV = z_CV.sub_(norm_C[:, None])
                entropy_C = -(logp_CV.exp().mul_(logp_CV)).sum(-1)
                found.append((chosen_C, entropy_C, norm_C))
        logp_N, entropy_N, norm_N = (torch.cat(each) for each in zip(*found, strict=True))
        ctx.save_for_backward(hidden, weight, bias, targets_N, norm_N, entropy_N)
        return logp_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of ``hidden``, ``weight`` and ``bias``."""
        hidden, weight, bias, targets_N, norm_N, entropy_N = ctx.saved_tensors
        logp_grad_N, entropy_grad_N = grads
        pull_N = logp_grad_N + entropy_grad_N * entropy_N
        hidden_grad = torch.empty_like(hidden)
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        bias_grad = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        cast = weight.to(ctx.dtype)
        for part in _chunks(len(hidden), ctx.size):
            z_CV = _scaled_logits(hidden[part], cast, bias, ctx.temperature)
            logp_CV = z_CV.sub_(norm_N[part, None])
            p_CV = logp_CV.exp()
            grad_CV = logp_CV.mul_(entropy_grad_N[part, None]).add_(pull_N[part, None])
            grad_CV = grad_CV.mul_(p_CV).neg_()
            grad_CV.scatter_add_(-1, targets_N[part, None], logp_grad_N[part, None])
            logit_grad = grad_CV.div_(ctx.temperature).to(ctx.dtype)
            hidden_grad[part] = (logit_grad @ cast).to(hidden.dtype)
            if weight_grad is not None:
                weight_grad += float_product(logit_grad.T, hidden[part].to(ctx.dtype))
            if bias_grad is not None:
                bias_grad += grad_CV.sum(0)
        return hidden_grad, weight_grad, bias_grad, None, None, None


def _product_dtype(hidden: torch.Tensor) -> torch.dtype:
    """What a linear layer would multiply in: autocast's precision, or that of its input."""
    kind = hidden.device.type
    is_cast = torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if is_cast else hidden.dtype


def _chunks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, start + size)


def _scaled_logits(
    rows: torch.Tensor, cast: torch.Tensor, bias: torch.Tensor | None, temperature: float
) -> torch.Tensor:
    """Logits over the temperature, in float32 and never a view of something kept."""
    logits = float_product(rows.to(cast.dtype), cast.T)
    if bias is not None:
        logits += bias
    return logits if temperature == 1.0 else logits.div_(temperature)
