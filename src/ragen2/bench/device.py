"""The device that is timed: what it is, when it is done, and what its memory allows in tokens per second.

The limit is that of decoding in which every byte that is needed is read once per token.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from typing import Any

import torch
import transformers

COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}
"""Size of the copied block: many times any cache."""
COPIES = 8


@dataclass(frozen=True, slots=True)
class DecodeLimit:
    """Bytes of one decoding step, and what the measured bandwidth makes of them."""

    bandwidth: float
    """Bytes per second, read and written together, of a plain copy on this device."""
    weight_bytes: int
    """Read once per step, whatever the number of sequences."""
    cache_bytes: float
    """Keys and values that one sequence reads in a step, at the mean length of the run."""
    sequences: int

    @property
    def tokens_per_second(self) -> float:
        """One token of every sequence for each pass over weights and caches."""
        return (
            self.sequences
            * self.bandwidth
            / (self.weight_bytes + self.sequences * self.cache_bytes)
        )


def copy_bandwidth(device: torch.device, *, size: int | None = None) -> float:
    """Bytes per second of the fastest of several copies on ``device``; each byte is read and written."""
    count = size or COPY_BYTES.get(device.type, min(COPY_BYTES.values()))
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(COPIES):
        wait_for(device)
        started = time.perf_counter()
        target.copy_(source)
        wait_for(device)
        best = min(best, time.perf_counter() - started)
    return 2 * count / best


def decode_limit(
    network: Any, sequences: int, length: float, *, bytes_each: int, bandwidth: float
) -> DecodeLimit:
    """The limit for ``sequences`` that on average have ``length`` tokens in their cache.

    Sequences with a common prompt are counted as if each read it for itself.
    """
    return DecodeLimit(
        bandwidth=bandwidth,
        weight_bytes=bytes_each * read_weights(network),
        cache_bytes=bytes_each * length * cache_values_per_token(network.config),
        sequences=sequences,
    )


def read_weights(network: Any) -> int:
    """Weights that a step multiplies with: all but a table of embeddings that is not also the head."""
    total = sum(parameter.numel() for parameter in network.parameters())
    table, head = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    return int(total if table is head else total - table.numel())


def cache_values_per_token(config: Any) -> int:
    """Numbers that a token leaves in the cache: a key and a value for each head of each layer."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size)


def machine(device: torch.device) -> dict[str, str | int]:
    """What the figures were measured on."""
    is_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if is_gpu else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def wait_for(device: torch.device) -> None:
    """Until everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
