"""An interpreter that has imported the package and torch once, and forks for each program it is sent.

A program in a fork is a process of its own, with its own folder, environment, output and exit code, but
it starts in milliseconds: the imports, most of the time of a short command, are already done.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading
from typing import Any

PRELOADED = (
    "ragen2.cli.app",
    "ragen2.backends.agent",
    "ragen2.reports.page",
    "ragen2.trainer.loop",
)


def serve() -> dict[str, Any] | None:
    """Answer each line of standard input; in a fork, return the program that it is to become.

    Answers are two lines: the process's id at once, its exit status at its end.
    """
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in requests:
        pid = os.fork()
        if pid == 0:
            requests.close()
            answers.close()
            request: dict[str, Any] = json.loads(line)
            return request
        print(pid, file=answers, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
    return None


def become(program: dict[str, Any]) -> None:
    """Everything that differs between one start of Python and another."""
    os.chdir(program["folder"])
    os.environ.clear()
    os.environ.update(program["environment"])
    for handle, name in enumerate(("stdin", "stdout", "stderr")):
        mode = os.O_RDONLY if name == "stdin" else os.O_WRONLY
        file = os.open(program[name], mode)
        os.dup2(file, handle)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(handle, "w", 1, closefd=False) for handle in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run(arguments: list[str]) -> None:
    """What ``python ARGUMENTS`` runs: ``-m module``, ``-c code`` or a file."""
    first, *rest = arguments
    if first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - as -c does
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


def exit_code(arguments: list[str]) -> int:
    """Run the program to its end; how it ended, as Python says it at the end of a process."""
    try:
        run(arguments)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            sys.stderr.write(f"{end.code}\n")
            return 1
        return end.code or 0
    except BaseException:  # noqa: BLE001 - here ends the process
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def leave(code: int) -> None:
    """End the process as Python does, but leave its objects alone.

    Taking them down one by one would copy all the memory that the fork shares.
    """
    threading._shutdown()  # type: ignore[attr-defined] - waits for threads, as at any end
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (
            OSError
        ) as error:  # nobody reads, or there is no room: Python says so, and ends with 120
            sys.stderr.write(f"Exception ignored in: {stream}\n{type(error).__name__}: {error}\n")
            code = 120
    os._exit(code)


if __name__ == "__main__":
    os.environ["TQDM_DISABLE"] = (
        "1"  # as the program sets it before its imports: tqdm looks then alone
    )
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to what it shares, and so copy it
    program = serve()
    if program is not None:
        become(program)
        leave(exit_code(program["arguments"]))
