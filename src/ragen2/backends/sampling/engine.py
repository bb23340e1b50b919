"""Samplers that run a model's weights themselves, without a Python call per module and token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ragen2.backends.decoder import read_family
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.policy import Request, SamplingParams
from ragen2.types import Completion


class Engine(Protocol):
    """Writes completions with a model's weights."""

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """One completion a request, in order."""
        ...


def open_engine(
    network: Any, tokenizer: TemplateTokenizer, *, dtype: torch.dtype, max_batch: int
) -> Engine | str:
    """The engine for this model where it lives, or why there is none."""
    is_gpu = next(network.parameters()).device.type == "cuda"
    family = read_family(network, adapters=is_gpu)
    if isinstance(family, str):
        return family
    if is_gpu:
        if family.kernel_problem:
            return family.kernel_problem
        from ragen2.backends.sampling.gpu.engine import GPUEngine

        return GPUEngine(family, tokenizer, dtype=dtype, max_batch=max_batch)
    if dtype is not torch.float32:
        return f"on a CPU our engine computes in float32, not in {dtype}".replace("torch.", "")
    from ragen2.backends.sampling.cpu.engine import CPUEngine

    return CPUEngine(family, tokenizer)
