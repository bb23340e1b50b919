"""The type that matrix products are computed in: the same for who samples, scores and learns."""

from __future__ import annotations

import torch

from ragen2.backends.settings import Precision


def compute_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 on a GPU and float32 on a CPU."""
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def float_product(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``rows @ matrix`` in float32 whatever the inputs are, without rounding on the way.

    Logits are made this way: rounding one of 20 to bfloat16 would move it by up to 0.06.
    """
    if rows.is_cuda and rows.dtype is not torch.float32:
        return torch.mm(rows, matrix, out_dtype=torch.float32)
    return (rows @ matrix).float()
