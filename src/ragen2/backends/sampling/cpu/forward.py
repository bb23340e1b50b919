"""The forward pass of the CPU engine and the cache it reads: few, large operations per layer.

It is not the GPU engine's nor the learner's: on a CPU a layer costs its passes over memory, so rotations are
one complex product in place, residuals are added inside the matrix products (``addmm``), and the tokens that
all rows begin with are attended to in one product for all rows instead of once per row.

One cache per batch, with rows in no order: those that still write are kept in front, so that decoding reads
one block of memory without an index. The GPU's cache cannot move rows like that, because CUDA graphs and
kernels hold on to addresses; what is the same for both is in ``RowCache``.

Shape letters: R rows, T new tokens of a row, N = R x T, H key-value heads, G query heads of each, D numbers
of a head, C tokens shared by all rows, S slots of a row's own. Position ``C + s`` of a conversation is slot
``s`` of its row, so no slot is ever padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from ragen2.backends.decoder import Decoder, DecoderWeights, LayerWeights
from ragen2.backends.sampling.kv_cache import RowCache
from ragen2.types import IntArray

BLOCK = 64
"""Slots are made in steps of so many."""


class CPUCache(RowCache):
    """One batch and the turns that continue it; rows that write are kept in front, in no special order."""

    def __init__(self, shape: tuple[int, int, int], num_rows: int, shared_ids_C: IntArray) -> None:
        super().__init__(num_rows)
        self._num_layers, self._num_heads, self._dim = shape
        self.num_slots = 0
        self.shared_ids_C = shared_ids_C
        self.shared: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Keys and values of the shared tokens, HCD each, one pair per layer."""
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """Keys of all layers, then values."""
        return (*self.keys, *self.values)

    @property
    def num_shared(self) -> int:
        """Tokens that all rows begin with."""
        return len(self.shared_ids_C)

    @property
    def num_bytes(self) -> int:
        """Memory of the rows."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def reserve(self, slots: int) -> None:
        """Make room for so many tokens of each row's own."""
        if slots <= self.num_slots:
            return
        used = self.num_slots
        self.num_slots = -(-max(slots, used + used // 2) // BLOCK) * BLOCK
        shape = (self.num_rows, self._num_heads, self.num_slots, self._dim)
        for tensors in (self.keys, self.values):
            for layer in range(self._num_layers):
                # Zeros, because what a mask leaves out is still multiplied by nought. Made by numpy,
                # which asks for large pages: reading the cache takes a fifth less time for it.
                grown = torch.from_numpy(np.zeros(shape, dtype=np.float32))
                if used:
                    grown[:, :, :used] = tensors[layer]
                    tensors[layer] = grown
                else:
                    tensors.append(grown)

    def adopt(self, other: CPUCache) -> None:
        """Use the memory of a cache that nobody needs any more and that has no fewer rows."""
        self.num_slots = other.num_slots
        self.keys, self.values = other.keys, other.values
        self.held = [b""] * other.num_rows

    def write(
        self, layer: int, at_N: torch.Tensor, keys_ND: torch.Tensor, values_ND: torch.Tensor
    ) -> None:
        """Put heads of new tokens where ``flat_slots`` said."""
        self.keys[layer].view(-1, self._dim).index_copy_(0, at_N, keys_ND)
        self.values[layer].view(-1, self._dim).index_copy_(0, at_N, values_ND)

    def flat_slots(self, row_R: torch.Tensor, slot_RT: torch.Tensor) -> torch.Tensor:
        """Where the heads of new tokens belong in a layer's memory, ordered by row, token, head."""
        heads = torch.arange(self._num_heads)
        first_RT = row_R[:, None] * (self._num_heads * self.num_slots) + slot_RT
        return (first_RT[:, :, None] + heads * self.num_slots).view(-1)

    def to_front(self, rows: Sequence[int]) -> list[int]:
        """Make rows the first ``len(rows)`` ones; the number that each got."""
        count, wanted = len(rows), set(rows)
        holes = [row for row in range(count) if row not in wanted]
        behind = [row for row in rows if row >= count]
        if behind:
            self.swap(
                holes, behind, max(self.known(row) for row in (*holes, *behind)) - self.num_shared
            )
        moved = dict(zip(behind, holes, strict=True))
        return [moved.get(row, row) for row in rows]

    def swap(self, some: Sequence[int], others: Sequence[int], slots: int) -> None:
        """Exchange rows pairwise, as far as ``slots``."""
        here, there = torch.tensor([*some, *others]), torch.tensor([*others, *some])
        for tensor in self.tensors:
            used = tensor[:, :, :slots]
            used.index_copy_(0, here, used.index_select(0, there))
        for a, b in zip(some, others, strict=True):
            self.held[a], self.held[b] = self.held[b], self.held[a]


def shared_beginning(prompts: Sequence[IntArray], least: int) -> IntArray:
    """The ids that all prompts begin with, if at least ``least``; never all of any prompt."""
    first, most = prompts[0], min(len(prompt) for prompt in prompts) - 1
    for prompt in prompts[1:]:
        differ = np.flatnonzero(prompt[:most] != first[:most])
        most = int(differ[0]) if len(differ) else most
    return first[: most if most >= least else 0]


POSITIONS = 512
"""Rotations are made in steps of so many positions."""


@dataclass(frozen=True, slots=True)
class AttentionView:
    """What some of the new tokens see of the cache."""

    row_R: torch.Tensor | None
    """The cache's rows; None for the first ones in order."""
    shape: tuple[int, int]
    """R and T."""
    bias_RTS: torch.Tensor
    """0 where a token sees a slot, minus infinity where it does not; repeated for each head."""


@dataclass(frozen=True, slots=True)
class NewTokens:
    """New tokens, and what all layers need to know about them."""

    token_N: torch.Tensor
    rotation_NHD: torch.Tensor
    """Complex, half a head wide; those of queries also carry the scale of attention."""
    at_N: torch.Tensor
    """Where keys and values go."""
    view: AttentionView
    last_R: torch.Tensor | None
    """The tokens whose hidden states are wanted, one per row; None when all are."""
    last_view: AttentionView


class CPUForward:
    """Runs new tokens through the model against a ``CPUCache``."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._heads, self._dim = decoder.num_kv_heads, decoder.head_dim
        self._queries = decoder.num_heads // decoder.num_kv_heads
        self._weights = self._read_weights()
        self._rotations = torch.empty(0, dtype=torch.complex64)
        scale = torch.ones(decoder.num_heads + decoder.num_kv_heads, 1)
        scale[: decoder.num_heads] = decoder.scale
        self._scale_H1 = scale

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Layers, heads and numbers of a head that a cache holds."""
        return len(self.decoder.layers), self._heads, self._dim

    @property
    def largest(self) -> int:
        """Weights of the largest projection within a layer."""
        return max(each.qkv.numel() + each.gate_up[0].numel() for each in self._weights.layers)

    def refresh(self, version: int) -> bool:
        """Take the weights as they are now; True when ``version`` is a new one.

        They are looked up again, because what is shared may have been put elsewhere.
        """
        if version == self._weights.version:
            return False
        self._weights = self._read_weights()
        return self._weights.refresh(version)

    def _read_weights(self) -> DecoderWeights:
        return DecoderWeights(self.decoder, torch.float32, shares=True, paired=True)

    def reserve_positions(self, length: int) -> None:
        """Rotations for positions up to ``length``."""
        if len(self._rotations) < length:
            cosines, sines = self.decoder.rotary(-(-length // POSITIONS) * POSITIONS)
            self._rotations = torch.complex(cosines, sines)

    def decode(self, cache: CPUCache, token_R: torch.Tensor, slot_R: torch.Tensor) -> torch.Tensor:
        """Hidden states after one more token in each of the first rows; it enters the cache."""
        slots = int(slot_R.max()) + 1
        view = self._view(None, slot_R[:, None], slots)
        rows = torch.arange(len(token_R))
        return self._run(self._new_tokens(cache, token_R, slot_R[:, None], rows, view), cache)

    def prefill(
        self,
        cache: CPUCache,
        token_RT: torch.Tensor,
        slot_RT: torch.Tensor,
        row_R: torch.Tensor,
        wanted_R: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states after the token that each row wants, counted from its first new one."""
        rows, tokens = token_RT.shape
        slots = int(slot_RT.max()) + 1
        view = self._view(row_R, slot_RT, slots)
        new = self._new_tokens(cache, token_RT.reshape(-1), slot_RT, row_R, view)
        last = self._view(row_R, slot_RT.gather(1, wanted_R[:, None]), slots)
        wanted = replace(new, last_R=torch.arange(rows) * tokens + wanted_R, last_view=last)
        return self._run(wanted, cache)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of hidden states."""
        return functional.linear(self._normed(hidden, self._weights.norm), self._weights.head)

    def _new_tokens(
        self,
        cache: CPUCache,
        token_N: torch.Tensor,
        slot_RT: torch.Tensor,
        row_R: torch.Tensor,
        view: AttentionView,
    ) -> NewTokens:
        rotation_ND = self._rotations[(slot_RT + cache.num_shared).view(-1)]
        turned = rotation_ND[:, None] * self._scale_H1
        return NewTokens(token_N, turned, cache.flat_slots(row_R, slot_RT), view, None, view)

    def _view(self, row_R: torch.Tensor | None, slot_RT: torch.Tensor, slots: int) -> AttentionView:
        is_later = torch.arange(slots) > slot_RT[:, :, None]
        bias = torch.zeros(is_later.shape).masked_fill_(is_later, -torch.inf)
        # One matrix per row and key-value head, with a line per token and query head of that group.
        bias = bias[:, None, :, None].expand(-1, self._heads, -1, self._queries, -1)
        rows, tokens = slot_RT.shape
        lines = bias.reshape(rows * self._heads, tokens * self._queries, slots)
        return AttentionView(row_R, (rows, tokens), lines)

    def _run(self, new: NewTokens, cache: CPUCache) -> torch.Tensor:
        x, view = functional.embedding(new.token_N, self._weights.embed), new.view
        last = len(self._weights.layers) - 1
        for number, layer in enumerate(self._weights.layers):
            q, k, v = self._project(x, layer, new)
            cache.write(number, new.at_N, k, v)
            if number == last and new.last_R is not None:
                # Nothing after the last layer's keys and values needs the other tokens.
                x, q, view = x[new.last_R], q[new.last_R], new.last_view
            x = torch.addmm(x, self._attend(number, q, view, cache), layer.o.t())
            normed = self._normed(x, layer.mlp_norm)
            gate, up = layer.gate_up
            gated = functional.silu(functional.linear(normed, gate), inplace=True)
            x = torch.addmm(x, gated.mul_(functional.linear(normed, up)), layer.down.t())
        return x

    def _project(
        self, x: torch.Tensor, layer: LayerWeights, new: NewTokens
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of the new tokens, the first two normed and rotated."""
        joined = functional.linear(self._normed(x, layer.norm), layer.qkv, layer.qkv_bias)
        heads = joined.view(len(x), -1, self._dim)
        queries, turned = self.decoder.num_heads, self.decoder.num_heads + self._heads
        if layer.head_norms:
            q = self._normed(heads[:, :queries], layer.head_norms[0])
            k = self._normed(heads[:, queries:turned], layer.head_norms[1])
            heads = torch.cat([q, k, heads[:, turned:]], dim=1)
        # The rotation by an angle a is the product with cos a + i sin a: one pass, in place. Queries take
        # the scale of attention along, so that scores need no pass of their own.
        pairs = heads[:, :turned].view(len(x), turned, -1, 2)
        torch.view_as_complex(pairs).mul_(new.rotation_NHD)
        k, v = heads[:, queries:turned], heads[:, turned:]
        return heads[:, :queries], k.reshape(-1, self._dim), v.reshape(-1, self._dim)

    def _attend(
        self, layer: int, q: torch.Tensor, view: AttentionView, cache: CPUCache
    ) -> torch.Tensor:
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
        """Attention over the shared tokens, one product for all rows, and a row's own.

        Softmax runs over both kinds of scores at once, [q K_C^T | q K_S^T]; its weights are then split, and
        the two sums of values added: softmax(...) [V_C; V_S] = w_C V_C + w_S V_S.
        """
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
        return functional.rms_norm(x, (x.shape[-1],), weight, self.decoder.eps)


def _seen(tensor: torch.Tensor, view: AttentionView) -> torch.Tensor:
    """Keys or values that a view has, one matrix per row and head."""
    matrices, _, slots = view.bias_RTS.shape
    if view.row_R is None:
        return tensor.view(-1, *tensor.shape[2:])[:matrices, :slots]
    return tensor[:, :, :slots].index_select(0, view.row_R).view(matrices, slots, -1)


def _swapped(lines: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows x heads in front -> heads x rows."""
    return lines.view(-1, heads, *lines.shape[1:]).transpose(0, 1)
