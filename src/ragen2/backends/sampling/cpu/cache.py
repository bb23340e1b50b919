"""Keys and values of a batch on the CPU: what all rows begin with once, and each row's own tokens.

Shape letters: R rows, H key-value heads, C tokens that all rows share, S tokens of a row's own, D numbers of
a head. Position ``C + s`` of a conversation is slot ``s`` of its row, so no slot is ever padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ragen2.types import IntArray

BLOCK = 64
"""Slots are made in steps of so many."""


class RowCache:
    """One batch and the turns that continue it; rows that write are kept in front, in no special order."""

    def __init__(self, shape: tuple[int, int, int], num_rows: int, shared_ids_C: IntArray) -> None:
        self._num_layers, self._num_heads, self._dim = shape
        self.num_rows = num_rows
        self.num_slots = 0
        self.shared_ids_C = shared_ids_C
        self.shared: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Keys and values of the shared tokens, HCD each, one pair a layer."""
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._held: list[bytes] = [b""] * num_rows
        """The token ids each row has read, as bytes; empty where a row holds nothing of use."""

    @property
    def num_shared(self) -> int:
        """Tokens that all rows begin with."""
        return len(self.shared_ids_C)

    @property
    def num_bytes(self) -> int:
        """Memory of the rows."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

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

    def adopt(self, other: RowCache) -> None:
        """Use the memory of a cache that nobody needs any more and that has no fewer rows."""
        self.num_rows, self.num_slots = other.num_rows, other.num_slots
        self.keys, self.values = other.keys, other.values
        self._held = [b""] * self.num_rows

    def write(
        self, layer: int, at_N: torch.Tensor, keys_ND: torch.Tensor, values_ND: torch.Tensor
    ) -> None:
        """Put heads of new tokens into the places that ``places`` gave."""
        self.keys[layer].view(-1, self._dim).index_copy_(0, at_N, keys_ND)
        self.values[layer].view(-1, self._dim).index_copy_(0, at_N, values_ND)

    def places(self, row_R: torch.Tensor, slot_RT: torch.Tensor) -> torch.Tensor:
        """Where the heads of new tokens belong, ordered by row, token, head."""
        heads = torch.arange(self._num_heads)
        first_RT = row_R[:, None] * (self._num_heads * self.num_slots) + slot_RT
        return (first_RT[:, :, None] + heads * self.num_slots).view(-1)

    def hold(self, row: int, ids_T: IntArray) -> None:
        """Note what a row has read."""
        self._held[row] = ids_T.tobytes()

    def continued(self, prompts: Sequence[IntArray]) -> dict[int, int]:
        """Prompts that begin with all a row has read: their number -> the row; a row is given once."""
        rows: dict[bytes, list[int]] = {}
        for row, ids in enumerate(self._held):
            rows.setdefault(ids, []).append(row)
        lengths = sorted({len(ids) for ids in rows if ids}, reverse=True)
        found: dict[int, int] = {}
        for number, prompt in enumerate(prompts):
            data = prompt.tobytes()
            at = next((n for n in lengths if n < len(data) and rows.get(data[:n])), 0)
            if at:
                found[number] = rows[data[:at]].pop(0)
        return found

    def known(self, row: int) -> int:
        """Tokens that a row has read, shared ones included."""
        return len(self._held[row]) // np.dtype(np.int64).itemsize

    def to_front(self, rows: Sequence[int]) -> list[int]:
        """Move rows into the first ``len(rows)`` places; the place that each got."""
        count, wanted = len(rows), set(rows)
        holes = [row for row in range(count) if row not in wanted]
        behind = [row for row in rows if row >= count]
        if behind:
            self.swap(
                holes, behind, max(self.known(row) for row in (*holes, *behind)) - self.num_shared
            )
        moved = dict(zip(behind, holes, strict=True))
        return [moved.get(row, row) for row in rows]

    def copy_rows(self, source: Sequence[int], target: Sequence[int], slots: int) -> None:
        """Copy the first slots of some rows into others."""
        if not source:
            return
        come, go = torch.tensor(source), torch.tensor(target)
        for tensor in (*self.keys, *self.values):
            used = tensor[:, :, :slots]
            used.index_copy_(0, go, used.index_select(0, come))

    def swap(self, some: Sequence[int], others: Sequence[int], slots: int) -> None:
        """Exchange rows pairwise, as far as ``slots``."""
        here, there = torch.tensor([*some, *others]), torch.tensor([*others, *some])
        for tensor in (*self.keys, *self.values):
            used = tensor[:, :, :slots]
            used.index_copy_(0, here, used.index_select(0, there))
        for a, b in zip(some, others, strict=True):
            self._held[a], self._held[b] = self._held[b], self._held[a]


def shared_beginning(prompts: Sequence[IntArray], least: int) -> IntArray:
    """The ids that all prompts begin with, if at least ``least``; never all of any prompt."""
    first, most = prompts[0], min(len(prompt) for prompt in prompts) - 1
    for prompt in prompts[1:]:
        differ = np.flatnonzero(prompt[:most] != first[:most])
        most = int(differ[0]) if len(differ) else most
    return first[: most if most >= least else 0]
