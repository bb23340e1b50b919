"""The program as a user starts it: a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ragen2

TIMEOUT = 180
"""Seconds after which a program counts as hanging."""

Done = subprocess.CompletedProcess[str]
Process = subprocess.Popen[str]


def environment() -> dict[str, str]:
    """Plain text, no network, one thread (the quickest for models this small)."""
    return os.environ | {
        "PYTHONPATH": str(Path(ragen2.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "160",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }


def settings(*overrides: str) -> list[str]:
    """``--set`` for each override."""
    return [word for override in overrides for word in ("--set", override)]


def start_python(folder: Path, *args: str | Path, given: str = "") -> Done:
    """Run ``python ARGS`` in ``folder`` to its end, in an interpreter that starts for it."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=folder,
        env=environment(),
        input=given,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def run_python(folder: Path, *args: str | Path, given: str = "") -> Done:
    """Run ``python ARGS`` in ``folder`` to its end, in a fork of an interpreter that is warm."""
    return Warm.interpreter().run(folder, list(map(str, args)), given)


def run_program(folder: Path, *args: str | Path, given: str = "") -> Done:
    """Run ``ragen2 ARGS`` in ``folder`` to its end, in a fork of an interpreter that is warm."""
    return run_python(folder, "-m", "ragen2", *args, given=given)


class Warm:
    """The warm interpreter of this test process (see ``warm_interpreter.py``)."""

    _one: Warm | None = None

    @classmethod
    def interpreter(cls) -> Warm:
        """The only one, started with the first program that needs it."""
        cls._one = cls._one or cls()
        return cls._one

    @classmethod
    def stop(cls) -> None:
        """End it, if it was ever started, and wait for its end."""
        if cls._one is not None:
            cls._one._process.communicate()
            cls._one = None

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("warm_interpreter.py")],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # an answer that is there must not hide from select in a buffer
        )

    def run(self, folder: Path, arguments: list[str], given: str) -> Done:
        """The exit code and the output of ``python ARGUMENTS`` in ``folder``."""
        with tempfile.TemporaryDirectory() as name:
            streams = {stream: Path(name, stream) for stream in ("stdin", "stdout", "stderr")}
            for file in streams.values():
                file.touch()
            streams["stdin"].write_text(given)
            self._ask(
                {"arguments": arguments, "folder": str(folder), "environment": environment()}
                | {stream: str(file) for stream, file in streams.items()}
            )
            code = self._wait(self._answer(), arguments)
            # Decoded as subprocess does, newlines translated.
            output = [streams[stream].read_text() for stream in ("stdout", "stderr")]
        return subprocess.CompletedProcess(arguments, code, *output)

    def _ask(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the warm interpreter ended with {self._process.wait()}"
        return int(line)

    def _wait(self, pid: int, arguments: list[str]) -> int:
        if not select.select([self._process.stdout], [], [], TIMEOUT)[0]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._answer()
            raise subprocess.TimeoutExpired(arguments, TIMEOUT)
        return self._answer()


def start_program(folder: Path, *args: str | Path) -> Process:
    """Start ``ragen2 ARGS`` in ``folder`` and go on.

    Interrupts and hang-ups reach it even where the tests themselves run in the background of a script or
    under nohup, which ignore them and hand that down.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "ragen2", *map(str, args)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_signals,  # noqa: PLW1509 - C calls, no locks
    )


def _hear_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def wait_for(condition: Callable[[], bool], process: Process) -> None:
    """Until ``condition`` holds; the program must still run by then."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


def records(run: Path) -> list[dict[str, Any]]:
    """All of ``steps.jsonl`` that does not depend on the clock."""
    lines = (run / "steps.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [{name: value for name, value in one.items() if name != "seconds"} for one in found]


def content(run: Path) -> dict[Path, bytes]:
    """Every file but the lock, which names its last holder."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in files}


def checkpoints(run: Path) -> list[str]:
    """Names of everything in the folder of checkpoints but those that were set aside."""
    names = (path.name for path in (run / "checkpoints").iterdir())
    return sorted(name for name in names if not name.startswith("set_aside-"))


def assert_refused(done: Done, folder: Path, *lines: str, left: Sequence[str] = ()) -> None:
    """Exit code 2, exactly these lines on standard error, no other word, and no new file."""
    assert done.stderr.splitlines() == [f"ragen2: {line}" for line in lines]
    assert done.stdout == ""
    assert done.returncode == 2
    assert sorted(path.name for path in folder.iterdir()) == sorted(left)
