"""Triton kernels that the GPU engine and the learner share: norms, the gated activation, rotations.

Kernels of one of them only are beside it: attention and choosing in ``sampling/gpu/kernels.py``, backward
passes in ``learner/kernels.py``. Sums are in float32; where Hugging Face under autocast rounds to the type
of products (normed rows, the activation), so do these, because both must give the log-probs of one model.

A kernel is run by one program per row (or token, lane, head); ``BLOCK`` is a row's width filled up to a power
of two, which is what Triton counts in, and ``inside`` masks what was filled up.
"""

from __future__ import annotations

import triton
import triton.language as tl

GATE_BLOCK = 1024
"""Numbers of the MLP's width that one program of ``gate`` has."""


@triton.jit
def rms_scale(x, eps, WIDTH: tl.constexpr):
    """1 / sqrt(mean(x^2) + eps) of a row (RMSNorm, eq. 4); what was filled up with zeros adds nothing."""
    return tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)


@triton.jit
def rotate(first, second, cos, sin):
    """Both halves of heads turned by their angle; with minus the sine, turned back."""
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def norm(x_TH, weight, out_TH, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    """RMS norm of a row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < HIDDEN
    x = tl.load(x_TH + row * HIDDEN + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    out = x * rms_scale(x, eps, HIDDEN) * w
    tl.store(out_TH + row * HIDDEN + at, out.to(out_TH.dtype.element_ty), mask=inside)


@triton.jit
def add_norm(
    x_TH, delta_TH, weight, sum_TH, out_TH, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr
):
    """Add a layer's output to the residual stream, and normalise the sum for what comes next.

    ``sum_TH`` may be ``x_TH``: a program reads its row before it writes it.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < HIDDEN
    spot = row * HIDDEN + at
    x = tl.load(x_TH + spot, mask=inside, other=0.0)
    x += tl.load(delta_TH + spot, mask=inside, other=0.0).to(tl.float32)
    tl.store(sum_TH + spot, x, mask=inside)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    out = x * rms_scale(x, eps, HIDDEN) * w
    tl.store(out_TH + spot, out.to(out_TH.dtype.element_ty), mask=inside)


@triton.jit
def gate(both_TI, out_TI, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """silu(first half) * second half of each row; silu(x) = x sigmoid(x) is rounded before the product."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < INNER
    kind = out_TI.dtype.element_ty
    x = tl.load(both_TI + row * 2 * INNER + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both_TI + row * 2 * INNER + INNER + at, mask=inside, other=0.0).to(tl.float32)
    act = (x / (1.0 + tl.exp(-x))).to(kind).to(tl.float32)
    tl.store(out_TI + row * INNER + at, (act * up).to(kind), mask=inside)
