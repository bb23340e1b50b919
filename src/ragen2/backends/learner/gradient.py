"""A gradient as one long vector, on the GPU that computed it where several such fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ragen2.backends.device import free_memory

VECTORS = 10
"""Room for as many is looked for: a probe holds a handful at once."""
CHUNK = 1 << 24
"""Numbers that are widened at a time: a copy of a whole gradient in double precision may not fit."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorGradient:
    """One number a trained parameter."""

    values: torch.Tensor

    def dot(self, other: TensorGradient) -> float:
        """Inner product, summed in double precision."""
        mine, others = (torch.split(each.values, CHUNK) for each in (self, other))
        parts = [
            torch.dot(a.double(), b.to(a.device, torch.float64))
            for a, b in zip(mine, others, strict=True)
        ]
        return float(torch.stack(parts).sum())

    def added_to(self, total: TensorGradient | None, factor: float) -> TensorGradient:
        """``factor`` times this, added to a sum, which is changed; without one, a new sum."""
        if total is None:
            return TensorGradient(self.values * factor)
        total.values.add_(self.values.to(total.values.device), alpha=factor)
        return total


def home_of(trained: Sequence[torch.Tensor]) -> torch.device:
    """Where gradients of these parameters are kept: their device, or the host where that is too full."""
    device = trained[0].device
    need = VECTORS * sum(p.numel() for p in trained) * torch.float32.itemsize
    fits = device.type != "cuda" or free_memory(device) >= need
    return device if fits else torch.device("cpu")
