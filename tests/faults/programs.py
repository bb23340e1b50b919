"""Programs in forks of one process that has imported everything, so that each starts in milliseconds."""

from __future__ import annotations

import fcntl
import importlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from inject import Fault, WritePoints, arm_timer

import warm_interpreter
from command_line import environment

TIMEOUT = 120
"""Seconds after which a program counts as hanging."""
PIPE_BYTES = 2**20
RAGEN2 = ("-m", "ragen2")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended; below zero: by that signal."""

    code: int
    out: str
    err: str
    cpu: float = 0.0


class Program:
    """``python ARGUMENTS`` in a folder, with a fault or none; its output waits in pipes until its end."""

    def __init__(
        self,
        folder: Path,
        arguments: Iterable[str],
        fault: Fault | None = None,
        *,
        cpu_limit: float = 0.0,
        log: Path | None = None,
    ) -> None:
        self._ended: Ended | None = None
        self.pipes = [os.pipe(), os.pipe()]
        for _, writer in self.pipes:
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _become(folder, [writer for _, writer in self.pipes])
                WritePoints(folder, fault, log).install()
                if cpu_limit:
                    arm_timer(cpu_limit)
                code = warm_interpreter.exit_code(list(arguments))
                if log is not None:
                    log.with_suffix(".modules").write_text("\n".join(sys.modules))
                warm_interpreter.leave(code)
            finally:  # whatever happens at its end, a fork must not go on as its parent
                traceback.print_exc()
                os._exit(1)
        for _, writer in self.pipes:
            os.close(writer)

    def wait(self, *, until_stopped: bool = False) -> Ended | None:
        """Its end; None when it has stopped itself, for ``go_on``."""
        if self._ended is not None:
            return self._ended
        deadline = time.monotonic() + TIMEOUT
        flags = os.WNOHANG | (os.WUNTRACED if until_stopped else 0)
        while True:
            pid, status, usage = os.wait4(self.pid, flags)
            if pid and os.WIFSTOPPED(status):
                return None
            if pid:
                break
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)
        texts = []
        for reader, _ in self.pipes:
            with os.fdopen(reader, "rb") as file:
                texts.append(file.read().decode(errors="replace"))
        hung = ["\nTraceback: it did not end"] if time.monotonic() > deadline else [""]
        code = os.waitstatus_to_exitcode(status)
        cpu = usage.ru_utime + usage.ru_stime
        self._ended = Ended(code, texts[0], texts[1] + hung[0], cpu)
        return self._ended

    def has_ended(self) -> bool:
        """Whether it has; its end is still there to be waited for."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def go_on(self) -> None:
        """Let it continue."""
        if self._ended is None:
            os.kill(self.pid, signal.SIGCONT)


def run(folder: Path, arguments: Iterable[str], fault: Fault | None = None, **more: float) -> Ended:
    """A program to its end."""
    ended = Program(folder, arguments, fault, **more).wait()
    assert ended is not None
    return ended


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for a while. Unlike one of ``tempfile``, it does not end with a fork of this process."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def preload(modules: Iterable[str] = warm_interpreter.PRELOADED) -> None:
    """Import what programs will; forks share it."""
    for module in modules:
        with suppress(ImportError):  # some are made up by the programs themselves
            importlib.import_module(module)


def _become(folder: Path, writers: list[int]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for handle, source in enumerate([null, *writers]):
        os.dup2(source, handle)
    os.closerange(3, 256)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment() | {"PYTHONFAULTHANDLER": ""})
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(handle, "w", 1, closefd=False) for handle in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
