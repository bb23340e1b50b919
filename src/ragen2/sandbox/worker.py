"""What a worker does: give up all rights, run the program on one test, hand over what came out.

A test that is Python of its own has two workers, the program's and the judge's, and a channel between them.
"""

from __future__ import annotations

import atexit
import os
import resource
import sys

from ragen2.sandbox import kernel
from ragen2.sandbox.write_values import PROGRAM, write

TYPE_CHECKING = False  # importing typing would slow down every start of the sandbox
if TYPE_CHECKING:
    from typing import Any

VALUE_FD = 3
MAX_DESCRIPTORS = 64
NOBODY = 65534


READY, NOT_READY = b"r", b"!"
"""The first byte of what a worker hands over, written before the program runs: the sandbox works or not."""


def work(job: Any, test: Any) -> None:
    """Run the job's program, or the judge's part, on ``test`` and end this process."""
    try:
        os.chdir(job["scratch"] or "/")
        _limit(job)
        _lock_up(job, test.get("channel", ()))
    except Exception as error:  # noqa: BLE001 - whatever it is, no program runs without its walls
        _hand_over(NOT_READY + reason(error))
        os._exit(1)
    _hand_over(READY)
    if "check" in test:
        from ragen2.sandbox.judge import Judge

        message = Judge(test["check"], test["channel"], job["output_bytes"]).verdict()
    else:
        message = _outcome(job, test)
    _finish_output()
    _hand_over(message.encode("utf-8", "backslashreplace"))
    os._exit(0)


def reason(error: Exception) -> bytes:
    """What went wrong in setting up, as text."""
    return (str(error) if isinstance(error, OSError) else repr(error)).encode()


def _hand_over(data: bytes) -> None:
    while data:
        data = data[os.write(VALUE_FD, data) :]


def _limit(job: Any) -> None:
    seconds = int(job["seconds_per_test"]) + 1
    limits = {
        "RLIMIT_AS": job["memory_bytes"],
        "RLIMIT_CPU": seconds,
        "RLIMIT_FSIZE": job["disk_bytes"] if job["scratch"] else 0,
        "RLIMIT_NOFILE": MAX_DESCRIPTORS,
        "RLIMIT_CORE": 0,
    }
    if job["wall"] == "none":
        limits["RLIMIT_NPROC"] = 0  # the filter allows threads; without it, neither they nor forks
    for name, value in limits.items():
        number = getattr(resource, name, None)
        if number is not None:
            _lower(number, value, value + (name == "RLIMIT_CPU"))


def _lower(number: int, soft: int, hard: int) -> None:
    """Set a limit; one that is lower already stays."""
    (_, given) = resource.getrlimit(number)
    if given != resource.RLIM_INFINITY:
        soft, hard = min(soft, given), min(hard, given)
    try:
        resource.setrlimit(number, (soft, hard))
    except (OSError, ValueError):
        if sys.platform.startswith("linux"):  # elsewhere some limits have names only
            raise


def _lock_up(job: Any, channel: tuple[int, ...]) -> None:
    if sys.platform.startswith("linux"):
        if job["become_nobody"]:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        kernel.die_with_parent(job["supervisor"])  # becoming another user would undo this
        kernel.lock(job["rules"], job["filter"])
    # Among the others is the report: whoever can write to it decides what became of a test.
    start = VALUE_FD + 1
    for kept in (*sorted(channel), 1024):
        os.closerange(start, kept)
        start = kept + 1
    os.environ.clear()


def _outcome(job: Any, test: Any) -> str:
    """A letter and a text: ``o`` it ended, ``v`` a value, ``e`` an error, ``s`` not a program."""
    name = "__main__" if "stdin" in test else PROGRAM
    module = type(sys)(name)
    sys.modules[name] = module
    sys.argv = ["program.py"]
    try:
        code = compile(job["program"], "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        return f"s{type(error).__name__}: {error}"
    try:
        exec(job["prelude"], module.__dict__)  # noqa: S102 - our own text
        _execute(code, module)
        if "call" in test:
            return "v" + write(_answer(module.__dict__, *test["call"]))
        if "channel" in test:
            from ragen2.sandbox.remote import GoneError, Program

            try:
                Program(module, test["channel"], job["memory_bytes"]).serve_for_ever()
            except GoneError:  # the test has ended
                return "o"
        else:
            _wait_for_threads()
    except BaseException as error:  # noqa: BLE001 - a program may raise anything
        return _failure(error)
    return "o"


def _execute(code: Any, module: Any) -> None:
    try:
        exec(code, module.__dict__)  # noqa: S102 - what the sandbox is for; this process is locked up
    except SystemExit:  # a program that leaves early has still printed what it printed
        return


def _answer(space: dict[str, Any], name: str, arguments: list[Any]) -> Any:
    """The value of a function, or of a method of Solution."""
    if name in space:
        return space[name](*arguments)
    if "Solution" in space and hasattr(space["Solution"], name):
        return getattr(space["Solution"](), name)(*arguments)
    raise NameError(f"the program defines no function {name}")


def _failure(error: BaseException) -> str:
    try:
        return f"e{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - the error's own text may fail, or memory be spent
        return "eerror without text"


def _wait_for_threads() -> None:
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()  # as the interpreter does at its end


def _finish_output() -> None:
    """Run exit functions and flush, as the interpreter does at its end."""
    for finish in (atexit._run_exitfuncs, _flush):
        try:
            finish()
        except BaseException:  # noqa: BLE001, S112 - a program may have put anything in their place
            continue


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        if stream is not None:
            stream.flush()
