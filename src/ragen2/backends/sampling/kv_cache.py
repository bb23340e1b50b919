"""Remember the key-value cache of the last batch, so that the next turn only reads its new tokens.

In a multi-turn rollout each prompt begins with everything that was read and written before. A memory is
only used for prompts that continue what it holds, token for token, under the very weights that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicLayer

from ragen2.types import IntArray

MAX_BYTES = 2**31
"""A larger cache is not kept: reading prompts again is slower, but fits."""


def weights_version(network: Any) -> int:
    """A number that changes whenever any weight is changed in place."""
    return sum(parameter._version for parameter in network.parameters())


@dataclass(slots=True)
class KVMemory:
    """Rows of a cache, the tokens each holds, and which cache slots are real."""

    version: int
    cache: Any
    mask: torch.Tensor
    read: list[bytes]
    """The token ids each row has read, as bytes."""

    def match(self, prompts: Sequence[IntArray], version: int) -> list[int] | None:
        """The row that each prompt continues; None unless every prompt continues one."""
        if version != self.version:
            return None
        rows = {ids: row for row, ids in enumerate(self.read)}
        lengths = sorted({len(ids) for ids in self.read}, reverse=True)
        found = []
        for prompt in prompts:
            data = prompt.tobytes()
            row = next(
                (rows[data[:n]] for n in lengths if n < len(data) and data[:n] in rows), None
            )
            if row is None:
                return None
            found.append(row)
        return found


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

    def finish(self, cache: Any, read: Sequence[IntArray], version: int) -> KVMemory | None:
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
        return KVMemory(version, cache, mask, [ids.tobytes() for ids in read])


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
