"""How much of a GPU's memory this process may take: all of it, or its share among several."""

from __future__ import annotations

import os

import torch

from ragen2.backends.settings import GPU_SHARE
from ragen2.errors import ModelError


def keep_to_share() -> None:
    """Among several runs on one GPU, have torch give unused memory back before it asks for more."""
    if os.environ.get(GPU_SHARE):
        torch.cuda.set_per_process_memory_fraction(_share())


def total_memory(device: torch.device) -> int:
    """Bytes that are this process's."""
    return int(_share() * torch.cuda.get_device_properties(device).total_memory)


def free_memory(device: torch.device) -> int:
    """Bytes that it may still take: not yet its own, or its own and unused."""
    free, _ = torch.cuda.mem_get_info(device)
    used = torch.cuda.memory_allocated(device)
    unused = torch.cuda.memory_reserved(device) - used
    return max(0, min(int(free + unused), total_memory(device) - used))


def _share() -> float:
    given = os.environ.get(GPU_SHARE) or "1"
    try:
        share = float(given)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise ModelError(f"{GPU_SHARE} is {given!r}; give a share above 0 and up to 1")
    return share
