"""The forward pass of the CPU engine: few, large operations a layer, the same for one new token or many.

Shape letters: R rows, T new tokens of a row, N = R x T, H key-value heads, G query heads of each, D numbers
of a head, C tokens shared by all rows, S slots of a row's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from ragen2.backends.decoder import Block, Family
from ragen2.backends.sampling.cpu.cache import RowCache

POSITIONS = 512
"""Rotations are made in steps of so many positions."""


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """One layer. Only the projections to heads are copies: joined, with rotated pairs side by side."""

    norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: torch.Tensor
    mlp_norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class View:
    """What some of the new tokens see of the cache."""

    row_R: torch.Tensor | None
    """The cache's rows; None for the first ones in order."""
    shape: tuple[int, int]
    """R and T."""
    bias_RTS: torch.Tensor
    """0 where a token sees a slot, minus infinity where it does not; repeated for each head."""


@dataclass(frozen=True, slots=True)
class Step:
    """New tokens, and what all layers need to know about them."""

    token_N: torch.Tensor
    rotation_NHD: torch.Tensor
    """Complex, half a head wide; those of queries also carry the scale of attention."""
    at_N: torch.Tensor
    """Where keys and values go."""
    view: View
    last_R: torch.Tensor | None
    """The tokens whose hidden states are wanted, one a row; None when all are."""
    last_view: View


class Forward:
    """Runs new tokens through the model against a ``RowCache``."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._heads, self._dim = family.num_kv_heads, family.head_dim
        self._queries = family.num_heads // family.num_kv_heads
        self._embed = self._norm = self._head = torch.empty(0)
        self._blocks: list[BlockWeights] = []
        self._rotations = torch.empty(0, dtype=torch.complex64)
        scale = torch.ones(family.num_heads + family.num_kv_heads, 1)
        scale[: family.num_heads] = family.head_dim**-0.5
        self._scale_H1 = scale

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Layers, heads and numbers of a head that a cache holds."""
        return len(self.family.blocks), self._heads, self._dim

    @property
    def largest(self) -> int:
        """Weights of the largest projection within a layer."""
        return max(block.qkv.numel() + block.gate.numel() for block in self._blocks)

    @property
    def width(self) -> int:
        """Numbers of a hidden state."""
        return int(self._embed.shape[1])

    def refresh(self) -> None:
        """Take the weights as they are now."""
        family = self.family
        self._embed, self._norm = family.embed.weight.detach(), family.norm.weight.detach()
        self._head = family.head.weight.detach()
        self._blocks = [_weights(block, self._dim) for block in family.blocks]

    def reserve_positions(self, length: int) -> None:
        """Rotations for positions up to ``length``."""
        if len(self._rotations) < length:
            cosines, sines = self.family.rotary(-(-length // POSITIONS) * POSITIONS)
            self._rotations = torch.complex(cosines, sines)

    def decode(self, cache: RowCache, token_R: torch.Tensor, slot_R: torch.Tensor) -> torch.Tensor:
        """Hidden states after one more token in each of the first rows; it enters the cache."""
        slots = int(slot_R.max()) + 1
        view = self._view(None, slot_R[:, None], slots)
        rows = torch.arange(len(token_R))
        return self._run(self._step(cache, token_R, slot_R[:, None], rows, view), cache)

    def read(
        self,
        cache: RowCache,
        token_RT: torch.Tensor,
        slot_RT: torch.Tensor,
        row_R: torch.Tensor,
        wanted_R: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states after the token that each row wants, counted from its first new one."""
        rows, tokens = token_RT.shape
        slots = int(slot_RT.max()) + 1
        view = self._view(row_R, slot_RT, slots)
        step = self._step(cache, token_RT.reshape(-1), slot_RT, row_R, view)
        last = self._view(row_R, slot_RT.gather(1, wanted_R[:, None]), slots)
        wanted = replace(step, last_R=torch.arange(rows) * tokens + wanted_R, last_view=last)
        return self._run(wanted, cache)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of hidden states."""
        return functional.linear(self._normed(hidden, self._norm), self._head)

    def _step(
        self,
        cache: RowCache,
        token_N: torch.Tensor,
        slot_RT: torch.Tensor,
        row_R: torch.Tensor,
        view: View,
    ) -> Step:
        rotation_ND = self._rotations[(slot_RT + cache.num_shared).view(-1)]
        turned = rotation_ND[:, None] * self._scale_H1
        return Step(token_N, turned, cache.places(row_R, slot_RT), view, None, view)

    def _view(self, row_R: torch.Tensor | None, slot_RT: torch.Tensor, slots: int) -> View:
        is_later = torch.arange(slots) > slot_RT[:, :, None]
        bias = torch.zeros(is_later.shape).masked_fill_(is_later, -torch.inf)
        # One matrix a row and key-value head, with a line a token and query head of that group.
        bias = bias[:, None, :, None].expand(-1, self._heads, -1, self._queries, -1)
        rows, tokens = slot_RT.shape
        lines = bias.reshape(rows * self._heads, tokens * self._queries, slots)
        return View(row_R, (rows, tokens), lines)

    def _run(self, step: Step, cache: RowCache) -> torch.Tensor:
        x, view = functional.embedding(step.token_N, self._embed), step.view
        for layer, block in enumerate(self._blocks):
            q, k, v = self._project(x, block, step)
            cache.write(layer, step.at_N, k, v)
            if layer + 1 == len(self._blocks) and step.last_R is not None:
                # Nothing after the last layer's keys and values needs the other tokens.
                x, q, view = x[step.last_R], q[step.last_R], step.last_view
            x = torch.addmm(x, self._attend(layer, q, view, cache), block.o.t())
            normed = self._normed(x, block.mlp_norm)
            gated = functional.silu(functional.linear(normed, block.gate), inplace=True)
            x = torch.addmm(x, gated.mul_(functional.linear(normed, block.up)), block.down.t())
        return x

    def _project(
        self, x: torch.Tensor, block: BlockWeights, step: Step
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of the new tokens, the first two normed and rotated."""
        joined = functional.linear(self._normed(x, block.norm), block.qkv, block.qkv_bias)
        heads = joined.view(len(x), -1, self._dim)
        queries, turned = self.family.num_heads, self.family.num_heads + self._heads
        if block.q_norm is not None and block.k_norm is not None:
            q = self._normed(heads[:, :queries], block.q_norm)
            k = self._normed(heads[:, queries:turned], block.k_norm)
            heads = torch.cat([q, k, heads[:, turned:]], dim=1)
        pairs = heads[:, :turned].view(len(x), turned, -1, 2)
        torch.view_as_complex(pairs).mul_(step.rotation_NHD)
        k, v = heads[:, queries:turned], heads[:, turned:]
        return heads[:, :queries], k.reshape(-1, self._dim), v.reshape(-1, self._dim)

    def _attend(self, layer: int, q: torch.Tensor, view: View, cache: RowCache) -> torch.Tensor:
        """What tokens take from the shared ones, from earlier ones of their row, and from each other."""
        (rows, tokens), count, dim = view.shape, self._heads, self._dim
        keys, values = (_seen(tensors[layer], view) for tensors in (cache.keys, cache.values))
        q = q.reshape(rows, tokens, count, self._queries, dim).transpose(1, 2)
        q = q.reshape(rows * count, tokens * self._queries, dim)
        scores = torch.baddbmm(view.bias_RTS, q, keys.transpose(1, 2))
        if cache.num_shared:
            out = self._with_shared(scores, q, values, cache.shared[layer])
        else:
            out = torch.bmm(torch.softmax(scores, -1), values)
        out = out.view(rows, count, tokens, self._queries, dim).transpose(1, 2)
        return out.reshape(rows * tokens, -1)

    def _with_shared(
        self,
        scores: torch.Tensor,
        q: torch.Tensor,
        values: torch.Tensor,
        shared: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Attention over the shared tokens, one product for all rows, and a row's own."""
        keys_HCD, values_HCD = shared
        count, size, lines = self._heads, keys_HCD.shape[1], q.shape[1]
        by_head = _swapped(q, count).reshape(count, -1, self._dim)
        early = torch.bmm(by_head, keys_HCD.transpose(1, 2)).view(count, -1, lines, size)
        early = early.transpose(0, 1).reshape(-1, lines, size)
        weights = torch.softmax(torch.cat([early, scores], dim=-1), -1)
        out = torch.bmm(weights[:, :, size:], values)
        by_head = _swapped(weights[:, :, :size], count).reshape(count, -1, size)
        early = torch.bmm(by_head, values_HCD).view(count, -1, lines, self._dim)
        return out.view(-1, count, lines, self._dim).add_(early.transpose(0, 1))

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.family.eps)


def _seen(tensor: torch.Tensor, view: View) -> torch.Tensor:
    """Keys or values that a view has, one matrix a row and head."""
    matrices, _, slots = view.bias_RTS.shape
    if view.row_R is None:
        return tensor.view(-1, *tensor.shape[2:])[:matrices, :slots]
    return tensor[:, :, :slots].index_select(0, view.row_R).view(matrices, slots, -1)


def _swapped(lines: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows x heads in front -> heads x rows."""
    return lines.view(-1, heads, *lines.shape[1:]).transpose(0, 1)


def _weights(block: Block, dim: int) -> BlockWeights:
    pairs = torch.arange(dim).view(2, -1).t().reshape(-1)
    turned = (block.q, block.k)
    has_bias = block.q.bias is not None
    return BlockWeights(
        norm=block.norm.weight.detach(),
        qkv=_joined([module.weight for module in turned], block.v.weight, pairs),
        qkv_bias=_joined([m.bias for m in turned], block.v.bias, pairs) if has_bias else None,
        q_norm=_paired(block.q_norm, pairs),
        k_norm=_paired(block.k_norm, pairs),
        o=block.o.weight.detach(),
        mlp_norm=block.mlp_norm.weight.detach(),
        gate=block.gate.weight.detach(),
        up=block.up.weight.detach(),
        down=block.down.weight.detach(),
    )


def _joined(
    turned: Sequence[torch.Tensor], plain: torch.Tensor, pairs: torch.Tensor
) -> torch.Tensor:
    """Rotated projections with the two numbers of each pair side by side, then the plain one.

    Products of queries and keys do not change when both are put in another order.
    """
    heads = [part.detach().view(-1, len(pairs), *part.shape[1:])[:, pairs] for part in turned]
    return torch.cat([*(part.flatten(0, 1) for part in heads), plain.detach()])


def _paired(norm: Any | None, pairs: torch.Tensor) -> torch.Tensor | None:
    return None if norm is None else norm.weight.detach()[pairs]
