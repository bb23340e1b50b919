"""Bring prompts into a cache: what all begin with once, equal prompts once, and else only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ragen2.backends.sampling.cpu.cache import RowCache
from ragen2.backends.sampling.cpu.forward import Forward
from ragen2.types import IntArray

PIECE = 256
"""New tokens of a row that are read at once: attention's scores are held for all of them."""
READ_TOKENS = 512
"""New tokens of all rows that are read at once: scores of attention that stay in a core's cache."""
SPREAD = 1.25
"""Rows are read together while none has more new tokens than so many times the first one's."""


@dataclass(frozen=True, slots=True, eq=False)
class Unread:
    """A row and what it has yet to read; ``start`` is the slot of the first such token."""

    row: int
    start: int
    ids_T: IntArray


def read_shared(forward: Forward, cache: RowCache) -> None:
    """Read what all rows of the cache begin with."""
    count = cache.num_shared
    if not count:
        return
    once = RowCache(forward.cache_shape, 1, cache.shared_ids_C[:0])
    read(forward, once, [Unread(0, 0, cache.shared_ids_C)])
    cache.shared = [
        (keys[0, :, :count].contiguous(), values[0, :, :count].contiguous())
        for keys, values in zip(once.keys, once.values, strict=True)
    ]


def read(forward: Forward, cache: RowCache, unread: Sequence[Unread]) -> torch.Tensor:
    """The hidden state after each row's last new token, in the order given."""
    cache.reserve(max(one.start + len(one.ids_T) for one in unread))
    last = torch.empty(len(unread), forward.width)
    for numbers in _batches([len(one.ids_T) for one in unread]):
        last[torch.tensor(numbers)] = _read_batch(forward, cache, [unread[n] for n in numbers])
    return last


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows with about as many new tokens, so that little is padding."""
    batch: list[int] = []
    for number in np.argsort(lengths, kind="stable").tolist():
        length = lengths[number]
        is_full = batch and (len(batch) + 1) * min(length, PIECE) > READ_TOKENS
        if batch and (is_full or length > SPREAD * lengths[batch[0]]):
            yield batch
            batch = []
        batch.append(number)
    yield batch


def _read_batch(forward: Forward, cache: RowCache, unread: Sequence[Unread]) -> torch.Tensor:
    """As ``read``; tokens of shorter rows are filled up behind, where nothing looks."""
    ends_R = torch.tensor([len(one.ids_T) for one in unread])
    start_R = torch.tensor([one.start for one in unread])
    row_R = torch.tensor([one.row for one in unread])
    longest = int(ends_R.max())
    ids_RT = torch.zeros(len(unread), longest, dtype=torch.long)
    for line, one in zip(ids_RT, unread, strict=True):
        line[: len(one.ids_T)] = torch.as_tensor(one.ids_T)
    cache.reserve(int(start_R.max()) + longest)
    last = torch.empty(len(unread), forward.width)
    for begin in range(0, longest, PIECE):
        piece_RT = ids_RT[:, begin : begin + PIECE]
        count = piece_RT.shape[1]
        slot_RT = start_R[:, None] + torch.arange(begin, begin + count)
        at_R = ends_R - 1 - begin
        hidden = forward.read(cache, piece_RT, slot_RT, row_R, at_R.clamp(0, count - 1))
        ends_here_R = (at_R >= 0) & (at_R < count)
        last[ends_here_R] = hidden[ends_here_R]
    return last
