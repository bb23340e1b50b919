"""Several samples in one row without padding: each reads only itself, whatever lies beside it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION = "ragen2_packed"
"""Our attention's name among those of transformers."""
HALF = (torch.bfloat16, torch.float16)
PLAIN_LAYERS = {"full_attention"}
LIMITS = ("sliding_window", "attention_chunk_size", "attn_logit_softcapping")
"""Settings of a model that let a token see less than all before it, or see it otherwise."""
PROBE = (5, 9, 2)
"""Lengths of the samples that a network is tried on."""
SPREAD = 2_654_435_761
"""Steps through a vocabulary: ordinary tokens, because special ones in a row upset a model in bfloat16."""
ROUNDING = 1e-4
HALF_ROUNDING = 0.1
"""How far the two ways to read may differ in all: rounding is ten times less, mixing four times more."""


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
    layers: set[int] = field(default_factory=set)
    """Which attention layers have used it: how a network shows that all of them do."""

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
        return cls(tuple(lengths), begins, bounds.to(device), positions.to(device))


@contextmanager
def packed_attention(network: Any) -> Iterator[None]:
    """Let ``network`` read packed rows; around the backward pass too, if layers are computed again."""
    before = network.config._attn_implementation
    network.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        network.config._attn_implementation = before


@torch.no_grad()
def honours_packing(network: Any, dtype: torch.dtype) -> bool:
    """Whether ``network`` reads packed samples as it reads them one by one, multiplying in ``dtype``.

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
            packed = rows_of(read_packed(network, ids, packing))
    wanted = torch.cat(alone, 1)
    near = HALF_ROUNDING if dtype in HALF else ROUNDING
    is_close = bool((packed - wanted).norm() <= near * wanted.norm())
    return len(packing.layers) == int(config.num_hidden_layers) and is_close


def read_packed(network: Any, ids: torch.Tensor, packing: Packing) -> Any:
    """What ``network`` makes of a packed row."""
    return network(input_ids=ids, position_ids=packing.positions, use_cache=False, packing=packing)


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
    if value.is_cuda and value.dtype in HALF:
        return _by_varlen(query, key, value, packing, scaling), None
    is_grouped = query.shape[1] != key.shape[1]
    parts = [torch.split(each, list(packing.lengths), dim=2) for each in (query, key, value)]
    read = []
    for row, (_, count) in enumerate(packing.shared):
        q, k, v = (_whole(part, row, packing) for part in parts)
        out = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scaling, enable_gqa=is_grouped
        )
        read.append(out[:, :, count:])
    return torch.cat(read, dim=2).transpose(1, 2), None


def _whole(parts: Sequence[torch.Tensor], row: int, packing: Packing) -> torch.Tensor:
    """A sample with the beginning it shares put before what is its own."""
    other, count = packing.shared[row]
    return torch.cat([parts[other][:, :, :count], parts[row]], dim=2) if count else parts[row]


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

    heads = query.shape[1]
    q, k, v = (
        each[0].transpose(0, 1).to(value.dtype).repeat_interleave(heads // each.shape[1], dim=1)
        for each in (query, key, value)
    )
    bounds, longest = packing.bounds, max(packing.lengths)
    read = varlen_attn(
        q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=(-1, 0)
    )
    return cast("torch.Tensor", read)[None]  # a tuple only for those who ask for more


def _has_varlen(config: Any) -> bool:
    """Whether this GPU and this torch have flash attention for rows of several samples."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    is_new = "window_size" in inspect.signature(varlen_attn).parameters
    return (
        is_new and width % 8 == 0 and width <= 256 and torch.cuda.get_device_capability() >= (8, 0)
    )
