"""The processes of one job and how they communicate: rank 0 sends commands, all carry them out together."""

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

from ragen2.backends.distributed.rank import Rank
from ragen2.errors import ConfigError, RunError

BETWEEN_COMMANDS = timedelta(days=7)
"""A process waits as long as another works; one that is gone is noticed by its closed connection."""
WITHIN_UPDATE = timedelta(minutes=30)
"""How far apart processes may come to the same collective call of an update."""
LOST = ("connection closed", "connection reset", "broken pipe", "gloo", "nccl", "store")
"""Parts of the errors that torch raises when the other end of a connection is gone."""


class LostProcess(RunError):
    """Another process of the job is gone, and with it what it held."""


class ProcessGroup:
    """All processes of a job.

    Commands and Python objects travel over gloo, also where tensors travel over NCCL: gloo needs no GPU
    memory, notices a closed connection at once, and may wait for days while rank 0 evaluates or writes. NCCL
    would spin on the GPU all that time and end the job when its own, shorter timeout is over.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank, self.size = rank.index, rank.world_size
        self.is_busy = False
        """Whether a command is under way, or was when a process was lost: nobody listens to another one."""
        self._gloo: Any = distributed.new_group(backend="gloo", timeout=BETWEEN_COMMANDS)

    def broadcast(self, command: Any) -> None:
        """Send a command from rank 0 to all others."""
        with self.guard():
            distributed.broadcast_object_list([command], src=0, group=self._gloo)

    def receive(self) -> Any:
        """Wait for the next command of rank 0."""
        received = [None]
        with self.guard():
            distributed.broadcast_object_list(received, src=0, group=self._gloo)
        return received[0]

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, in every process."""
        found: list[Any] = [None] * self.size
        with self.guard():
            distributed.all_gather_object(found, value, group=self._gloo)
        return found

    def leave(self) -> None:
        """End the job, all together: who leaves first cuts off those that still wait for a message.

        To have met the others here, or to find one of them gone, is to know that all have received what
        was sent before. The group of commands is given up with its threads: one that still held what was
        gathered would free it while Python shuts down, and abort the process.
        """
        with suppress(LostProcess):
            self.gather(None)
        self._gloo = None
        distributed.destroy_process_group()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turn torch's error over a lost connection into ``LostProcess``, in one line.

        The group stays busy then: the others wait inside a collective call that can never complete, so no
        further command, not even the one to end, would reach them.
        """
        try:
            yield
        except RuntimeError as error:
            if not any(part in str(error).lower() for part in LOST):
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


def join_process_group(rank: Rank) -> ProcessGroup:
    """Meet the other processes of the job."""
    if sys.platform == "linux" and Path("/sys/class/net/lo").exists():
        # One machine: the host's own name need not resolve to an address that gloo can reach.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        distributed.init_process_group(
            backend, rank=rank.index, world_size=rank.world_size, timeout=WITHIN_UPDATE
        )
        return ProcessGroup(rank)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(
            f"process {rank.index} of {rank.world_size} could not meet the others: {reason}"
        ) from error
