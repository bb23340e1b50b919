"""Triton kernels of the learner only: the backward pass of a layer between its products, and heads apart.

What goes forward and is the engine's too is in ``backends/kernels.py``; derivations are beside the same
operations in torch (``operations.py``). Sums are in float32 and in one order: what programs add up over
tokens, each writes for itself and torch adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ragen2.backends.kernels import rms_scale, rotate


@triton.jit
def norm_back(
    grad_TH,
    x_TH,
    weight,
    beside_TH,
    x_grad_TH,
    low_TH,
    out_TH,
    weight_grad_PH,
    eps,
    tokens,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Gradients of ``norm`` for the rows of one program, and the norm itself again."""
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < HIDDEN
    w = tl.load(weight + at, mask=inside, other=0.0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for number in range(ROWS):
        row = program * ROWS + number
        mask = inside & (row + at * 0 < tokens)  # a whole row of truths, as masks must be
        spot = row * HIDDEN + at
        x = tl.load(x_TH + spot, mask=mask, other=0.0)
        grad = tl.load(grad_TH + spot, mask=mask, other=0.0).to(tl.float32)
        beside = tl.load(beside_TH + spot, mask=mask, other=0.0)
        scale = rms_scale(x, eps, HIDDEN)
        unit = x * scale
        total += grad * unit
        pull = grad * w
        found = beside + scale * (pull - unit * (tl.sum(pull * unit, 0) / HIDDEN))
        tl.store(x_grad_TH + spot, found, mask=mask)
        tl.store(low_TH + spot, found.to(low_TH.dtype.element_ty), mask=mask)
        tl.store(out_TH + spot, (unit * w).to(out_TH.dtype.element_ty), mask=mask)
    tl.store(weight_grad_PH + program * HIDDEN + at, total, mask=inside)


@triton.jit
def gate_back(both_TI, grad_TI, out_TI, both_grad_TI, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """``gate`` again, and the gradient of its input."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < INNER
    first, second = row * 2 * INNER + at, row * 2 * INNER + INNER + at
    kind = out_TI.dtype.element_ty
    x = tl.load(both_TI + first, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both_TI + second, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_TI + row * INNER + at, mask=inside, other=0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-x))
    act = (x * sigmoid).to(kind).to(tl.float32)
    tl.store(out_TI + row * INNER + at, (act * up).to(kind), mask=inside)
    slope = sigmoid * (1.0 + x * (1.0 - sigmoid))
    tl.store(both_grad_TI + first, (grad * up * slope).to(kind), mask=inside)
    tl.store(both_grad_TI + second, (grad * act).to(kind), mask=inside)


@triton.jit
def _head_of(q_T, k_T, v_T, token, head, NQ: tl.constexpr, NKV: tl.constexpr, D: tl.constexpr):
    """Where a head lies among queries, keys or values, counted as in a row that holds all three."""
    if head < NQ:
        found = q_T + (token * NQ + head) * D
    elif head < NQ + NKV:
        found = k_T + (token * NKV + head - NQ) * D
    else:
        found = v_T + (token * NKV + head - NQ - NKV) * D
    return found


@triton.jit
def split_heads(
    qkv_T,
    q_T,
    k_T,
    v_T,
    cos_TD,
    sin_TD,
    q_norm,
    k_norm,
    eps,
    NQ: tl.constexpr,
    NKV: tl.constexpr,
    D: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Queries, keys and values apart, the first two normalised and rotated; a program per token and head."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, D // 2)
    spot = (token * (NQ + 2 * NKV) + head) * D + at
    first = tl.load(qkv_T + spot).to(tl.float32)
    second = tl.load(qkv_T + spot + D // 2).to(tl.float32)
    if head < NQ + NKV:
        if HAS_NORM:
            weight = q_norm if head < NQ else k_norm
            scale = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / D + eps)
            first = first * scale * tl.load(weight + at)
            second = second * scale * tl.load(weight + D // 2 + at)
        cos = tl.load(cos_TD + token * (D // 2) + at)
        sin = tl.load(sin_TD + token * (D // 2) + at)
        first, second = rotate(first, second, cos, sin)
    kind = q_T.dtype.element_ty
    out = _head_of(q_T, k_T, v_T, token, head, NQ, NKV, D)
    tl.store(out + at, first.to(kind))
    tl.store(out + D // 2 + at, second.to(kind))


@triton.jit
def join_heads(
    q_grad_T,
    k_grad_T,
    v_grad_T,
    qkv_T,
    grad_T,
    cos_TD,
    sin_TD,
    q_norm,
    k_norm,
    norm_grad_TH,
    eps,
    NQ: tl.constexpr,
    NKV: tl.constexpr,
    D: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Back through ``split_heads``; gradients of the norms' weights are left by token and head."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, D // 2)
    come = _head_of(q_grad_T, k_grad_T, v_grad_T, token, head, NQ, NKV, D)
    first = tl.load(come + at).to(tl.float32)
    second = tl.load(come + D // 2 + at).to(tl.float32)
    spot = (token * (NQ + 2 * NKV) + head) * D + at
    if head < NQ + NKV:
        cos = tl.load(cos_TD + token * (D // 2) + at)
        sin = tl.load(sin_TD + token * (D // 2) + at)
        first, second = rotate(first, second, cos, -sin)
        if HAS_NORM:
            weight = q_norm if head < NQ else k_norm
            x_first = tl.load(qkv_T + spot).to(tl.float32)
            x_second = tl.load(qkv_T + spot + D // 2).to(tl.float32)
            square = tl.sum(x_first * x_first, 0) + tl.sum(x_second * x_second, 0)
            scale = tl.rsqrt(square / D + eps)
            x_first, x_second = x_first * scale, x_second * scale
            left = (token * (NQ + NKV) + head) * D + at
            tl.store(norm_grad_TH + left, first * x_first)
            tl.store(norm_grad_TH + left + D // 2, second * x_second)
            first = first * tl.load(weight + at)
            second = second * tl.load(weight + D // 2 + at)
            share = (tl.sum(first * x_first, 0) + tl.sum(second * x_second, 0)) / D
            first = scale * (first - x_first * share)
            second = scale * (second - x_second * share)
    kind = grad_T.dtype.element_ty
    tl.store(grad_T + spot, first.to(kind))
    tl.store(grad_T + spot + D // 2, second.to(kind))
