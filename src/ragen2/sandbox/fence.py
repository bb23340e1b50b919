"""A fence for systems without kernel rules: the interpreter reports what a program is about to do.

Python calls an audit hook before it opens a file, starts a process, makes a socket or loads foreign
code. The hook here ends the process at the first forbidden act. It stops what plain Python code can
do, but it is part of the process that it guards; only the kernel's rules cannot be got around.
"""

from __future__ import annotations

import posix
import sys

TYPE_CHECKING = False  # importing typing would slow down every start of the sandbox
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

EXIT_STATUS = 86
"""How a process ends that touched the fence."""

FORBIDDEN_EVENTS = frozenset(
    (
        "ctypes.addressof",
        "ctypes.call_function",
        "ctypes.cdata",
        "ctypes.cdata/buffer",
        "ctypes.dlopen",
        "ctypes.dlsym",
        "ctypes.string_at",
        "ctypes.PyObj_FromPtr",
        "fcntl.fcntl",
        "fcntl.ioctl",
        "gc.get_objects",
        "gc.get_referents",
        "gc.get_referrers",
        "os.chdir",
        "os.chmod",
        "os.chown",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.kill",
        "os.killpg",
        "os.link",
        "os.mkdir",
        "os.posix_spawn",
        "os.rmdir",
        "os.setxattr",
        "os.spawn",
        "os.symlink",
        "os.system",
        "os.truncate",
        "os.utime",
        "pty.spawn",
        "resource.prlimit",
        "signal.pthread_kill",
        "socket.__new__",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.sendto",
        "subprocess.Popen",
        "sys._current_frames",
        "syslog.syslog",
    )
)
_FORBIDDEN_MODULES = frozenset(("_ctypes", "ctypes", "_posixsubprocess", "_socket"))
_PATH_EVENTS = frozenset(("open", "os.listdir", "os.scandir", "os.remove", "os.rename"))
_WRITE_FLAGS = posix.O_WRONLY | posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC | posix.O_APPEND


_UNREPORTED = (
    *("chroot", "memfd_create", "mkfifo", "mknod", "pidfd_open", "pidfd_send_signal", "sendfile"),
    *("setns", "setpgid", "setpgrp", "setsid", "splice", "sync", "unshare"),
)
"""Functions that Python does not report before it calls them."""


def raise_fence(readable: Sequence[str], scratch: str) -> None:
    """Forbid this process all but reading below ``readable`` and working in ``scratch``."""
    # A module that is loaded already would be handed out again without an "import" event.
    for name in list(sys.modules):
        if name.partition(".")[0] in _FORBIDDEN_MODULES:
            del sys.modules[name]
    for name in ("posix", "os", "_signal", "signal"):
        for function in _UNREPORTED:
            vars(sys.modules.get(name, sys)).pop(function, None)
    sys.addaudithook(_hook(tuple(readable), scratch))


def _hook(readable: tuple[str, ...], scratch: str) -> Callable[[str, tuple[Any, ...]], None]:
    """The hook, with everything it uses bound here: the program can change any module's names."""
    events, modules, path_events = FORBIDDEN_EVENTS, _FORBIDDEN_MODULES, _PATH_EVENTS
    write_flags, leave, status, within = _WRITE_FLAGS, posix._exit, EXIT_STATUS, _within
    readable = (*readable, scratch)

    def is_forbidden(event: str, arguments: tuple[Any, ...]) -> bool:
        if event in events:
            return True
        if event == "import":
            return arguments[0] in modules
        if event not in path_events:
            return False
        path = arguments[0]
        writes = event in ("os.remove", "os.rename") or (
            event == "open" and bool((arguments[2] or 0) & write_flags)
        )
        allowed = (scratch,) if writes else readable
        return not within(path, allowed, scratch) or (
            event == "os.rename" and not within(arguments[1], allowed, scratch)
        )

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        try:
            forbidden = is_forbidden(event, arguments)
        except BaseException:  # noqa: BLE001 - whatever goes wrong, the fence stays up
            forbidden = True
        if forbidden:
            leave(status)

    return hook


def _within(path: Any, folders: tuple[str, ...], here: str) -> bool:
    """Whether ``path``, taken from the folder ``here``, lies in one of ``folders``."""
    if path is None or type(path) is int:
        return True
    if type(path) is bytes:
        path = path.decode("utf-8", "surrogateescape")
    if type(path) is not str:
        return False
    parts: list[str] = []
    for part in (path if path[:1] == "/" else f"{here}/{path}").split("/"):
        if part == "..":
            parts[-1:] = []
        elif part not in ("", "."):
            parts.append(part)
    whole = "/" + "/".join(parts)
    return any(whole == folder or whole.startswith(folder + "/") for folder in folders)
