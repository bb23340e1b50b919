"""What must not end the program in the middle: output that nobody takes any more, and signals.

A write to standard output or standard error never fails: what cannot be written is dropped. The exit code
says so where printing was the work; training and its kind have their results in files and end as they would.
"""

from __future__ import annotations

import errno
import io
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from ragen2.cli.shared import EXIT_INTERRUPTED, EXIT_USER

if TYPE_CHECKING:
    from types import FrameType

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
SECONDS_TO_END = 60.0
"""For cleaning up, jobs that save included."""
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS_OF_REPEATS = 2.0
"""After the first signal in which others, but for Ctrl-C, are the same request."""
SIGNALLED = 128
"""Exit codes of programs that a signal ends are this and its number."""


class Ended(KeyboardInterrupt):
    """A signal other than Ctrl-C asks the program to end: it cleans up as after Ctrl-C."""


class Ending:
    """What happened to this process that its exit code tells."""

    def __init__(self) -> None:
        self.signal: int = signal.SIGINT
        """The last one that asked it to end."""
        self.lost: OSError | None = None
        """Why standard output is no longer written."""
        self.is_saved = False
        """Whether the results are in files, so that output may be lost."""

    def code(self, code: int) -> int:
        """The exit code, given that of the verb."""
        if code == EXIT_INTERRUPTED:
            return SIGNALLED + self.signal
        if code or self.lost is None or self.is_saved:
            return code
        is_pipe = self.lost.errno == errno.EPIPE
        return SIGNALLED + signal.SIGPIPE if is_pipe else EXIT_USER


ENDING = Ending()
"""Of this process."""


@contextmanager
def outlasting() -> Iterator[None]:
    """Run a program that ends by ``SystemExit`` so that neither output nor signals break it off."""
    _open_closed()
    sys.stdout = sys.stdout or open(STANDARD_OUTPUT, "w", closefd=False)  # noqa: SIM115 - for good
    sys.stderr = sys.stderr or open(STANDARD_ERROR, "w", closefd=False)  # noqa: SIM115
    sys.stdout = _lasting(sys.stdout, STANDARD_OUTPUT)
    sys.stderr = _lasting(sys.stderr, STANDARD_ERROR)
    for number in END_SIGNALS[1:]:
        if signal.getsignal(number) is signal.SIG_DFL:  # ``nohup`` has a hang-up ignored
            signal.signal(number, _end)
    try:
        yield
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        print(end="", flush=True)
        raise SystemExit(ENDING.code(end.code or 0)) from None


def results_are_saved() -> None:
    """From here on the program's work is in files: lost output is no failure."""
    ENDING.is_saved = True


class StopRequest:
    """True after the first signal that asks for an end, so that the step is finished; a second stops at once.

    Of signals that programs send, one soon after the first is no second: whoever ends every process of a
    group ends also the one that passes the signal on. What is begun with it has its results in files.
    """

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.is_set = False
        self._first = -math.inf
        results_are_saved()
        for number in END_SIGNALS:
            if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def __call__(self) -> bool:
        """Whether it was asked for."""
        return self.is_set

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number != signal.SIGINT and now < self._first + SECONDS_OF_REPEATS:
            return
        if self.is_set:
            _end(number, frame)
        self.is_set, self._first = True, now
        ENDING.signal = number
        told = f"\n{self.answer}; press Ctrl-C again to stop at once"
        try:
            print(told, flush=True)
        except (
            RuntimeError
        ):  # the signal came in the middle of a write, which cannot begin a second time
            with suppress(OSError):
                os.write(STANDARD_OUTPUT, f"{told}\n".encode())


class _LastingFile(io.FileIO):
    """The raw file below a standard stream."""

    def write(self, data: object) -> int:
        """Write, or drop what cannot be written; a file that does not block is waited for."""
        while True:
            try:
                written = super().write(data)  # type: ignore[arg-type]  # any buffer
                if written is not None:
                    return written
                select.select([], [self], [])
            except OSError as error:
                self._note(error)
                return memoryview(data).nbytes  # type: ignore[arg-type]

    def _note(self, error: OSError) -> None:
        if self.fileno() != STANDARD_OUTPUT or ENDING.lost is not None:
            return
        ENDING.lost = error
        if error.errno != errno.EPIPE:
            told = f"ragen2: standard output cannot be written: {error.strerror}\n"
            with suppress(OSError):  # it may lead to the same place
                os.write(STANDARD_ERROR, told.encode())


def _lasting(stream: TextIO, handle: int) -> TextIO:
    """The same stream over a raw file that lasts; one that is not this process's own stays as it is."""
    if not isinstance(stream, io.TextIOWrapper) or not _is_over(stream, handle):
        return stream
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_LastingFile(handle, "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=bool(stream.line_buffering),
        write_through=stream.write_through,
    )


def _is_over(stream: io.TextIOWrapper, handle: int) -> bool:
    try:
        return stream.fileno() == handle
    except OSError:  # it is in memory
        return False


def _open_closed() -> None:
    """Give standard streams that are closed a place, so that no file of a run gets their number."""
    for handle in (0, STANDARD_OUTPUT, STANDARD_ERROR):
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _end(number: int, frame: FrameType | None) -> None:
    """Clean up and end.

    Code of others may swallow the exception: the next signal ends the process at once, and so does the end
    of its time.
    """
    del frame
    ENDING.signal = number
    signal.signal(number, signal.SIG_DFL)
    last = threading.Timer(SECONDS_TO_END, os.kill, (os.getpid(), number))
    last.daemon = True
    last.start()
    raise Ended
