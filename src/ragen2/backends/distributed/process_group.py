"""The processes of one job and their way to talk: the first gives orders, all carry them out together."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ragen2.backends.distributed.world import World
from ragen2.errors import ConfigError, RunError

PATIENCE = timedelta(days=7)
"""A process waits as long as another works; one that is gone is noticed by its closed connection."""
WORKING = timedelta(minutes=30)
"""How far apart processes may come to the same place of an update."""
LOST = ("connection closed", "connection reset", "broken pipe", "gloo", "nccl", "store")
"""Words of the errors that torch raises when the other end of a connection is gone."""


class LostProcess(RunError):
    """Another process of the job is gone, and with it what it held."""


class Crew:
    """All processes of a job. Talk goes over the host's memory, whatever the device is."""

    def __init__(self, world: World) -> None:
        self.rank, self.size = world.rank, world.size
        self.is_busy = False
        """Whether an order is under way, or was when a process was lost: nobody listens to another one."""
        self._talk = distributed.new_group(backend="gloo", timeout=PATIENCE)

    def tell(self, order: Any) -> None:
        """Hand an order to all others."""
        with self.guard():
            distributed.broadcast_object_list([order], src=0, group=self._talk)

    def hear(self) -> Any:
        """Wait for the next order."""
        heard = [None]
        with self.guard():
            distributed.broadcast_object_list(heard, src=0, group=self._talk)
        return heard[0]

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in their order."""
        found: list[Any] = [None] * self.size
        with self.guard():
            distributed.all_gather_object(found, value, group=self._talk)
        return found

    def leave(self) -> None:
        """End the job, all together: who leaves first cuts off those that still listen.

        To have met the others here, or to find one of them gone, is to know that all have heard what
        was said before.
        """
        with suppress(LostProcess):
            self.gather(None)
        distributed.destroy_process_group()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """What torch says of a lost connection, as one line."""
        try:
            yield
        except RuntimeError as error:
            if not any(word in str(error).lower() for word in LOST):
                raise
            self.is_busy = True
            whose = "another process" if self.rank == 0 else "process 0"
            raise LostProcess(f"{whose} of this job of {self.size} is gone") from error

    def take_device(self, device: str) -> None:
        """Where GPUs are used, each process has one of its own."""
        if device != "cuda":
            return
        count = torch.cuda.device_count()
        if count < self.size:
            raise ConfigError(
                f"{self.size} processes need as many GPUs, this machine has {count}; start fewer, or "
                "set model.device to cpu"
            )
        torch.cuda.set_device(self.rank)


def join_process_group(world: World) -> Crew:
    """Meet the other processes of the job."""
    if sys.platform == "linux" and Path("/sys/class/net/lo").exists():
        # One machine: the name of the host need not lead anywhere.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        distributed.init_process_group(
            backend, rank=world.rank, world_size=world.size, timeout=WORKING
        )
        return Crew(world)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(
            f"process {world.rank} of {world.size} could not meet the others: {reason}"
        ) from error
