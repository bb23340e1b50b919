"""A file system of the sandbox's own: the interpreter's library, a few devices, one scratch folder.

What is not in it cannot be opened, written, or even seen to exist. Works for root and wherever
a user may make namespaces; numbers are those of ``linux/sched.h``, ``linux/mount.h``, ``asm/unistd.h``.
"""

from __future__ import annotations

import os

from ragen2.sandbox import kernel

TYPE_CHECKING = False  # importing typing would slow down every start of the sandbox
if TYPE_CHECKING:
    from typing import Any

_NEW_MOUNTS, _NEW_USERS = 0x20000, 0x10000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC = 1, 2, 4, 8
_REMOUNT, _BIND, _RECURSIVE, _SLAVE = 32, 4096, 16384, 1 << 19
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_ANY_FOLDER = "/tmp"  # noqa: S108 - covered in our own view only, nothing is written to it
_OLD, _EMPTY = "/old", "/empty"


def enter(layout: Any, scratch: str, disk_bytes: int, max_files: int) -> bool:
    """Leave the machine's files for those of ``layout``; says if we are still among its users.

    If so, root can still become another user; if not, one user is all there is.
    """
    libc = kernel.load_libc()
    keeps_users = _leave(libc)
    # Nothing that is mounted from here on may show in the view that we came from.
    _mount(libc, "none", "/", "", _RECURSIVE | _SLAVE)
    _mount(libc, "tmpfs", _ANY_FOLDER, "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755")
    os.mkdir(_ANY_FOLDER + _OLD)
    number = _PIVOT_ROOT[os.uname().machine]
    new, old = _ANY_FOLDER.encode(), (_ANY_FOLDER + _OLD).encode()
    kernel.check(libc.syscall(number, new, old), "pivot_root")
    os.chdir("/")
    _furnish(libc, layout)
    os.mkdir(scratch)
    bounds = f"mode=777,size={disk_bytes},nr_inodes={max_files + 2}"
    _mount(libc, "tmpfs", scratch, "tmpfs", _NO_SUID | _NO_DEVICES | _NO_EXEC, bounds)
    kernel.check(libc.umount2(_OLD.encode(), _DETACH), "umount2")
    os.rmdir(_OLD)
    _mount(libc, "none", "/", "", _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEVICES)
    return keeps_users


def _leave(libc: Any) -> bool:
    """Get a view of the mounts that is ours to change."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_MOUNTS) == 0:
        return True
    kernel.check(libc.unshare(_NEW_MOUNTS | _NEW_USERS), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    return False


def _furnish(libc: Any, layout: Any) -> None:
    os.mkdir(_EMPTY)
    for folder in layout["folders"]:
        os.makedirs(folder)
        _mount(libc, _OLD + folder, folder, "", _BIND | _RECURSIVE)
    for folder in layout["hidden"]:
        _mount(libc, _EMPTY, folder, "", _BIND)
    for path, target in layout["links"]:
        os.symlink(target, path)
    os.mkdir("/dev")
    for device in layout["devices"]:
        os.close(os.open(device, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        _mount(libc, _OLD + device, device, "", _BIND)


def _mount(libc: Any, source: str, target: str, kind: str, flags: int, bounds: str = "") -> None:
    texts = [text.encode() for text in (source, target, kind, bounds)]
    result = libc.mount(texts[0], texts[1], texts[2], flags, texts[3])
    kernel.check(result, f"mount on {target}")
