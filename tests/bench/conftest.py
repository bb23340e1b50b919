"""The models that the tests of the backends use, for the benchmarks over them."""

from __future__ import annotations

from backends.conftest import (
    _small_parts,
    embedded,
    forward_logprobs,
    lake_prompts,
    one_thread,
    small,
)

__all__ = ["_small_parts", "embedded", "forward_logprobs", "lake_prompts", "one_thread", "small"]
