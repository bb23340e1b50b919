"""verl without a GPU: a platform for processors, so that whole jobs run in tests and on laptops.

verl finds platforms by a registry, and three places take a GPU for granted: they are replaced by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import verl.utils.distributed
import verl.utils.fsdp_utils
from torch.distributed.fsdp import OffloadPolicy
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_base import PlatformBase


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _zero(*_: Any, **__: Any) -> int:
    return 0


def _no_memory(*_: Any, **__: Any) -> tuple[int, int]:
    return 0, 0


_ABSENT: dict[str, Callable[..., Any]] = {
    "empty_cache": _nothing,
    "ipc_collect": _nothing,
    "reset_peak_memory_stats": _nothing,
    "memory_allocated": _zero,
    "memory_reserved": _zero,
    "max_memory_allocated": _zero,
    "max_memory_reserved": _zero,
    "mem_get_info": _no_memory,
    "manual_seed": torch.manual_seed,
    "manual_seed_all": torch.manual_seed,
    "get_rng_state": torch.get_rng_state,
    "set_rng_state": torch.set_rng_state,
    "get_device_name": lambda *_: "CPU",
}
"""What verl asks of every device module and ``torch.cpu`` does not have."""


class CPUPlatform(PlatformBase):  # type: ignore[misc]  # verl has no types here
    """Processes on processors; Ray counts them in "GPU" slots."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = torch.cpu

    def is_available(self) -> bool:
        """Always."""
        return True

    def current_device(self) -> str:  # what tensors are sent to
        """The one device."""
        return "cpu"

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs ahead."""

    def manual_seed(self, seed: int) -> None:
        """Torch's own."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Torch's own."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """No allocator to set."""

    def empty_cache(self) -> None:
        """No cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """None known."""
        return None, None

    def communication_backend_name(self) -> str:
        """Gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """What Ray sets for a "GPU" slot; nothing reads it."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No marks."""
        yield

    def profiler_start(self) -> None:
        """No profiler."""

    def profiler_stop(self) -> None:
        """No profiler."""

    def ray_resource_name(self) -> str:
        """Slots that ``ray.init(num_gpus=...)`` makes."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """None."""
        return []

    def is_ipc_supported(self) -> bool:
        """Weights go through shared memory instead."""
        return False

    def cudart(self) -> None:
        """None."""
        return None


def install() -> None:
    """Make this process run verl on processors."""
    for name, stand_in in _ABSENT.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, stand_in)
    platform_manager.PlatformRegistry.register(platform="cpu")(CPUPlatform)
    platform_manager._current_platform = None
    platform_manager.set_platform(CPUPlatform())
    begin = verl.utils.distributed.initialize_global_process_group_ray

    def with_gloo(timeout_second: int | None = None, backend: str | None = None) -> Any:
        del backend  # verl would ask for "cpu:gloo,cpu:gloo", which torch refuses
        return begin(timeout_second, "cpu:gloo")

    verl.utils.distributed.initialize_global_process_group_ray = with_gloo
    # verl keeps a reference model in main memory by torch's offloading, which needs a GPU to load to.
    verl.utils.fsdp_utils.CPUOffloadPolicy = lambda pin_memory=True: OffloadPolicy()
