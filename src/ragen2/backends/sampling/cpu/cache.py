"""Keys and values of a batch on the CPU: what all rows begin with once, and each row's own tokens.

One cache per batch, with rows in no order: those that still write are kept in front, so that decoding reads
one block of memory without an index. The GPU's cache cannot move rows like that, because CUDA graphs and
kernels hold on to addresses; what is the same for both is in ``RowCache``.

Shape letters: R rows, H key-value heads, C tokens that all rows share, S tokens of a row's own, D numbers of
a head. Position ``C + s`` of a conversation is slot ``s`` of its row, so no slot is ever padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

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
