"""Sizes by what a GPU has free now, and smaller ones where an allocation fails all the same.

Runs that share a GPU know of each other only by what is free, and what was free a moment ago may be taken. So
whatever may be smaller (the sampler's cache, sequences at once, micro-batches) is sized just before it is
made, within the process's share, and made smaller when memory runs out. A run ends only when its smallest
shape does not fit.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

FULL = ("out of memory", "alloc_failed", "can't allocate memory", "not enough memory")
"""Parts of what torch, its libraries and Triton say when memory runs out."""
PASS_SHARE = 0.5
"""Share of what is free that one pass may take; the rest is for what is kept beside it, and for others."""
SCARCE = 0.1
"""Share of a GPU below which unused memory is given back, where others use it too."""
OTHERS = 2**30
"""Bytes that a GPU may hold beside a process's tensors before somebody else is taken to use it."""


def fitting(most: int, bytes_each: int, free: int, *, least: int = 1) -> int:
    """How many of ``bytes_each`` a pass may have: ``most``, or the first half, quarter, ... of it that fits.

    Halves, so that a little more or less of free memory seldom changes how work is cut.
    """
    count = most
    while count > least and count * bytes_each > PASS_SHARE * free:
        count = max(least, count // 2)
    return count


def training_bytes(shape: Any, *, size: int, keeps_layers: bool, is_fused: bool) -> int:
    """What a pass for gradients holds per token, by a model's config: a row per layer, and all of one layer.

    ``size`` is that of a number in products. All of a layer is what our own has in its backward pass at most:
    6 rows of the MLP's width and 20 of the residual stream; Hugging Face's has about twice as much.
    """
    hidden, inner, layers = _widths(shape)
    layer = (6 * inner + 20 * hidden) * size * (1 if is_fused else 2)
    kept = 4 * hidden + ((2 * inner + 4 * hidden) * size if keeps_layers else 0)
    return layers * kept + layer


def scoring_bytes(shape: Any, *, size: int = 2) -> int:
    """What a pass for log-probs holds per token: keys and values of all layers, and all of one layer."""
    hidden, inner, layers = _widths(shape)
    heads = int(getattr(shape, "num_attention_heads", None) or 1)
    shared = heads // int(getattr(shape, "num_key_value_heads", None) or heads) or 1
    return 2 * layers * hidden // shared * size + (4 * inner + 12 * hidden) * size


def _widths(shape: Any) -> tuple[int, int, int]:
    """Width of the residual stream and of the MLP, and layers."""
    hidden = int(shape.hidden_size)
    inner = getattr(shape, "intermediate_size", None) or 4 * hidden
    return hidden, int(inner), int(shape.num_hidden_layers)


def until_it_fits(
    work: Callable[[], Result],
    shrink: Callable[[], str],
    *,
    smallest: Callable[[int], int] = int,
) -> Result:
    """``work()``, again after each ``shrink()`` for as long as memory runs out.

    ``shrink`` says in words what work goes on with, or nothing when it can be no smaller: then the error is
    raised. ``smallest`` is the smallest of all processes' numbers: one that is full shrinks them all.
    """
    while True:
        problem = ""
        try:
            result = work()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            # Only its words: the error's frames hold the memory that has to be freed.
            problem = (str(error) or "out of memory").splitlines()[0]
        if smallest(0 if problem else 1):
            return result
        gc.collect()
        torch.cuda.empty_cache()
        problem = problem or "CUDA out of memory in another process of this job"
        if not (smaller := shrink()):
            raise torch.OutOfMemoryError(problem)
        logger.warning("%s; going on with %s", problem.split(". GPU ")[0], smaller)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or the one that led to it, is about memory."""
    if error is None:
        return False
    said = str(error).lower()
    is_full = isinstance(error, torch.OutOfMemoryError) or any(part in said for part in FULL)
    return is_full or is_out_of_memory(error.__context__)


def give_back_spare(device: torch.device) -> None:
    """Between phases, give back what torch holds and does not use, where others need it."""
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    if others > OTHERS and free < SCARCE * total:
        torch.cuda.empty_cache()
