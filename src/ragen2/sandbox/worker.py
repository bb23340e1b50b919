"""What a worker does: give up all rights, run the program on one test, hand over what came out."""

from __future__ import annotations

import atexit
import os
import resource
import sys

from ragen2.sandbox import fence, kernel
from ragen2.sandbox.write_values import write

TYPE_CHECKING = False  # importing typing would slow down every start of the sandbox
if TYPE_CHECKING:
    from typing import Any

VALUE_FD = 3
MAX_DESCRIPTORS = 64
NOBODY = 65534


def work(job: Any, test: Any) -> None:
    """Run the job's program on ``test`` and end this process."""
    os.chdir(job["scratch"])
    _limit(job)
    _lock_up(job)
    message = _outcome(job["program"], job["prelude"], test)
    _finish_output()
    data = message.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(VALUE_FD, data) :]
    os._exit(0)


def _limit(job: Any) -> None:
    seconds = int(job["seconds_per_test"]) + 1
    limits = {
        "RLIMIT_AS": job["memory_bytes"],
        "RLIMIT_CPU": seconds,
        "RLIMIT_FSIZE": job["disk_bytes"],
        "RLIMIT_NOFILE": MAX_DESCRIPTORS,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    if not job["seccomp"]:
        limits["RLIMIT_NPROC"] = 0  # the filter allows threads; without it, neither they nor forks
    for name, value in limits.items():
        number = getattr(resource, name, None)
        if number is not None:
            try:
                resource.setrlimit(number, (value, value + (name == "RLIMIT_CPU")))
            except (OSError, ValueError):
                if name in ("RLIMIT_CPU", "RLIMIT_FSIZE"):
                    raise


def _lock_up(job: Any) -> None:
    if sys.platform.startswith("linux"):
        kernel.die_with_parent(job["supervisor"])
        if job["become_nobody"]:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        kernel.lock(job["rules"], job["filter"])
    # Among them is the report: whoever can write to it decides what became of a test.
    os.closerange(VALUE_FD + 1, 1024)
    os.environ.clear()
    if job["fence"]:
        fence.raise_fence(job["readable"], job["scratch"])


def _outcome(program: str, prelude: str, test: Any) -> str:
    """A letter and a text: ``o`` it ended, ``v`` values, ``e`` an error, ``s`` not a program."""
    probes = test.get("probes")
    name = "__main__" if probes is None else "program"
    module = type(sys)(name)
    sys.modules[name] = module
    sys.argv = ["program.py"]
    try:
        code = compile(program, "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        return f"s{type(error).__name__}: {error}"
    try:
        exec(prelude, module.__dict__)  # noqa: S102 - our own text
        _execute(code, module)
        if probes is None:
            _wait_for_threads()
            return "o"
        space = module.__dict__
        if test.get("setup"):
            exec(compile(test["setup"], "<setup>", "exec", dont_inherit=True), space)  # noqa: S102 - locked up
        return "v[" + ",".join(write(_answer(probe, space)) for probe in probes) + "]"
    except BaseException as error:  # noqa: BLE001 - a program may raise anything
        return _failure(error)


def _execute(code: Any, module: Any) -> None:
    try:
        exec(code, module.__dict__)  # noqa: S102 - what the sandbox is for; this process is locked up
    except SystemExit:  # a program that leaves early has still printed what it printed
        return


def _answer(probe: Any, space: dict[str, Any]) -> Any:
    """The value of an expression, or of a function (or method of Solution) with arguments."""
    if isinstance(probe, str):
        return eval(compile(probe, "<test>", "eval", dont_inherit=True), space)  # noqa: S307 - locked up
    name, arguments = probe
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
