"""Several samples in one row without padding: each attends only to itself, whatever lies beside it.

A row holds samples one after another. Samples that begin alike (one prompt, several replies) may leave out
the beginning they share with an earlier one: their keys and values for it are then taken from that one, so
that it is computed once and its gradient is the sum of all that used it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION = "ragen2_packed"
"""Our attention's name among those of transformers."""
HALF = (torch.bfloat16, torch.float16)
PLAIN_LAYERS = {"full_attention"}
LIMITS = ("sliding_window", "attention_chunk_size", "attn_logit_softcapping")
"""Settings of a model that let a token see less than all before it, or see it otherwise."""
LIKE_LENGTH = 0.7
"""Samples with one beginning are attended to at once if none is shorter than this share of the longest."""
PROBE = (5, 9, 2)
"""Lengths of the samples that a network is tried on."""
SPREAD = 2_654_435_761
"""Steps through a vocabulary: ordinary tokens, because special ones in a row upset a model in bfloat16."""
ROUNDING = 1e-4
HALF_ROUNDING = 0.1
"""How far the two passes may differ in all: rounding is ten times less, mixing four times more."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Where the samples of a packed row lie."""

    lengths: tuple[int, ...]
    """Tokens of each sample in the row: all of them, but for a shared beginning."""
    shared: tuple[tuple[int, int], ...]
    """For each sample, which earlier one it begins like and for how many tokens; 0 when it shares none."""
    bounds: torch.Tensor
    """0 and the end of each sample, as 32-bit integers on the device: what flash attention reads."""
    positions: torch.Tensor
    """Position of each token in its own sample, as one row."""
    groups: tuple[tuple[int, int, tuple[int, ...]], ...]
    """Samples that are attended to at once: the one that is whole, how much of it the others share, and
    those others, of about the same length; a sample on its own shares nothing."""
    layers: set[int] = field(default_factory=set)
    """Which attention layers have used it: how a network shows that all of them do."""

    def is_even(self, rows: Sequence[int]) -> bool:
        """Whether these samples have one length and lie one after another."""
        return (
            list(rows) == list(range(rows[0], rows[0] + len(rows)))
            and len({self.lengths[row] for row in rows}) == 1
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest sample, with the beginning it shares."""
        return max(n + count for n, (_, count) in zip(self.lengths, self.shared, strict=True))

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        device: torch.device,
        shared: Sequence[tuple[int, int]] | None = None,
    ) -> Packing:
        """The packing of samples with these tokens in the row, one after another."""
        begins = tuple(shared) if shared else ((0, 0),) * len(lengths)
        bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
        parts = [
            np.arange(count, count + length)
            for length, (_, count) in zip(lengths, begins, strict=True)
        ]
        positions = torch.as_tensor(np.concatenate(parts))[None]
        groups = _like_groups(lengths, begins)
        return cls(tuple(lengths), begins, bounds.to(device), positions.to(device), groups)


def _like_groups(
    lengths: Sequence[int], shared: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Samples on their own, then those that share a beginning, longest first, in parts of like length."""
    alone = [(row, 0, ()) for row, (_, count) in enumerate(shared) if not count]
    parts: list[tuple[int, int, list[int]]] = []
    sharing = [row for row, (_, count) in enumerate(shared) if count]
    for row in sorted(sharing, key=lambda row: (shared[row], -lengths[row])):
        is_like = parts and parts[-1][:2] == shared[row]
        if is_like and lengths[row] >= LIKE_LENGTH * lengths[parts[-1][2][0]]:
            parts[-1][2].append(row)
        else:
            parts.append((*shared[row], [row]))
    return (*alone, *((whole, count, tuple(rows)) for whole, count, rows in parts))


@contextmanager
def packed_attention(network: Any) -> Iterator[None]:
    """Let ``network`` run packed rows; around the backward pass too, if layers are computed again."""
    before = network.config._attn_implementation
    network.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        network.config._attn_implementation = before


@torch.no_grad()
def honours_packing(network: Any, dtype: torch.dtype) -> bool:
    """Whether ``network`` gives packed samples the hidden rows of one by one, multiplying in ``dtype``.

    Layers that do not attend at all, that see a window only, or that ignore our attention would mix
    neighbours. So every layer must have used it, and the hidden rows must be the same.
    """
    config = network.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or PLAIN_LAYERS)
    if kinds != PLAIN_LAYERS or any(getattr(config, name, None) for name in LIMITS):
        return False
    device = next(network.parameters()).device
    if device.type == "cuda" and not (dtype in HALF and _has_varlen(config)):
        return False
    packing = Packing.of(PROBE, device)
    ids = torch.arange(1, sum(PROBE) + 1, device=device)[None] * SPREAD % config.vocab_size
    with torch.autocast(device.type, dtype=dtype, enabled=dtype in HALF):
        alone = [rows_of(network(input_ids=part, use_cache=False)) for part in ids.split(PROBE, 1)]
        with packed_attention(network):
            packed = rows_of(run_packed(network, ids, packing))
    wanted = torch.cat(alone, 1)
    near = HALF_ROUNDING if dtype in HALF else ROUNDING
    is_close = bool((packed - wanted).norm() <= near * wanted.norm())
    return len(packing.layers) == int(config.num_hidden_layers) and is_close


def run_packed(network: Any, ids: torch.Tensor, packing: Packing) -> Any:
    """What ``network`` makes of a packed row."""
    return run_packed_row(network, {"input_ids": ids}, packing)


def run_packed_row(network: Any, given: dict[str, torch.Tensor], packing: Packing) -> Any:
    """The same for a row given as ids or embeddings, with positions of its own if it has any."""
    at = {"position_ids": packing.positions, **given}
    return network(**at, use_cache=False, packing=packing)


def rows_of(out: Any) -> torch.Tensor:
    """Hidden rows, or logits of a network that is not split from its head."""
    rows: torch.Tensor = out.logits if "logits" in out else out.last_hidden_state
    return rows


@torch.compiler.disable  # type: ignore[untyped-decorator]  # one graph for any number of samples around it
def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sample of a packed row; tensors are (1, heads, tokens, width)."""
    packing: Packing = more["packing"]
    packing.layers.add(id(module))
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    return packed_causal(q, k, v, packing, scaling)[None], None


def packed_causal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    scaling: float | None,
) -> torch.Tensor:
    """Causal attention within each sample; tensors are (tokens, heads, width)."""
    if value.is_cuda and value.dtype in HALF:
        return _by_varlen(query, key, value, packing, scaling)
    attend_part = partial(
        scaled_dot_product_attention, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    whole_row = (query, key, value)
    parts = [torch.split(each, list(packing.lengths)) for each in whole_row]
    found: dict[int, torch.Tensor] = {}
    for whole, count, rows in packing.groups:
        if not count:
            q, k, v = (each[whole].transpose(0, 1)[None] for each in parts)
            found[whole] = attend_part(q, k, v, is_causal=True)[0].transpose(0, 1)
            continue
        # Samples of one length that lie together are a view; others are filled up to the longest.
        is_even = packing.is_even(rows)
        own = [
            _cut_evenly(each, packing, rows) if is_even else _side_by_side([p[row] for row in rows])
            for each, p in zip(whole_row, parts, strict=True)
        ]
        longest = own[0].shape[2]
        # An expanded view: the backward pass adds up the gradients of all samples that begin so.
        begins = [
            each[whole][:count].transpose(0, 1)[None].expand(len(rows), -1, -1, -1)
            for each in parts[1:]
        ]
        k, v = (torch.cat(pair, dim=2) for pair in zip(begins, own[1:], strict=True))
        # Token t of a sample sees all of the beginning and its own tokens up to t.
        seen = torch.ones(longest, count + longest, dtype=torch.bool).tril(count)
        out = attend_part(own[0], k, v, attn_mask=seen.to(query.device)).transpose(1, 2)
        if is_even:
            found[rows[0]] = out.flatten(0, 1)
        else:
            found |= {row: out[n, : packing.lengths[row]] for n, row in enumerate(rows)}
    return torch.cat([found[row] for row in sorted(found)])


def _cut_evenly(each: torch.Tensor, packing: Packing, rows: Sequence[int]) -> torch.Tensor:
    """(samples, heads, length, width) of samples of one length that lie one after another: a view."""
    length = packing.lengths[rows[0]]
    start = sum(packing.lengths[: rows[0]])
    own = each[start : start + len(rows) * length]
    return own.view(len(rows), length, *each.shape[1:]).transpose(1, 2)


def _side_by_side(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """(samples, heads, longest, width); what is put after a short one is seen by none of its tokens."""
    longest = max(map(len, pieces))
    even = [pad(piece, (0, 0, 0, 0, 0, longest - len(piece))) for piece in pieces]
    return torch.stack(even).transpose(1, 2)


AttentionInterface.register(ATTENTION, attend)


def _by_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    scaling: float | None,
) -> torch.Tensor:
    """One kernel for all samples; rotary embeddings may have made queries and keys float32."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (each.to(value.dtype) for each in (query, key, value))
    more: dict[str, Any] = {}
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in _varlen_settings():
            more["enable_gqa"] = True
        else:
            k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
    bounds, longest = packing.bounds, max(packing.lengths)
    found = varlen_attn(
        q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=(-1, 0), **more
    )
    return cast("torch.Tensor", found)  # a tuple only for those who ask for more


@cache
def _varlen_settings() -> frozenset[str]:
    """Settings of this torch's attention over rows of several samples; none if it has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def _has_varlen(config: Any) -> bool:
    """Whether this GPU and this torch have flash attention for rows of several samples."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    is_fit = width % 8 == 0 and width <= 256
    is_new = "window_size" in _varlen_settings()
    return is_new and is_fit and torch.cuda.get_device_capability() >= (8, 0)
