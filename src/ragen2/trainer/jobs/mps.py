"""Let processes compute on one NVIDIA GPU at the same time.

Without help a GPU serves one process after another, each for a slice of time. NVIDIA's Multi-Process Service
(MPS) lets them share it: a daemon that processes find through two environment variables.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
SECONDS = 30
"""Patience with each command of the daemon."""
# libcuda alone: importing torch to find out whether a GPU opens would take seconds.
_OPEN_CUDA = (
    "import ctypes, sys\n"
    "cuda = ctypes.CDLL('libcuda.so.1')\n"
    "device, context = ctypes.c_int(), ctypes.c_void_p()\n"
    "code = (cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)\n"
    "        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))\n"
    "sys.exit(f'CUDA error {code}' if code else 0)\n"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How processes will share the GPU."""

    is_mps: bool = False
    note: str = ""
    """One line for the user, when there is something to say."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the processes need in their environment."""


def has_gpu() -> bool:
    """Whether an NVIDIA GPU may be used here; answered without loading torch."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in {"", "-1"}
    return not is_hidden and any(Path("/dev").glob("nvidia[0-9]*"))


def why_no_cuda(variables: Mapping[str, str]) -> str:
    """What keeps a process with these variables from opening the GPU; nothing when it can."""
    return _run([sys.executable, "-c", _OPEN_CUDA], variables)


@contextlib.contextmanager
def shared_gpu(check: Callable[[Mapping[str, str]], str] = why_no_cuda) -> Iterator[Sharing]:
    """Start MPS for the processes of this block, unless it runs already, and end it after them.

    Where that cannot be done, or ``check`` says why a process could not use it, the note says so and
    processes take turns.
    """
    program = shutil.which(CONTROL)
    if program is None:
        yield Sharing(note=f"{CONTROL} is not installed; jobs take turns on the GPU")
        return
    if not _run([program], {}, "get_server_list\n"):
        yield Sharing(
            is_mps=True, note="jobs share the GPU through the MPS daemon that runs already"
        )
        return
    with contextlib.ExitStack() as stack:
        variables = _own_folders(stack)
        problem = _run([program, "-d"], variables)
        if not problem:
            stack.callback(_quit, program, variables)
            problem = check(variables)
        if not problem:
            yield Sharing(True, "jobs share the GPU through NVIDIA MPS", variables)
            return
    yield Sharing(note=f"NVIDIA MPS cannot be used ({problem}); jobs take turns on the GPU")


def _own_folders(stack: contextlib.ExitStack) -> dict[str, str]:
    """Folders for a daemon of our own: it then neither finds nor disturbs another user's."""
    folder = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="ragen2-mps-", ignore_cleanup_errors=True)
    )
    variables = {
        f"CUDA_MPS_{name}_DIRECTORY": f"{folder}/{name.lower()}" for name in ("PIPE", "LOG")
    }
    for path in variables.values():
        Path(path).mkdir()
    return variables


def _quit(program: str, variables: Mapping[str, str]) -> None:
    problem = _run([program], variables, "quit\n")
    if problem:
        logger.warning("the MPS daemon could not be ended: %s", problem)


def _run(command: list[str], variables: Mapping[str, str], given: str = "") -> str:
    """Run a command; why it failed, in one line, or nothing."""
    # A file and no pipe: the daemon inherits what it writes to and keeps it open, so a pipe would never end.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(  # noqa: S603 - our own command line
                command,
                input=given.encode(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                timeout=SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return " ".join(str(error).split())
        if done.returncode == 0:
            return ""
        output.seek(0)
        lines = output.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return last or f"exit code {done.returncode}"
