"""A program started beside this one, whose words go into a log of its own."""

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

from ragen2.errors import RunError

LONGEST_TOLD = 300
"""Characters of a log's last line that are repeated."""
TRIES, SECONDS_BETWEEN_TRIES = 5, 0.05
"""Of taking a log: ``is_held`` has it for a moment too."""


class HeldError(RunError):
    """Another process holds the log: what would be started runs already."""


@contextlib.contextmanager
def hold(log: Path) -> Iterator[BinaryIO]:
    """The log, opened and held by nobody else; raises ``HeldError`` when another process has it.

    What is true inside stays true: whether the work is done already is decided here, not before.
    """
    with log.open("ab") as file:
        if not _take(file):
            raise HeldError(
                f"another process still trains this run (it holds {log}); wait for it or end it"
            )
        yield file


class Child:
    """A running program. It has a session of its own, so that a Ctrl-C here does not reach it twice.

    It inherits the log that ``hold`` gave and holds it as long as it lives, longer than this program if need
    be: no second one will write into the same run.
    """

    def __init__(self, words: Sequence[str], log: BinaryIO, variables: Mapping[str, str]) -> None:
        self.log = Path(log.name)
        self.is_asked = False
        """Whether it was told to end."""
        log.write(f"$ {shlex.join(words)}\n".encode())
        log.flush()
        self._start = log.tell()
        self.process = subprocess.Popen(  # noqa: S603 - our own program
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; below zero: the signal that ended it."""
        return self.process.poll()

    def ask_to_end(self) -> None:
        """What Ctrl-C does to a run; SIGTERM does the same, and cannot be ignored before that."""
        self.is_asked = True
        if self.exit_code is None:
            self.process.send_signal(signal.SIGTERM)

    def last_words(self) -> str:
        """The last line that it wrote, or that there is none."""
        with self.log.open("rb") as file:
            file.seek(self._start)
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")[
            :LONGEST_TOLD
        ]


def is_held(log: Path) -> bool:
    """Whether a process that was started with this log still runs."""
    if not log.is_file():
        return False
    with log.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def end_all(children: Sequence[Child], seconds: float) -> None:
    """Tell all that still run to end, and after ``seconds`` end them."""
    for child in children:
        child.ask_to_end()
    deadline = time.monotonic() + seconds
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def _take(log: BinaryIO) -> bool:
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(SECONDS_BETWEEN_TRIES)
        else:
            return True
    return False
