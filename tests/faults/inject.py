"""Faults inside a running program: at its n-th write point it is killed, the disk fills, the clock jumps.

A write point is every opening for writing, renaming, removing, making of a folder and fsync below the
program's folder. They are seen through an audit hook, so the program is the one that users run.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ALLOCATING = frozenset({"open", "os.mkdir", "fsync"})
"""What a full disk refuses; renaming and removing need no room."""
CHANGING = ALLOCATING | {"os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at the ``at``-th write point (from 1); ``value`` is a number that the kind explains."""

    kind: str
    at: int
    value: int = 0


class WritePoints:
    """Counts the write points of this process and lets the fault happen at its own."""

    def __init__(self, root: Path, fault: Fault | None, log: Path | None = None) -> None:
        self.root, self.fault, self.log = f"{root.resolve()}/", fault, log
        self.count, self.errno, self.is_busy = 0, 0, False
        self.owner = os.getpid()

    def install(self) -> None:
        """Watch from now on, in this process alone."""
        real = os.fsync

        def fsync(handle: int) -> None:
            self.see("fsync", (os.readlink(f"/proc/self/fd/{handle}"),))
            real(handle)

        os.fsync = fsync
        sys.addaudithook(self.see)

    def see(self, event: str, args: tuple[object, ...]) -> None:
        """An audit hook."""
        if event not in CHANGING or self.is_busy or os.getpid() != self.owner:
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & WRITES):
            return
        path = _path(event, args)
        if not path.startswith(self.root):
            return
        self.is_busy = True
        try:
            self._pass(event, path)
        finally:
            self.is_busy = False

    def _pass(self, event: str, path: str) -> None:
        self.count += 1
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{event} {path.removeprefix(self.root)}\n")
        fault = self.fault
        if fault is not None and self.count == fault.at:
            self.errno = ACTIONS[fault.kind](fault.value, self.root) or 0
        if self.errno and (
            event in ALLOCATING or (fault is not None and fault.kind == "error_once")
        ):
            found, self.errno = (
                self.errno,
                0 if fault and fault.kind == "error_once" else self.errno,
            )
            raise OSError(found, os.strerror(found), path)


def _path(event: str, args: tuple[object, ...]) -> str:
    if not isinstance(args[0], str | bytes | os.PathLike):
        return ""
    name = os.fsdecode(args[0])
    folder = args[-1]
    if event in {"os.remove", "os.rmdir"} and isinstance(folder, int) and folder >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    return os.path.abspath(name)


def _send(number: int) -> Callable[[int, str], None]:
    return lambda value, root: os.kill(os.getpid(), number)


def _limit(value: int, root: str) -> None:
    """No file may grow beyond ``value`` bytes: the kernel itself cuts a write short, then refuses."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (value, resource.RLIM_INFINITY))


def _kill_in_write(value: int, root: str) -> None:
    """The same limit kills: the file is left with its first ``value`` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    _limit(value, root)


def _jump(value: int, root: str) -> None:
    """The wall clock moves by ``value`` seconds, and with it the times of files that are there."""
    now, written = time.time, time.strftime
    time.time = lambda: now() + value
    time.strftime = lambda form, when=None: written(form, when or time.localtime(time.time()))
    for path in Path(root).rglob("*"):
        os.utime(path, (time.time(), time.time()))


def _no_reader(value: int, root: str) -> None:
    """Whoever read standard output is gone, or the device behind it is full."""
    end = os.open("/dev/full", os.O_WRONLY) if value else _dead_pipe()
    os.dup2(end, 1)


def _dead_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


ACTIONS: dict[str, Callable[[int, str], int | None]] = {
    "kill": _send(signal.SIGKILL),
    "stop": _send(signal.SIGSTOP),
    "signal": lambda value, root: os.kill(os.getpid(), value),
    "disk_full": lambda value, root: value,
    "error_once": lambda value, root: value,
    "file_limit": _limit,
    "kill_in_write": _kill_in_write,
    "clock": _jump,
    "no_reader": _no_reader,
}
ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


def arm_timer(seconds: float) -> None:
    """Let the kernel kill this process once it has computed for ``seconds``, wherever it is then."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
