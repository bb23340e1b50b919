"""RMS norms as one kernel each, while a GPU reads for a gradient.

transformers writes the norm out in eight operations, each a kernel with an intermediate that the backward
pass keeps. A model of thirty layers has sixty of them: a third of all kernels, and of the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.functional import rms_norm

NORMS = ("LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
"""Classes whose forward is ``weight * x / sqrt(mean(x^2) + eps)`` and nothing else."""


@contextmanager
def fused_norms(network: Any) -> Iterator[None]:
    """Within it, the norms of ``network`` that torch has a kernel for use it."""
    norms = [module for module in network.modules() if type(module).__name__ in NORMS]
    for norm in norms:
        norm.forward = partial(_forward, norm, norm.forward)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _forward(norm: Any, plain: Any, x: torch.Tensor) -> torch.Tensor:
    """Lower precisions are left alone: there the model's own code rounds in between."""
    if x.dtype is not torch.float32 or norm.weight.dtype is not torch.float32:
        result: torch.Tensor = plain(x)
        return result
    return rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
