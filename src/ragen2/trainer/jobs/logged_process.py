"""A subprocess whose output goes into a log file, which also is its lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from ragen2.reading import open_own
from ragen2.runs.lock import LockedError, try_lock

LONGEST_LINE = 300
"""Characters of a log's last line that are repeated."""


@contextlib.contextmanager
def lock_log(log: Path) -> Iterator[BinaryIO]:
    """The log, opened and locked; raises ``LockedError`` when another process has locked it.

    What is true inside stays true: whether the work is done already is decided here, not before.
    """
    with open(log, "ab", opener=lambda *_: open_own(log, os.O_APPEND)) as file:
        if not try_lock(file.fileno()):
            raise LockedError(
                f"another process still trains this run (it holds {log}); wait for it or end it"
            )
        yield file


class LoggedProcess:
    """A running subprocess. It has a session of its own, so that a Ctrl-C here does not reach it twice.

    It inherits the log that ``lock_log`` opened, and with it the lock, as long as it lives: flock belongs to
    the open file, not to the process. So the lock outlives this program if need be, no second process
    writes into the same run, and a crash leaves no lock behind.
    """

    def __init__(self, command: Sequence[str], log: BinaryIO, variables: Mapping[str, str]) -> None:
        self.log = Path(log.name)
        self.is_asked = False
        """Whether it was asked to end."""
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        self._start = log.tell()
        self.popen = subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; below zero: the signal that ended it."""
        return self.popen.poll()

    def ask_to_end(self) -> None:
        """What Ctrl-C does to a run; asked a second time, it stops at once.

        SIGTERM does the same and cannot be ignored before that, but soon after another one it is no second.
        """
        number = signal.SIGINT if self.is_asked else signal.SIGTERM
        self.is_asked = True
        if self.exit_code is None:
            self.popen.send_signal(number)

    def last_line(self) -> str:
        """The last line that it wrote, or that there is none."""
        with self.log.open("rb") as file:
            file.seek(self._start)
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")[
            :LONGEST_LINE
        ]


def is_locked(log: Path) -> bool:
    """Whether a process that was started with this log still runs."""
    if not log.is_file():
        return False
    # Only read: a full disk is no reason not to look, and file systems of other machines lend a file that is
    # not written to no lock but a shared one.
    with log.open("rb") as file:
        return not try_lock(file.fileno(), tries=1, how=fcntl.LOCK_SH)


def end_all(processes: Sequence[LoggedProcess], seconds: float) -> None:
    """Ask all that still run to end, and kill them after ``seconds``."""
    for process in processes:
        process.ask_to_end()
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()
