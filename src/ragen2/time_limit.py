"""Calls of code that may never return, ended after a while.

In the main thread an alarm of the system interrupts also what waits: sleeps, locks, sockets, pipes. Other
threads get no alarms: there a watchdog raises the exception, which Python code meets at its next line, and
code that waits only when it is done waiting; ``is_stuck`` tells the latter, for whoever can do without its
thread. C code that neither returns nor looks for signals cannot be interrupted. Python code of the main
thread that catches every exception and goes on ends the program.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, ParamSpec, TypeVar

AGAIN_SECONDS = 1.0
"""Until code that caught the exception and went on gets another."""
MOST_TELLINGS = 30
"""Times that code of the main thread is interrupted: if it goes on after all of them, it never ends."""
STUCK_SECONDS = 2.0
"""After which code that has not met the exception is taken to wait in C."""
TICKS = 10
"""Looks at the clock per time limit."""
LONGEST_PAUSE = 1.0
"""Seconds between two of them at most."""
SOON = 0.001
"""Seconds: a timer set to none is no timer."""

ALARM = int(signal.SIGALRM)
_get_handler: Callable[[int], Any] = importlib.import_module("_signal").getsignal
"""What ``signal.getsignal`` calls, which makes an enum of each answer at ten times the cost."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class OutOfTime(BaseException):
    """Not an ``Exception``: code that goes on after those must not go on after this."""


def within(
    seconds: float,
    call: Callable[Parameters, Result],
    *args: Parameters.args,
    **kwargs: Parameters.kwargs,
) -> Result:
    """What ``call`` returns; a ``TimeoutError`` when that takes longer. 0 seconds is no limit.

    A call inside another one has the limit of the outer.
    """
    thread = threading.get_ident()
    if seconds <= 0.0 or thread in _running:
        return call(*args, **kwargs)
    try:
        _begin(thread, seconds)
        try:
            return call(*args, **kwargs)
        finally:
            _end(thread)
    except OutOfTime as error:
        _end(thread)  # it may have come in the middle of the other end
        late = TimeoutError(f"it took more than {seconds:g} seconds")
        raise late.with_traceback(error.__traceback__) from None


def is_stuck(thread: int) -> bool:
    """Whether a thread is over its limit, was told so, and goes on."""
    return time.monotonic() > _running.get(thread, math.inf) + STUCK_SECONDS


_running: dict[int, float] = {}
"""When the call under way in each thread is out of time."""
_raised: dict[int, float] = {}
"""When that was last told to a thread."""
_lock = threading.Lock()


def _begin(thread: int, seconds: float) -> None:
    now = time.monotonic()
    _running[thread] = now + seconds
    if thread == threading.main_thread().ident:
        _alarm.set_by(now + seconds, now)
    _watchdog.look_every(seconds / TICKS)


def _end(thread: int) -> None:
    with _lock:  # from here on no exception is raised for this call
        _running.pop(thread, None)
        if _raised.pop(thread, None) is not None:
            _raise_in(thread, None)


def _is_due(thread: int, later: float = 0.0) -> bool:
    """Whether to raise in a thread, for the first time or once more."""
    now = time.monotonic()
    was = _raised.get(thread, -math.inf)
    if now < _running.get(thread, math.inf) + later or now < was + AGAIN_SECONDS + later:
        return False
    _raised[thread] = now
    return True


class _Alarm:
    """The main thread's limit: a timer of the system.

    To set it for each call would cost more than most calls do: it goes off where the first of them would
    have been out of time, and is then set for the one under way, if there is one.
    """

    def __init__(self) -> None:
        self._goes_off = math.inf
        """When it does; in the past, it was cleared by somebody else."""
        self._tellings = 0
        """Times that it interrupted the call under way."""

    def set_by(self, deadline: float, now: float) -> None:
        """Go off no later than ``deadline``, unless somebody else uses alarms."""
        if now < self._goes_off <= deadline:
            return
        if _get_handler(ALARM) in (self._go_off, signal.SIG_DFL):
            signal.signal(ALARM, self._go_off)
            self._goes_off = deadline
            signal.setitimer(signal.ITIMER_REAL, max(deadline - now, SOON))

    def clear(self) -> None:
        """At the end of the program, when Python takes its handlers back: an alarm then ends a process."""
        if _get_handler(ALARM) == self._go_off:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _go_off(self, number: int, frame: FrameType | None) -> None:
        """Called by Python in the main thread, between two lines of whatever that is doing."""
        del number
        self._goes_off = math.inf
        thread = threading.get_ident()
        if thread not in _running:
            return
        self._tellings = self._tellings + 1 if thread in _raised else 0
        if self._tellings > MOST_TELLINGS:
            _end_program(frame)
        now, is_due = time.monotonic(), _is_due(thread)
        self.set_by(now + AGAIN_SECONDS if is_due else _running[thread], now)
        if is_due:
            raise OutOfTime


class _Watchdog:
    """The limit of other threads: one more thread, which looks at the clock for all of them.

    It looks after the main thread as well, a little later, where its alarm was cleared.
    """

    def __init__(self) -> None:
        self._sooner = threading.Event()
        self._pause = math.inf

    def look_every(self, pause: float) -> None:
        """Look at least that often, and once per second."""
        if self._pause <= pause or self._pause <= LONGEST_PAUSE <= pause:
            return
        with _lock:
            is_new = self._pause == math.inf
            self._pause = min(self._pause, pause, LONGEST_PAUSE)
            self._sooner.set()
        if is_new:
            threading.Thread(target=self._run, name="time limit", daemon=True).start()

    def _run(self) -> None:
        main = threading.main_thread().ident
        while True:
            self._sooner.wait(self._pause)
            self._sooner.clear()
            with _lock:
                for thread in list(_running):
                    if _is_due(thread, AGAIN_SECONDS if thread == main else 0.0):
                        _raise_in(thread, OutOfTime)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Let a thread raise ``error`` at its next line of Python; None takes back what it has not met."""
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


def _end_program(frame: FrameType | None) -> None:
    """Say which code cannot be interrupted, and end without asking it: by the rules of a killed program."""
    where = "" if frame is None else f" in {frame.f_code.co_filename}, line {frame.f_lineno},"
    told = f"ragen2: code{where} is out of time and goes on after every exception; mend it\n"
    with suppress(OSError):
        os.write(2, told.encode(errors="replace"))
    os._exit(2)


_alarm = _Alarm()
_watchdog = _Watchdog()


def _forget() -> None:
    """In a fork there are no timers and no other threads, and a lock may be taken for ever."""
    global _lock  # noqa: PLW0603 - the one of the other process
    _lock = threading.Lock()
    _running.clear()
    _raised.clear()
    _alarm.__init__()  # type: ignore[misc]  # the handler stays bound to this one
    _watchdog.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget)
atexit.register(_alarm.clear)
