"""What shuts a program in on this machine, and the command that starts it there.

A wall is something the kernel enforces and the program cannot take down. Three are offered, each
together with a filter of system calls (seccomp): bubblewrap gives the program its own processes,
network, users and files; Landlock decides which files it may open, inside a file system of its own
where the kernel lets us make one; a container runtime starts it as a container or in gVisor's kernel.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ragen2.sandbox import container

Demand = Literal["auto", "strong", "weak", "container"]
Wall = Literal["bubblewrap", "landlock", "container", "none"]

SCRATCH = "/scratch"
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


@dataclass(frozen=True, slots=True)
class Isolation:
    """What shuts a program in."""

    wall: Wall
    program: str = ""
    """Path of bubblewrap or of the container runtime."""
    has_files: bool = False
    """Whether the program gets a file system of its own, with a scratch folder of bounded size. Without,
    it can write no file, and can see (not read) which files there are."""

    @property
    def description(self) -> str:
        """One line for logs."""
        return {
            "bubblewrap": "bubblewrap and a filter of system calls",
            "landlock": "Landlock and a filter of system calls",
            "container": f"a container of {os.path.basename(self.program)} and a filter of system calls",
            "none": "no wall",
        }[self.wall] + (" in a file system of its own" if self.has_files else "")

    @property
    def behind(self) -> str:
        """Where programs run, in words."""
        return "with your own rights" if self.wall == "none" else f"behind {self.description}"


def candidates(demand: Demand) -> list[Isolation | str]:
    """Isolations that ``demand`` accepts, in the order to try them; in place of one that is not here, why."""
    found: list[Isolation | str] = []
    if demand in ("auto", "strong"):
        bwrap = shutil.which("bwrap")
        missing = "bubblewrap (bwrap) is not installed"
        found.append(Isolation("bubblewrap", bwrap, True) if bwrap else missing)
    if demand in ("auto", "weak"):
        found += [Isolation("landlock", has_files=True), Isolation("landlock")]
    if demand in ("auto", "container"):
        runtimes = [path for name in container.RUNTIMES if (path := shutil.which(name))]
        missing = f"no container runtime ({', '.join(container.RUNTIMES)}) is installed"
        found += [Isolation("container", path, True) for path in runtimes] or [missing]
    return found


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
    return (*pieces, *DEVICES)


@lru_cache(maxsize=1)
def layout() -> dict[str, list[Any]]:
    """What a file system for programs consists of, the scratch folder aside."""
    links = [(path, os.readlink(path)) for path in ("/lib", "/lib64") if os.path.islink(path)]
    return {
        "folders": list(library_folders()),
        "hidden": list(hidden_folders()),
        "links": links,
        "devices": list(DEVICES),
    }


def command(isolation: Isolation, disk_bytes: int, python: list[str]) -> list[str]:
    """The command line that starts ``python`` in the given isolation."""
    inside = [interpreter(), *python]
    if isolation.wall == "bubblewrap":
        return [*_bubblewrap(isolation, disk_bytes), *inside]
    if isolation.wall == "container":
        mounts = _container_mounts(disk_bytes)
        config = container.configuration(isolation.program, inside, environment(), mounts)
        line = container.command(isolation.program, config, tuple(layout()["links"]))
        together = ["-I", "-S", "-c", container.DIE_TOGETHER, str(os.getpid())]
        return [interpreter(), *together, *line]
    return inside


def _bubblewrap(isolation: Isolation, disk_bytes: int) -> list[str]:
    # As process 1 of its namespace our supervisor is the parent of every orphan, and when it ends
    # the kernel kills all that is left in the namespace.
    line = [isolation.program, "--unshare-all", "--unshare-user", "--die-with-parent", "--as-pid-1"]
    line += ["--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--hostname", "sandbox"]
    for folder in layout()["folders"]:
        line += ["--ro-bind", folder, folder]
    for path, target in layout()["links"]:
        line += ["--symlink", target, path]
    for folder in layout()["hidden"]:
        line += ["--tmpfs", folder, "--remount-ro", folder]
    line += ["--ro-bind", interpreter(), interpreter()]
    for device in layout()["devices"]:
        line += ["--dev-bind", device, device]
    return [*line, "--size", str(disk_bytes), "--tmpfs", SCRATCH, "--remount-ro", "/"]


def _container_mounts(disk_bytes: int) -> list[dict[str, Any]]:
    python = interpreter()
    covered = layout()["hidden"] + [
        path
        for path in ("/sys", "/tmp")  # noqa: S108 - gVisor makes its own otherwise
        if not any(_is_within(folder, path) for folder in layout()["folders"])
    ]
    return [
        container.mount("tmpfs", "tmpfs", "/dev", "mode=755"),
        *(container.mount("bind", path, path, "rbind", "ro") for path in layout()["folders"]),
        *(container.mount("tmpfs", "tmpfs", path, "ro") for path in covered),
        container.mount("bind", python, python, "bind", "ro"),
        container.mount("tmpfs", "tmpfs", SCRATCH, f"size={disk_bytes}", "mode=777", "noexec"),
    ]


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
