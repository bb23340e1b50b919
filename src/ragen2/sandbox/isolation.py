"""How well a program can be shut in on this machine, and the command that does it.

Strong: bubblewrap gives the program its own processes, network, user and file system, with nothing
in it but the interpreter and an empty scratch folder. Weak: a new session, closed descriptors,
resource limits, and what the kernel adds by itself: Landlock (files) and seccomp (system calls), or
in their place a fence of audit hooks inside the interpreter. Every form limits time, memory, output and disk.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ragen2.errors import EnvError
from ragen2.sandbox import kernel

Demand = Literal["auto", "strong", "weak"]

INSIDE_SCRATCH = "/scratch"
CURE = (
    "install bubblewrap (apt-get install bubblewrap) and allow user namespaces, "
    'or set isolation = "auto"'
)
_PROBE_SECONDS = 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Isolation:
    """What shuts a program in."""

    bwrap: str = ""
    """Path of bubblewrap; empty: the weak form."""
    has_size: bool = False
    """Whether this bubblewrap can bound the scratch folder's memory."""
    landlock: int = 0
    """Version of Landlock to use; 0: none."""
    seccomp: bool = False
    why_weak: str = ""

    @property
    def is_strong(self) -> bool:
        """Whether the program gets its own namespaces."""
        return bool(self.bwrap)

    @property
    def needs_fence(self) -> bool:
        """Whether audit hooks in the interpreter must stand in for rules that this kernel lacks."""
        return not self.is_strong and not (self.landlock and self.seccomp)

    @property
    def description(self) -> str:
        """One line for logs."""
        if self.is_strong:
            return "own namespaces (bubblewrap)" + (" and a call filter" if self.seccomp else "")
        if not self.needs_fence:
            return "resource limits, Landlock and a call filter: no network, files or processes"
        layers = ["resource limits"]
        layers += ["Landlock"] if self.landlock else []
        layers += ["a call filter"] if self.seccomp else []
        return f"{', '.join(layers)} and audit hooks, which the kernel does not enforce"


@lru_cache(maxsize=8)
def best_isolation(demand: Demand) -> Isolation:
    """The best isolation that ``demand`` asks for; says once when it is not the strong form."""
    weak = Isolation(landlock=kernel.landlock_version(), seccomp=kernel.has_seccomp())
    if demand == "weak":
        _log.warning("programs run in the weak form of isolation as asked: %s", weak.description)
        return replace(weak, why_weak="asked for")
    strong = _strong(weak.seccomp)
    if isinstance(strong, Isolation):
        return strong
    if demand == "strong":
        raise EnvError(f"isolation is strong, but {strong}; {CURE}")
    _log.warning("isolation of programs is weaker: %s; they get %s", strong, weak.description)
    return replace(weak, why_weak=strong)


def interpreter() -> str:
    """The Python that runs programs: ours, without the virtual environment around it."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return os.path.realpath(base)


@lru_cache(maxsize=1)
def library_folders() -> tuple[str, ...]:
    """Folders that hold the interpreter's standard library and the system's shared libraries."""
    paths = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    candidates = [
        *("/lib", "/lib64", "/usr/lib", "/usr/lib64"),
        f"{sys.base_prefix}/lib",
        paths["stdlib"],
        paths["platstdlib"],
    ]
    found: list[str] = []
    for path in map(os.path.realpath, candidates):
        if os.path.isdir(path) and not any(_is_within(path, other) for other in found):
            found = [other for other in found if not _is_within(other, path)] + [path]
    return tuple(found)


@lru_cache(maxsize=1)
def hidden_folders() -> tuple[str, ...]:
    """Folders below the libraries that no program may see: installed packages, also ours."""
    found = {str(Path(__file__).resolve().parents[1])}
    for folder in library_folders():
        for pattern in ("*-packages", "python*/*-packages"):
            found.update(str(path) for path in Path(folder).glob(pattern))
    return tuple(sorted(path for path in found if _is_within_any(path, library_folders())))


@lru_cache(maxsize=1)
def readable_paths() -> tuple[str, ...]:
    """The library folders cut into pieces that leave out the hidden ones."""
    pieces: list[str] = []
    for folder in library_folders():
        pieces += _without_hidden(folder, hidden_folders())
    return (*pieces, "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


def command(isolation: Isolation, disk_bytes: int, python: list[str]) -> list[str]:
    """The command line that starts ``python`` in the given isolation."""
    if not isolation.is_strong:
        return [interpreter(), *python]
    # As process 1 of its namespace our supervisor is the parent of every orphan, and when it ends
    # the kernel kills all that is left in the namespace.
    line = [isolation.bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--as-pid-1"]
    line += ["--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--hostname", "sandbox"]
    for folder in library_folders():
        line += ["--ro-bind", folder, folder]
    for path in ("/lib", "/lib64"):
        if os.path.islink(path):
            line += ["--symlink", os.readlink(path), path]
    for folder in hidden_folders():
        line += ["--tmpfs", folder, "--remount-ro", folder]
    line += ["--ro-bind", interpreter(), interpreter()]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"):
        line += ["--dev-bind", device, device]
    size = ["--size", str(4 * disk_bytes)] if isolation.has_size else []
    line += [*size, "--tmpfs", INSIDE_SCRATCH, "--chdir", INSIDE_SCRATCH, "--remount-ro", "/"]
    return [*line, interpreter(), *python]


def _strong(seccomp: bool) -> Isolation | str:
    """The strong form, or why it is not to be had."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "bubblewrap (bwrap) is not installed"
    has_size = b"--size" in _output([bwrap, "--help"])[1]
    strong = Isolation(bwrap=bwrap, has_size=has_size, seccomp=seccomp)
    code, text = _output(command(strong, 1 << 20, ["-S", "-c", "print('inside')"]))
    if code == 0 and text.strip() == b"inside":
        return strong
    reason = (text.decode(errors="replace").strip().splitlines() or [f"exit status {code}"])[-1]
    return f"bubblewrap does not work here ({reason})"


def _output(line: list[str]) -> tuple[int, bytes]:
    try:
        done = subprocess.run(  # noqa: S603 - our own command line
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error).encode()
    return done.returncode, done.stdout


def environment() -> dict[str, str]:
    """All environment variables a program's process gets: none of ours.

    The fixed hash seed makes a program that depends on the order of a set behave alike every time.
    """
    libraries = f"{sys.base_prefix}/lib"
    return {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "LD_LIBRARY_PATH": libraries}


def _without_hidden(folder: str, hidden: tuple[str, ...]) -> list[str]:
    if folder in hidden:
        return []
    if not any(_is_within(path, folder) for path in hidden):
        return [folder]
    pieces: list[str] = []
    for entry in sorted(os.listdir(folder)):
        pieces += _without_hidden(f"{folder}/{entry}", hidden)
    return pieces


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_within_any(path: str, folders: tuple[str, ...]) -> bool:
    return any(_is_within(path, folder) for folder in folders)
