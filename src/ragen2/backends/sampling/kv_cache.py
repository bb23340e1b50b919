"""Keys and values that outlive a call, so that the next turn only prefills its new tokens.

In a multi-turn rollout each prompt begins with everything that was read and written before. A row of a cache
is only used for a prompt that continues what it holds, token for token, under the very weights that made it.

Three caches do this, over three data structures that must differ: ``CPUCache`` (sampling/cpu) keeps a batch's
rows packed and moves them, ``GPUCache`` (sampling/gpu) never moves a row because CUDA graphs point at it, and
``KVMemory`` wraps the cache of transformers, whose rows are padded on the left and masked. What a row holds,
and which row a prompt continues, is the same for all and is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicLayer

from ragen2.types import IntArray

MAX_BYTES = 2**31
"""A larger cache is not kept: prefilling prompts again is slower, but fits."""


def weights_version(network: Any) -> int:
    """A number that changes whenever any weight is changed in place."""
    return sum(parameter._version for parameter in network.parameters())


class HeldRows:
    """Finds the rows of a cache that a prompt continues; rows that hold nothing are left out."""

    def __init__(self, held: Sequence[bytes]) -> None:
        self._rows: dict[bytes, list[int]] = {}
        for row, ids in enumerate(held):
            if ids:
                self._rows.setdefault(ids, []).append(row)
        self._lengths = sorted({len(ids) for ids in self._rows}, reverse=True)

    def longest(self, prompt: bytes) -> list[int]:
        """The rows that hold most of the prompt's beginning, and never all of the prompt.

        At least one token must be new, because its hidden state is what the next token is drawn from.
        """
        fitting = (n for n in self._lengths if n < len(prompt) and self._rows.get(prompt[:n]))
        return self._rows.get(prompt[: next(fitting, 0)], [])

    def take(self, prompt: bytes) -> int | None:
        """The first of those rows, which is then given to no other prompt."""
        rows = self.longest(prompt)
        return rows.pop(0) if rows else None


class RowCache(ABC):
    """What the engines' caches share: one row per conversation, and the token ids each row has read."""

    def __init__(self, num_rows: int) -> None:
        self.held: list[bytes] = [b""] * num_rows
        """The token ids each row has read, as bytes; empty where a row holds nothing of use."""

    @property
    @abstractmethod
    def tensors(self) -> Sequence[torch.Tensor]:
        """Keys and values of every layer, each rows x heads x tokens x numbers of a head."""

    @property
    def num_rows(self) -> int:
        """Conversations that this cache has memory for."""
        return len(self.held)

    def hold(self, row: int, ids_T: IntArray) -> None:
        """Note what a row has read."""
        self.held[row] = ids_T.tobytes()

    def forget(self) -> None:
        """Nothing held is of use any more: the weights have changed."""
        self.held = [b""] * self.num_rows

    def known(self, row: int) -> int:
        """Tokens that a row has read, shared ones included."""
        return len(self.held[row]) // np.dtype(np.int64).itemsize

    def continued(self, prompts: Sequence[bytes]) -> dict[int, int]:
        """Prompts that begin with all a row has read: their number -> the row; a row is given once."""
        rows = HeldRows(self.held)
        taken = {number: rows.take(prompt) for number, prompt in enumerate(prompts)}
        return {number: row for number, row in taken.items() if row is not None}

    def copy_rows(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        """Copy the first tokens of some rows into others."""
        if not source:
            return
        device = self.tensors[0].device
        come, go = (torch.tensor(rows, device=device) for rows in (source, target))
        for tensor in self.tensors:
            used = tensor[:, :, :tokens]
            used.index_copy_(0, go, used.index_select(0, come))


@dataclass(slots=True)
class KVMemory:
    """Rows of a cache, the tokens each holds, and which cache slots are real."""

    version: int
    cache: Any
    mask: torch.Tensor
    held: list[bytes]
    """The token ids each row has read, as bytes."""

    def match(self, prompts: Sequence[IntArray], version: int) -> list[int] | None:
        """The row that each prompt continues; None unless every prompt continues one."""
        if version != self.version:
            return None
        rows = HeldRows(self.held)
        found = [rows.longest(prompt.tobytes()) for prompt in prompts]
        return [fitting[-1] for fitting in found] if all(found) else None


@dataclass(slots=True)
class KVRecorder:
    """Collects rows that leave the batch early, then joins all into one memory."""

    parts: list[tuple[list[int], list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]] = field(
        default_factory=list
    )
    num_bytes: int = 0

    def retire(self, cache: Any, mask: torch.Tensor, rows: list[int], indices: list[int]) -> None:
        """Keep ``rows`` of the cache, which belong to requests ``indices``."""
        if self.num_bytes > MAX_BYTES or not rows or not _holds_all_slots(cache):
            return
        at = torch.tensor(rows, device=mask.device)
        layers = [(layer.keys[at], layer.values[at]) for layer in cache.layers]
        self.num_bytes += sum(k.nbytes + v.nbytes for k, v in layers)
        # A cache has one slot less than the mask while its newest token is still unread.
        self.parts.append((indices, layers, mask[at, : layers[0][0].shape[2]]))

    def finish(self, cache: Any, held: Sequence[IntArray], version: int) -> KVMemory | None:
        """One memory of all retired rows, in the order of the requests; None when it is too large."""
        if self.num_bytes > MAX_BYTES or not self.parts:
            return None
        width = max(layers[0][0].shape[2] for _, layers, _ in self.parts)
        order = np.argsort([index for indices, _, _ in self.parts for index in indices])
        at = torch.tensor(order, device=self.parts[0][2].device)
        for number, layer in enumerate(cache.layers):
            layer.keys = _joined([layers[number][0] for _, layers, _ in self.parts], width, 2)[at]
            layer.values = _joined([layers[number][1] for _, layers, _ in self.parts], width, 2)[at]
        mask = _joined([mask for _, _, mask in self.parts], width, 1)[at]
        return KVMemory(version, cache, mask, [ids.tobytes() for ids in held])


def _holds_all_slots(cache: Any) -> bool:
    """A sliding window or a recurrent state drops slots, so it cannot be lined up with a mask."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def _joined(parts: list[torch.Tensor], width: int, dim: int) -> torch.Tensor:
    """Stack rows of different widths, filled up with zeros on the right."""
    padded = []
    for part in parts:
        missing = width - part.shape[dim]
        pad = [0, 0] * (part.dim() - 1 - dim) + [0, missing]
        padded.append(torch.nn.functional.pad(part, pad) if missing else part)
    return torch.cat(padded)
