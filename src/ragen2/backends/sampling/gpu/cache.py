"""The GPU engine's key-value cache: preallocated rows that stay with their conversation from turn to turn.

One tensor for all layers and calls, because captured CUDA graphs hold on to addresses: rows are given to
prompts and never moved, and growing it costs every graph. The CPU's cache packs rows instead; what is the
same for both is in ``RowCache``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ragen2.backends.device import free_memory
from ragen2.backends.sampling.kv_cache import RowCache
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
class RowAssignment:
    """Where a request's tokens live: its row, how many are there already, and whose row to copy."""

    row: int
    known: int
    copy_of: int
    """The request whose row is copied after its prefill; the request itself where it prefills its own."""


class GPUCache(RowCache):
    """Keys and values as ``[layer, row, head, token, dim]``; one more row is for lanes without one."""

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(0)
        self._layers, self._heads, self._dim = num_layers, num_heads, head_dim
        self._dtype, self._device = dtype, device
        self.num_tokens = 0
        self.keys = self.values = self._empty(0, 0)
        self._used: list[int] = []
        """Which call of ``assign`` gave a row away last."""
        self._calls = 0
        self._thrift = 1.0
        """What its shares of memory are multiplied by: less, once memory has run out."""

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """Keys of all layers, then values."""
        return (*self.keys, *self.values)

    @property
    def trash(self) -> int:
        """The row that nobody reads: lanes without a request write there, so that no kernel has to ask."""
        return self.num_rows

    def bytes_of(self, rows: int, tokens: int) -> int:
        """Memory of a cache of this size."""
        numbers = 2 * self._layers * self._heads * self._dim
        return numbers * rows * tokens * self._dtype.itemsize

    def rows_that_fit(self, tokens: int) -> int:
        """How many rows of so many tokens this cache's share has room for, at least one."""
        size = self.bytes_of(1, _rounded(tokens))
        own = self.bytes_of(self.num_rows, self.num_tokens)
        share = self._thrift * FULL_SHARE
        return max(1, int(share * (self._free_memory() + own) // size) - 1)

    def reserve(self, rows: int, tokens: int) -> bool:
        """Make room for so many rows of so many tokens; True when the memory has moved."""
        if rows <= self.num_rows and tokens <= self.num_tokens:
            return False
        tokens = max(_rounded(tokens), self.num_tokens)
        # Longer rows may leave no room for all there are: those beyond what is asked for are let go.
        rows = max(rows, min(self.num_rows, self.rows_that_fit(tokens)))
        if self.bytes_of(rows, ROOMY) < self._thrift * ROOMY_SHARE * self._free_memory():
            tokens = max(tokens, ROOMY)
        kept, used = min(rows, self.num_rows), self.num_tokens
        has_room = self.bytes_of(rows + 1, tokens) <= self._free_memory()
        if not any(self.held) or not has_room:  # nothing to move, or no memory for both at once
            self.drop()
            kept = used = 0
        keys, values = self._empty(rows + 1, tokens), self._empty(rows + 1, tokens)
        keys[:, :kept, :, :used] = self.keys[:, :kept]
        values[:, :kept, :, :used] = self.values[:, :kept]
        self.keys, self.values = keys, values
        self.held = self.held[:kept] + [b""] * (rows - kept)
        self._used = self._used[:kept] + [0] * (rows - kept)
        self.num_tokens = tokens
        return True

    def drop(self) -> None:
        """Hold no memory; rows are read again when they are needed."""
        self.keys = self.values = self._empty(0, 0)
        self.held, self._used, self.num_tokens = [], [], 0

    def be_thrifty(self) -> None:
        """Take half as large a share of memory from now on."""
        self._thrift /= 2

    def waiting(self, prompts: Sequence[IntArray]) -> int:
        """Rows of the call before that these prompts do not continue: another cohort's, perhaps."""
        taken = self.continued(list(_distinct(prompts))).values()
        recent = zip(self.held, self._used, strict=True)
        is_waiting = [bool(held) and used == self._calls for held, used in recent]
        return sum(is_waiting) - sum(is_waiting[row] for row in taken)

    def assign(self, prompts: Sequence[IntArray]) -> list[RowAssignment]:
        """A row for every prompt: the one it continues, or the one that was used longest ago.

        Equal prompts are prefilled once; the others copy.
        """
        leaders = _distinct(prompts)
        rows = self.continued(list(leaders))
        continued = {leader: rows[n] for n, leader in enumerate(leaders.values()) if n in rows}
        by_age = sorted(
            range(self.num_rows), key=lambda row: (bool(self.held[row]), self._used[row])
        )
        free = iter([row for row in by_age if row not in set(rows.values())])
        self._calls += 1
        assigned = []
        for number, prompt in enumerate(prompts):
            is_known = number in continued
            row = continued[number] if is_known else next(free)
            known = self.known(row) if is_known else 0
            assigned.append(RowAssignment(row, known, leaders[prompt.tobytes()]))
        for one in assigned:
            self.held[one.row], self._used[one.row] = b"", self._calls
        return assigned

    def _empty(self, rows: int, tokens: int) -> torch.Tensor:
        shape = (self._layers, rows, self._heads, tokens, self._dim)
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def _free_memory(self) -> int:
        if self._device.type != "cuda":
            return 2**33
        return free_memory(self._device)


def _distinct(prompts: Sequence[IntArray]) -> dict[bytes, int]:
    """Every different prompt, and the number of the first that is equal to it."""
    found: dict[bytes, int] = {}
    for index, prompt in enumerate(prompts):
        found.setdefault(prompt.tobytes(), index)
    return found


def _rounded(tokens: int) -> int:
    return -(-tokens // ROUND) * ROUND
