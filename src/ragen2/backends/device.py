"""What the machine gives: GPU memory, threads, precision, sums in one order, and what a full disk raises."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch.utils import deterministic

from ragen2.backends.settings import GPU_SHARE, Precision
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


Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Item], Result], items: Sequence[Item], *, threads_each: int = 1
) -> list[Result]:
    """``work`` of every item, in order; as many at a time as torch may use threads."""
    threads = torch.get_num_threads()
    workers = min(threads, len(items))
    torch.set_num_threads(threads_each)
    try:
        if workers <= 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(workers, "ragen2") as pool:
            return list(pool.map(work, items))
    finally:
        torch.set_num_threads(threads)


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


MODELS = ("llama", "qwen2", "qwen3")
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def prepare_products() -> None:
    """Matrix products in one order; has to be said before the first product on a GPU."""
    os.environ.setdefault(WORKSPACE, ":4096:8")


def has_deterministic_sums(network: Any) -> bool:
    """Whether every operation of this model's updates has a kernel that adds in one order."""
    return network.config.model_type in MODELS


@contextmanager
def deterministic_sums() -> Iterator[None]:
    """Within it, torch uses kernels that add in one order, so that a seed gives the same run on a device.

    Only inside an update, and only for models whose every operation is known to have such a kernel: torch
    raises an error over the others, and attention's backward pass ignores a mere wish.
    """
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


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn what safetensors and torch raise when a file cannot be written into OSError."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        found = error.__context__
        if isinstance(found, OSError):  # torch hides the file's own error behind one of its own
            raise OSError(found.errno, found.strerror) from error
        raise OSError(" ".join(str(error).split())) from error
