"""Triton kernels of the GPU engine only: attention over its cache, and choosing tokens.

Written for decoding, where a layer's arithmetic is small and the number of kernels is what costs: the first
norm is fused with the embedding, and rotation, the write to the cache and attention are one kernel. Sums
are in float32; where Hugging Face under autocast rounds to the cache's type (rotated queries and keys,
attention's weights), so do these, because the log-probs must be the learner's.

Attention is the online softmax of FlashAttention (algorithm 1): over blocks of keys, ``top`` is the largest
score so far, ``total`` the sum of exp(score - top) and ``sums`` the values weighted by it; when the largest
score grows, both are shrunk by exp(old top - new top).

Shape letters: B lanes, N new tokens, M blocks of new tokens, T positions, D numbers of a head, V vocabulary,
J blocks of it, R rows of the output.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ragen2.backends.kernels import rms_scale, rotate


@triton.jit
def embed_norm(
    token_B, embed, weight, residual_BH, normed_BH, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr
):
    """Look tokens up, start the residual stream with them, and normalise it for the first layer."""
    lane = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < HIDDEN
    token = tl.load(token_B + lane).to(tl.int64)
    x = tl.load(embed + token * HIDDEN + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual_BH + lane * HIDDEN + at, x, mask=inside)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    out = x * rms_scale(x, eps, HIDDEN) * w
    tl.store(normed_BH + lane * HIDDEN + at, out.to(normed_BH.dtype.element_ty), mask=inside)


@triton.jit
def _rotated(first, second, cos, sin, norm, eps, D: tl.constexpr, HAS_NORM: tl.constexpr):
    """Both halves of heads (in the last dimension) after their norm, if any, and the rotation."""
    if HAS_NORM:
        at = tl.arange(0, D // 2)
        scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / D + eps)
        first = first * scale[:, None] * tl.load(norm + at).to(tl.float32)[None, :]
        second = second * scale[:, None] * tl.load(norm + D // 2 + at).to(tl.float32)[None, :]
    return rotate(first, second, cos, sin)


@triton.jit
def _absorb(score, v, top, total, sums):
    """One more block of keys, with its scores and values, in the online softmax."""
    higher = tl.maximum(top, tl.max(score, 1))
    shrink = tl.exp(top - higher)
    weight = tl.exp(score - higher[:, None])
    sums = sums * shrink[:, None]
    sums = tl.dot(weight.to(v.dtype), v, acc=sums, input_precision="ieee")
    return higher, total * shrink + tl.sum(weight, 1), sums


@triton.jit
def decode_attention(
    qkv_B,
    out_B,
    keys,
    values,
    row_B,
    position_B,
    cos_TD,
    sin_TD,
    q_norm,
    k_norm,
    eps,
    scale,
    stride_row,
    stride_head,
    NQ: tl.constexpr,
    NKV: tl.constexpr,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Rotate, write the new key and value into the cache, attend over the used part of the row.

    One program has one lane's key-value head and all query heads that read it.
    """
    lane = tl.program_id(0).to(tl.int64)
    kv = tl.program_id(1)
    half: tl.constexpr = D // 2
    share: tl.constexpr = NQ // NKV
    kind = keys.dtype.element_ty
    row = tl.load(row_B + lane).to(tl.int64)
    position = tl.load(position_B + lane)
    at = tl.arange(0, half)
    wide = tl.arange(0, D)
    cos = tl.load(cos_TD + position * half + at)[None, :]
    sin = tl.load(sin_TD + position * half + at)[None, :]
    heads = qkv_B + lane * (NQ + 2 * NKV) * D
    # Queries fill up to 16 rows, the least a matrix product takes.
    head = tl.arange(0, 16)
    is_head = (head < share)[:, None]
    spot = heads + ((kv * share + head) * D)[:, None] + at[None, :]
    q1 = tl.load(spot, mask=is_head, other=0.0).to(tl.float32)
    q2 = tl.load(spot + half, mask=is_head, other=0.0).to(tl.float32)
    q1, q2 = _rotated(q1, q2, cos, sin, q_norm, eps, D, HAS_NORM)
    q1, q2 = q1.to(kind), q2.to(kind)
    new = heads + (NQ + kv) * D
    k1 = tl.load(new + at).to(tl.float32)[None, :]
    k2 = tl.load(new + half + at).to(tl.float32)[None, :]
    k1, k2 = _rotated(k1, k2, cos, sin, k_norm, eps, D, HAS_NORM)
    k1, k2 = k1.to(kind), k2.to(kind)
    v = tl.load(heads + (NQ + NKV + kv) * D + wide).to(kind)
    cache = row * stride_row + kv * stride_head
    here = cache + position.to(tl.int64) * D
    tl.store(keys + here + at[None, :], k1)
    tl.store(keys + here + half + at[None, :], k2)
    tl.store(values + here + wide, v)
    # The token's own key begins the softmax: exp(score - top) is 1 for it, and its value the first sum.
    top = tl.sum(q1.to(tl.float32) * k1.to(tl.float32), 1)
    top = (top + tl.sum(q2.to(tl.float32) * k2.to(tl.float32), 1)) * scale
    total = tl.full((16,), 1.0, tl.float32)
    sums = tl.zeros((16, D), tl.float32) + v.to(tl.float32)[None, :]
    for start in range(0, position, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        is_past = n < position
        spots = keys + cache + n[None, :] * D + at[:, None]
        past1 = tl.load(spots, mask=is_past[None, :], other=0.0)
        past2 = tl.load(spots + half, mask=is_past[None, :], other=0.0)
        score = tl.dot(q1, past1, input_precision="ieee")
        score = tl.dot(q2, past2, acc=score, input_precision="ieee") * scale
        score = tl.where(is_past[None, :], score, float("-inf"))
        past = tl.load(
            values + cache + n[:, None] * D + wide[None, :], mask=is_past[:, None], other=0.0
        )
        top, total, sums = _absorb(score, past, top, total, sums)
    result = (sums / total[:, None]).to(kind)
    spots = out_B + lane * NQ * D + ((kv * share + head) * D)[:, None] + wide[None, :]
    tl.store(spots, result, mask=is_head)


@triton.jit
def rotate_and_store(
    qkv_N,
    keys,
    values,
    row_N,
    position_N,
    cos_TD,
    sin_TD,
    q_norm,
    k_norm,
    eps,
    stride_row,
    stride_head,
    NQ: tl.constexpr,
    NKV: tl.constexpr,
    NQ_2: tl.constexpr,
    NKV_2: tl.constexpr,
    D: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """For prefilling prompts: rotate queries in spot, put rotated keys and the values into the cache.

    One program has one token.
    """
    token = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = D // 2
    kind = keys.dtype.element_ty
    position = tl.load(position_N + token)
    at = tl.arange(0, half)
    cos = tl.load(cos_TD + position * half + at)[None, :]
    sin = tl.load(sin_TD + position * half + at)[None, :]
    heads = qkv_N + token * (NQ + 2 * NKV) * D
    head = tl.arange(0, NQ_2)[:, None]
    spot = heads + head * D + at[None, :]
    first = tl.load(spot, mask=head < NQ, other=0.0).to(tl.float32)
    second = tl.load(spot + half, mask=head < NQ, other=0.0).to(tl.float32)
    first, second = _rotated(first, second, cos, sin, q_norm, eps, D, HAS_NORM)
    tl.store(spot, first.to(kind), mask=head < NQ)
    tl.store(spot + half, second.to(kind), mask=head < NQ)
    kv = tl.arange(0, NKV_2)[:, None]
    is_kv = kv < NKV
    new = heads + (NQ + kv) * D + at[None, :]
    first = tl.load(new, mask=is_kv, other=0.0).to(tl.float32)
    second = tl.load(new + half, mask=is_kv, other=0.0).to(tl.float32)
    first, second = _rotated(first, second, cos, sin, k_norm, eps, D, HAS_NORM)
    row = tl.load(row_N + token).to(tl.int64)
    here = row * stride_row + kv * stride_head + position.to(tl.int64) * D + at[None, :]
    tl.store(keys + here, first.to(kind), mask=is_kv)
    tl.store(keys + here + half, second.to(kind), mask=is_kv)
    new += NKV * D
    tl.store(values + here, tl.load(new, mask=is_kv, other=0.0), mask=is_kv)
    tl.store(values + here + half, tl.load(new + half, mask=is_kv, other=0.0), mask=is_kv)


@triton.jit
def prompt_attention(
    qkv_N,
    out_N,
    keys,
    values,
    block_token_M,
    block_row_M,
    block_position_M,
    block_count_M,
    scale,
    stride_row,
    stride_head,
    NQ: tl.constexpr,
    NKV: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Causal attention of a block of one sequence's new tokens over its whole row of the cache."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    kind = keys.dtype.element_ty
    token = tl.load(block_token_M + block).to(tl.int64)
    row = tl.load(block_row_M + block).to(tl.int64)
    first = tl.load(block_position_M + block)
    count = tl.load(block_count_M + block)
    m = tl.arange(0, BLOCK_M)
    wide = tl.arange(0, D)
    is_row = (m < count)[:, None]
    q_at = qkv_N + (token + m)[:, None] * (NQ + 2 * NKV) * D + head * D + wide[None, :]
    q = tl.load(q_at, mask=is_row, other=0.0)
    cache = row * stride_row + (head // (NQ // NKV)) * stride_head
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, D), tl.float32)
    end = first + count
    for start in range(0, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        is_key = n < end
        k = tl.load(keys + cache + n[None, :] * D + wide[:, None], mask=is_key[None, :], other=0.0)
        score = tl.dot(q, k, input_precision="ieee") * scale
        sees = (n[None, :] <= (first + m)[:, None]) & is_key[None, :]
        score = tl.where(sees, score, float("-inf"))
        v = tl.load(
            values + cache + n[:, None] * D + wide[None, :], mask=is_key[:, None], other=0.0
        )
        top, total, sums = _absorb(score, v, top, total, sums)
    spots = out_N + (token + m)[:, None] * NQ * D + head * D + wide[None, :]
    tl.store(spots, (sums / total[:, None]).to(kind), mask=is_row)


@triton.jit
def block_sums(
    logits_BV,
    temperature,
    top_BJ,
    sum_BJ,
    best_BJ,
    VOCABULARY,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of each block of the vocabulary: its largest logit, where that is, and its sum of exponentials."""
    lane = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_BV + lane * VOCABULARY + at, mask=at < VOCABULARY, other=float("-inf"))
    x = x.to(tl.float32) / tl.load(temperature)
    top = tl.max(x, 0)
    spot = lane * BLOCKS + block
    tl.store(top_BJ + spot, top)
    tl.store(sum_BJ + spot, tl.sum(tl.exp(x - top), 0))
    tl.store(best_BJ + spot, block * BLOCK + tl.argmax(x, 0))


@triton.jit
def draw(
    logits_BV,
    temperature,
    top_BJ,
    sum_BJ,
    best_BJ,
    uniform_RT,
    output_B,
    step,
    token_B,
    logp_B,
    VOCABULARY,
    TOKENS,
    GREEDY: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCKS_2: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Invert each lane's cumulative distribution, in vocabulary order, at its row's own uniform.

    First among the blocks' sums, then inside the one block that holds the draw.
    """
    lane = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCKS_2)
    is_block = j < BLOCKS
    tops = tl.load(top_BJ + lane * BLOCKS + j, mask=is_block, other=float("-inf"))
    top = tl.max(tops, 0)
    sums = tl.load(sum_BJ + lane * BLOCKS + j, mask=is_block, other=0.0) * tl.exp(tops - top)
    total = tl.sum(sums, 0)
    logits = logits_BV + lane * VOCABULARY
    if GREEDY:
        bests = tl.load(best_BJ + lane * BLOCKS + j, mask=is_block, other=VOCABULARY)
        token = tl.min(tl.where(tops == top, bests, VOCABULARY), 0)
    else:
        row = tl.load(output_B + lane).to(tl.int64)
        wanted = tl.load(uniform_RT + row * TOKENS + tl.load(step)) * total
        through = tl.cumsum(sums, 0)
        has_mass = is_block & (sums > 0.0)
        last = tl.max(tl.where(has_mass, j, 0), 0)
        block = tl.minimum(tl.sum((is_block & (through <= wanted)).to(tl.int32), 0), last)
        before = tl.sum(tl.where(j < block, sums, 0.0), 0)
        at = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < VOCABULARY, other=float("-inf")).to(tl.float32)
        p = tl.exp(x / tl.load(temperature) - top)
        passed = (before + tl.cumsum(p, 0)) <= wanted
        token = block * BLOCK + tl.sum(passed.to(tl.int32), 0)
        # Rounding may carry a draw past the block's end: it belongs to the last token with any mass.
        token = tl.minimum(token, tl.max(tl.where(p > 0.0, at, 0), 0))
    token = tl.minimum(token, VOCABULARY - 1)
    chosen = tl.load(logits + token).to(tl.float32) / tl.load(temperature)
    tl.store(token_B + lane, token.to(tl.int64))
    tl.store(logp_B + lane, chosen - top - tl.log(total))


@triton.jit
def advance(
    token_B,
    logp_B,
    output_B,
    position_B,
    state_B,
    done_B,
    table_SV,
    is_eos_V,
    step,
    ids_RT,
    logp_RT,
    written_R,
    VOCABULARY,
    TOKENS,
    STOPPED: tl.constexpr,
):
    """Write down what each lane chose and find out whether its sequence ends with it.

    A lane that is done goes on computing, unseen, until the host takes it out.
    """
    lane = tl.program_id(0)
    at = tl.load(step)
    token = tl.load(token_B + lane)
    is_done = tl.load(done_B + lane) != 0
    row = tl.load(output_B + lane).to(tl.int64)
    if not is_done:
        tl.store(ids_RT + row * TOKENS + at, token)
        tl.store(logp_RT + row * TOKENS + at, tl.load(logp_B + lane))
        tl.store(written_R + row, at + 1)
        tl.store(position_B + lane, tl.load(position_B + lane) + 1)
        state = tl.load(table_SV + tl.load(state_B + lane) * VOCABULARY + token)
        tl.store(state_B + lane, state)
        ends = (state == STOPPED) | (tl.load(is_eos_V + token) != 0)
        tl.store(done_B + lane, ends.to(tl.int8))
