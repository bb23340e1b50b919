"""Sums in the same order every time, so that a seed gives the same run on the same device.

Only inside an update, and only for models whose every operation is known to have such a kernel: torch raises
an error over the others, and attention's backward pass ignores a mere wish.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic

MODELS = ("llama", "qwen2", "qwen3")
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def prepare_products() -> None:
    """Matrix products in one order; has to be said before the first product on a GPU."""
    os.environ.setdefault(WORKSPACE, ":4096:8")


def has_one_order(network: Any) -> bool:
    """Whether every operation of this model's updates has a kernel that adds in one order."""
    return network.config.model_type in MODELS


@contextmanager
def one_order() -> Iterator[None]:
    """Within it, torch uses kernels that add in one order, or fails."""
    is_asked = torch.are_deterministic_algorithms_enabled()
    is_mild = torch.is_deterministic_algorithms_warn_only_enabled()
    more: Any = deterministic  # a module whose one setting is a property
    fills = more.fill_uninitialized_memory
    more.fill_uninitialized_memory = False  # what is about to be written need not be filled first
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_asked, warn_only=is_mild)
        more.fill_uninitialized_memory = fills
