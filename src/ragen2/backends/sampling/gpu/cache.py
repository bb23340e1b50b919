"""A preallocated key-value cache whose rows stay with their conversation from turn to turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ragen2.backends.device import free_memory
from ragen2.types import IntArray

ROUND = 256
"""Rows grow in steps of so many tokens, because growing means new CUDA graphs."""
ROOMY = 1024
"""Tokens a row starts with where memory is plenty, so that a conversation's turns do not grow it."""
ROOMY_SHARE, FULL_SHARE = 0.1, 0.3
"""Shares of the memory that is free without a cache, for a roomy and for a growing one.

The rest is the learner's, which works while the rows wait.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request's tokens live: its row, how many are there already, and whose row to copy."""

    slot: int
    known: int
    copy_of: int
    """The request whose row is copied after it was read; the request itself where it reads its own."""


class SlotCache:
    """Keys and values as ``[layer, slot, head, token, dim]``; the last slot is for lanes without a row."""

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._layers, self._heads, self._dim = num_layers, num_heads, head_dim
        self._dtype, self._device = dtype, device
        self.num_slots = self.num_tokens = 0
        self.keys = self.values = self._empty(0, 0)
        self._held: list[bytes] = []
        """The token ids each row has read, as bytes; empty where a row holds nothing of use."""
        self._used: list[int] = []
        """Which call of ``place`` gave a row away last."""
        self._calls = 0

    @property
    def trash(self) -> int:
        """The slot that nobody reads."""
        return self.num_slots

    def bytes_of(self, slots: int, tokens: int) -> int:
        """Memory of a cache of this size."""
        numbers = 2 * self._layers * self._heads * self._dim
        return numbers * slots * tokens * self._dtype.itemsize

    def rows_that_fit(self, tokens: int) -> int:
        """How many rows of so many tokens this cache's share has room for, at least one."""
        size = self.bytes_of(1, _rounded(tokens))
        own = self.bytes_of(self.num_slots, self.num_tokens)
        return max(1, int(FULL_SHARE * (self._free_memory() + own) // size) - 1)

    def reserve(self, slots: int, tokens: int) -> bool:
        """Make room for so many rows of so many tokens; True when the memory has moved."""
        if slots <= self.num_slots and tokens <= self.num_tokens:
            return False
        tokens = max(_rounded(tokens), self.num_tokens)
        # Longer rows may leave no room for all there are: those beyond what is asked for are let go.
        slots = max(slots, min(self.num_slots, self.rows_that_fit(tokens)))
        if self.bytes_of(slots, ROOMY) < ROOMY_SHARE * self._free_memory():
            tokens = max(tokens, ROOMY)
        kept, used = min(slots, self.num_slots), self.num_tokens
        if not any(self._held):  # nothing to move: no need to hold both at once
            self.keys = self.values = self._empty(0, 0)
            kept = used = 0
        keys, values = self._empty(slots + 1, tokens), self._empty(slots + 1, tokens)
        keys[:, :kept, :, :used] = self.keys[:, :kept]
        values[:, :kept, :, :used] = self.values[:, :kept]
        self.keys, self.values = keys, values
        self._held = self._held[:kept] + [b""] * (slots - kept)
        self._used = self._used[:kept] + [0] * (slots - kept)
        self.num_slots, self.num_tokens = slots, tokens
        return True

    def forget(self) -> None:
        """Nothing held is of use any more: the weights have changed."""
        self._held = [b""] * self.num_slots

    def hold(self, slot: int, ids_T: IntArray) -> None:
        """Note what a row has read."""
        self._held[slot] = ids_T.tobytes()

    def waiting(self, prompts: Sequence[IntArray]) -> int:
        """Rows of the call before that these prompts do not continue: another cohort's, perhaps."""
        taken = {slot for slot, _ in self._continued(_distinct(prompts)).values()}
        recent = zip(self._held, self._used, strict=True)
        is_waiting = [bool(held) and used == self._calls for held, used in recent]
        return sum(is_waiting) - sum(is_waiting[slot] for slot in taken)

    def with_image_ids(self, prompts: Sequence[IntArray]) -> list[Place]:
        """A row for every prompt: the one it continues, or the one that was used longest ago.

        Equal prompts are read once; the others copy.
        """
        data = [prompt.tobytes() for prompt in prompts]
        leaders = _distinct(prompts)
        known = self._continued(leaders)
        taken = {slot for slot, _ in known.values()}
        order = sorted(
            range(self.num_slots), key=lambda slot: (self._held[slot] != b"", self._used[slot])
        )
        free = iter([slot for slot in order if slot not in taken])
        self._calls += 1
        places: list[Place] = []
        for index, ids in enumerate(data):
            leader = leaders[ids]
            slot, count = known[ids] if index == leader and ids in known else (next(free), 0)
            places.append(Place(slot, count, leader))
        for place in places:
            self._held[place.slot], self._used[place.slot] = b"", self._calls
        return places

    def copy_rows(self, pairs: Sequence[tuple[int, int]], tokens: int) -> None:
        """Copy the first tokens of rows: (from, to) each."""
        if not pairs:
            return
        source = torch.tensor([a for a, _ in pairs], device=self._device)
        target = torch.tensor([b for _, b in pairs], device=self._device)
        for layers in (self.keys, self.values):
            for layer in layers:
                layer[target, :, :tokens] = layer[source, :, :tokens]

    def _continued(self, prompts: Iterable[bytes]) -> dict[bytes, tuple[int, int]]:
        """For prompts that begin with all a row has read: that row, and how many tokens it holds."""
        rows = {ids: slot for slot, ids in enumerate(self._held) if ids}
        lengths = sorted({len(ids) for ids in rows}, reverse=True)
        found: dict[bytes, tuple[int, int]] = {}
        taken: set[int] = set()
        for data in prompts:
            at = next((n for n in lengths if n < len(data) and data[:n] in rows), 0)
            if at and (slot := rows[data[:at]]) not in taken:
                taken.add(slot)
                found[data] = (slot, at // 8)  # ids are int64
        return found

    def _empty(self, slots: int, tokens: int) -> torch.Tensor:
        shape = (self._layers, slots, self._heads, tokens, self._dim)
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def _free_memory(self) -> int:
        if self._device.type != "cuda":
            return 2**33
        return free_memory(self._device)


def _distinct(prompts: Sequence[IntArray]) -> dict[bytes, int]:
    """Every different prompt, and the first place where it stands."""
    found: dict[bytes, int] = {}
    for index, prompt in enumerate(prompts):
        found.setdefault(prompt.tobytes(), index)
    return found


def _rounded(tokens: int) -> int:
    return -(-tokens // ROUND) * ROUND
