"""Time limits: whatever a call does that Python can interrupt is interrupted, and nothing else is."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from command_line import start_python
from ragen2.time_limit import is_stuck, within

LIMIT = 0.2
PATIENCE = 30.0
"""Seconds after which a call that should have ended counts as endless."""


def compute() -> None:
    """Python code that never ends."""
    while True:
        pass


def retry() -> None:
    """The same, behind a handler of all exceptions."""
    while True:
        with suppress(Exception):
            compute()


def retry_twice() -> None:
    """The same, behind handlers of everything."""
    try:
        compute()
    except BaseException:  # noqa: BLE001 - the point of it
        compute()


def sleep() -> None:
    """Waits in the system."""
    time.sleep(PATIENCE)


def wait() -> None:
    """Waits for another thread."""
    threading.Event().wait(PATIENCE)


def match() -> None:
    """C code that holds the interpreter for minutes, and looks for signals."""
    re.match(r"(a+)+$", "a" * 31 + "!")


def in_thread(call: Callable[[], object]) -> list[object]:
    """What ``call`` gives or raises in a thread that is not the main one."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001 - handed on as a value
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return found


@pytest.mark.parametrize("call", [compute, retry, retry_twice, sleep, wait, match])
def test_a_call_that_never_ends_is_ended_in_the_main_thread(call: Callable[[], None]) -> None:
    with pytest.raises(TimeoutError, match=r"it took more than 0\.2 seconds"):
        within(LIMIT, call)


@pytest.mark.parametrize("call", [compute, retry, retry_twice])
def test_a_call_that_never_ends_is_ended_in_another_thread(call: Callable[[], None]) -> None:
    (found,) = in_thread(lambda: within(LIMIT, call))
    assert isinstance(found, TimeoutError)


def test_a_thread_that_waits_cannot_be_interrupted_and_is_known_to_be_stuck() -> None:
    end = threading.Event()
    found: list[object] = []

    def run() -> None:
        try:
            within(LIMIT, end.wait, PATIENCE)
        except TimeoutError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert not is_stuck(thread.ident or 0)
    deadline = time.monotonic() + PATIENCE
    while not is_stuck(thread.ident or 0):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    end.set()
    thread.join(PATIENCE)
    assert not is_stuck(thread.ident or 0)
    assert len(found) == 1


@pytest.mark.parametrize("run", [lambda call: [call()], in_thread], ids=["main", "thread"])
def test_a_call_in_time_is_left_alone(run: Callable[..., list[object]]) -> None:
    assert run(lambda: within(LIMIT, lambda a, b: a + b, 1, b=2)) == [3]
    assert run(lambda: within(0.0, time.sleep, 0.01)) == [None]
    assert run(lambda: time.sleep(2 * LIMIT)) == [None]  # what comes after it has no limit


def test_a_call_inside_another_has_the_limit_of_the_outer() -> None:
    with pytest.raises(TimeoutError, match=r"0\.2 seconds"):
        within(LIMIT, within, PATIENCE, compute)
    assert within(PATIENCE, within, LIMIT / 100, lambda: time.sleep(LIMIT)) is None


def test_alarms_of_somebody_else_are_not_touched() -> None:
    theirs: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: theirs.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        with pytest.raises(TimeoutError):
            within(LIMIT, compute)
        assert PATIENCE / 2 < signal.setitimer(signal.ITIMER_REAL, 0.0)[0] < PATIENCE
        assert not theirs
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_timer_that_somebody_else_cleared_is_missed_by_nobody() -> None:
    assert within(PATIENCE, lambda: 1) == 1
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    with pytest.raises(TimeoutError):
        within(LIMIT, compute)


def test_code_that_catches_everything_ends_the_program_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(
        "import time\n"
        "from ragen2 import time_limit\n"
        "time_limit.AGAIN_SECONDS = 0.01\n"
        "def step():\n"
        "    while True:\n"
        "        try:\n"
        "            time.sleep(30)\n"
        "        except:\n"
        "            pass\n"
        "time_limit.within(0.2, step)\n"
    )
    done = start_python(tmp_path, "stubborn.py")
    line = (
        re.escape(f"ragen2: code in {tmp_path / 'stubborn.py'}, line ")
        + r"\d+, is out of time and "
    )
    assert done.returncode == 2
    assert re.fullmatch(line + "goes on after every exception; mend it\n", done.stderr)


def test_a_timer_does_not_outlive_the_program(tmp_path: Path) -> None:
    done = start_python(
        tmp_path,
        "-c",
        "import time\n"
        "from ragen2.time_limit import within\n"
        "class Slow:\n"
        "    def __del__(self, sleep=time.sleep):\n"
        "        sleep(0.5)\n"
        "slow = Slow()\n"
        "within(0.2, int)\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
