"""Whether two answers are the same mathematics, as the package math-verify decides it.

It is asked in a process of its own. Short texts can keep sympy busy for ever (``9^{9^{9}}``), some of
them in C code that no signal interrupts, and its own time limit works in the main thread alone; such
a process is killed, and what it was asked counts as not the same.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import logging
import os
import re
import select
import subprocess
import sys
import threading
from functools import lru_cache
from typing import IO, cast

from ragen2.envs.math.answers import MAX_LENGTH, final_answer, same_answer
from ragen2.errors import DependencyError, EnvError

START_SECONDS = 120.0
ANSWER_SECONDS = 8.0
"""After this the process is killed; the three parts of a comparison have ``PART_SECONDS`` each."""
PART_SECONDS = 2
MEMORY_BYTES = 4 << 30
_WORDS = re.compile(r"[^\W\d_]{2,}(?:[\s-]+[^\W\d_]+)*")
"""Sympy would read a word as a product of letters, in which their order does not count."""


def require_math_verify() -> None:
    """Raise ``DependencyError`` where the package is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise DependencyError(
            'answer_rule = "math_verify" needs the package math-verify; '
            "pip install 'ragen2[math]', or set answer_rule to \"value\""
        )


@lru_cache(maxsize=8192)
def same_mathematics(answer: str, right: str) -> bool:
    """Whether ``answer`` has the value of ``right``, or math-verify finds them equal.

    It knows LaTeX, sets, intervals, matrices and expressions in any form, and takes numbers that are
    equal when rounded to six decimals. Words are compared by ``same_answer`` alone.
    """
    if same_answer(answer, right):
        return True
    texts = [final_answer(text).strip().strip("$").strip() for text in (answer, right)]
    is_comparable = all(0 < len(text) <= MAX_LENGTH for text in texts)
    if not is_comparable or any(_WORDS.fullmatch(text) for text in texts):
        return False
    return _PROCESS.ask(*texts)


class _VerifyProcess:
    """Another interpreter that compares answers, started when it is first asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, answer: str, right: str) -> bool:
        """What math-verify says; False where it does not answer in time."""
        with self._lock:
            process = self._running()
            question = json.dumps([answer, right]).encode() + b"\n"
            reply = _exchange(process, question, ANSWER_SECONDS)
            if not reply:
                self._end()
            return reply == b"true\n"

    def _running(self) -> subprocess.Popen[bytes]:
        # A forked child must not write into the pipe of its parent.
        is_ours = self._owner == os.getpid()
        if self._process is not None and is_ours and self._process.poll() is None:
            return self._process
        self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and our own call
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._owner = os.getpid()
        if _exchange(self._process, b"", START_SECONDS) != b"ready\n":
            self._end()
            raise EnvError(
                "math-verify does not start; try python -c 'import math_verify' in a shell"
            )
        return self._process

    def _end(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None


def _exchange(process: subprocess.Popen[bytes], question: bytes, seconds: float) -> bytes:
    """One line there, one line back; empty when none comes in time."""
    stdin, stdout = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
    with contextlib.suppress(BrokenPipeError):  # it has ended: the answer below is empty
        stdin.write(question)
        stdin.flush()
    ready, _, _ = select.select([stdout], [], [], seconds)
    return stdout.readline() if ready else b""


def main() -> None:
    """Answer questions until there are no more; called in the other process."""
    import resource  # not on every system, and of use in the other process only

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable()
    from math_verify import parse, verify

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        answer, right = (
            parse(f"${text}$", parsing_timeout=PART_SECONDS) for text in json.loads(line)
        )
        same = verify(right, answer, timeout_seconds=PART_SECONDS)
        sys.stdout.write(f"{json.dumps(bool(same))}\n")
        sys.stdout.flush()


_PROCESS = _VerifyProcess()
atexit.register(_PROCESS._end)
