"""Work of a CPU side by side, a thread each.

Threads that share every small product wait for each other more than they work; threads with products of
their own do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

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
