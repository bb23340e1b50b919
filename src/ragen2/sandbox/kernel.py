"""Rules that Linux puts on a process which asks for them: Landlock (files) and seccomp (calls).

Used inside the sandbox by the process that is about to run a program, and outside it to learn what
this kernel offers. Needs no package and no privilege, and cannot be undone by the process. The
numbers are those of ``linux/landlock.h``, ``seccomp.h``, ``filter.h``, ``prctl.h``.
"""

from __future__ import annotations

import os
import struct
import sys

from ragen2.sandbox import syscalls

TYPE_CHECKING = False  # importing typing would slow down every start of the sandbox
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_SET_PARENT_DEATH_SIGNAL, _SET_NO_NEW_PRIVS, _SET_CHILD_SUBREAPER = 1, 38, 36

# Landlock access rights, by the version of the interface that brought them.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE, _MAKE_REG = 1, 2, 4, 8, 32, 256
_TRUNCATE = 1 << 14
_ALL_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_ALL_TCP_RIGHTS = 3
_ALL_SCOPES = 3
_RULE_PATH_BENEATH = 1
_READ = _READ_FILE | _READ_DIR
_SCRATCH = _READ | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _TRUNCATE
"""Files only: no folders, links, pipes or sockets, so that a scratch folder is easy to empty."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOTTY, _ENOSYS = 1, 25, 38
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_JUMP_ABOVE, _JUMP_NOT_BELOW = 0x25, 0x35
_OWN_PID = 0x7FFFFFFE
"""Stands for the number of a process that does not exist yet."""
_FIRST_X32_CALL = 0x40000000
_CLONE_THREAD = 0x10000
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
"""Copying descriptors, flags and locks; not F_SETOWN, which can send signals to others."""
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Terminal or not, its size, bytes waiting, blocking or not, close on exec or not."""


def landlock_version() -> int:
    """The version of Landlock that this kernel offers; 0 for none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, int(_libc().syscall(syscalls.LANDLOCK_CREATE, None, 0, 1)))


def has_seccomp() -> bool:
    """Whether this kernel takes filters, on a machine whose call numbers we know."""
    if not sys.platform.startswith("linux") or os.uname().machine not in syscalls.MACHINES:
        return False
    import ctypes

    number = syscalls.special(os.uname().machine)["seccomp"]
    action = ctypes.c_uint32(_ERRNO)
    return int(_libc().syscall(number, 2, 0, ctypes.byref(action))) == 0


def file_rules(version: int, readable: Sequence[str], scratch: str) -> int:
    """A descriptor of rules that leave ``readable`` to be read and ``scratch`` to be written."""
    libc = _libc()
    handled = _ALL_FILE_RIGHTS[max(known for known in _ALL_FILE_RIGHTS if known <= version)]
    fields = [handled]
    if version >= 4:
        fields.append(_ALL_TCP_RIGHTS)
    if version >= 6:
        fields.append(_ALL_SCOPES)
    packed = struct.pack(f"{len(fields)}Q", *fields)
    rules = int(libc.syscall(syscalls.LANDLOCK_CREATE, packed, len(packed), 0))
    if rules < 0:
        raise OSError("Landlock rules cannot be made")
    for path in readable:
        _allow(libc, rules, path, _READ & handled)
    _allow(libc, rules, scratch, _SCRATCH & handled)
    return rules


def die_with_parent(parent: int) -> None:
    """Ask to be killed when process ``parent``, which started this one, ends; end if it has."""
    _libc().prctl(_SET_PARENT_DEATH_SIGNAL, 9, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of any process that a worker leaves behind."""
    _libc().prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def lock(rules: int, call_filter: bytes) -> None:
    """Give up privileges and put ``rules`` (-1: none) and the filter on this process for good."""
    libc = _libc()
    machine = os.uname().machine
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError("no_new_privs was refused")
    if machine in syscalls.MACHINES:
        _drop_capabilities(libc, machine)
    if rules >= 0:
        if libc.syscall(syscalls.LANDLOCK_RESTRICT, rules, 0) != 0:
            raise OSError("Landlock rules were refused")
        os.close(rules)
    if call_filter:
        _install(libc, machine, call_filter.replace(_word(_OWN_PID), _word(os.getpid())))


def make_call_filter() -> bytes:
    """The filter of system calls, as a program in the kernel's packet language."""
    machine = os.uname().machine
    number = syscalls.special(machine)
    parts = [
        _step(_LOAD, 4),
        _step(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, 0),
        _step(_JUMP_NOT_BELOW, _FIRST_X32_CALL, 0, 1),
        _step(_RETURN, _ERRNO | _EPERM),
        *_when(number["clone3"], _step(_RETURN, _ERRNO | _ENOSYS)),
        *_when(number["clone"], _if_argument(0, _JUMP_SET, (_CLONE_THREAD,), _EPERM)),
        *_when(number["kill"], _if_argument(0, _JUMP_EQUAL, (_OWN_PID,), _EPERM)),
        *_when(number["tgkill"], _if_argument(0, _JUMP_EQUAL, (_OWN_PID,), _EPERM)),
        *_when(number["ioctl"], _if_argument(1, _JUMP_EQUAL, _IOCTL, _ENOTTY)),
        *_when(number["fcntl"], _if_argument(1, _JUMP_EQUAL, _FCNTL, _EPERM)),
        *_when(number["prlimit64"], _if_argument(0, _JUMP_EQUAL, (0,), _EPERM)),
        # A datagram pair could otherwise write to any socket by its address.
        *_when(number["sendto"], _if_argument(4, _JUMP_EQUAL, (0,), _EPERM)),
    ]
    for first, last in _ranges(syscalls.allowed(machine)):
        parts += [
            _step(_JUMP_NOT_BELOW, first, 1, 0),
            _step(_RETURN, _ERRNO | _EPERM),
            _step(_JUMP_ABOVE, last, 1, 0),
            _step(_RETURN, _ALLOW),
        ]
    return b"".join([*parts, _step(_RETURN, _ERRNO | _EPERM)])


def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _allow(libc: Any, rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
    rule = struct.pack("=Qi", rights, descriptor)
    refused = libc.syscall(syscalls.LANDLOCK_ADD, rules, _RULE_PATH_BENEATH, rule, 0)
    os.close(descriptor)
    if refused:
        raise OSError(f"Landlock refused a rule for {path}")


def _drop_capabilities(libc: Any, machine: str) -> None:
    header = struct.pack("Ii", 0x20080522, 0)
    nothing = struct.pack("6I", *[0] * 6)
    if libc.syscall(syscalls.special(machine)["capset"], header, nothing) != 0:
        raise OSError("capabilities cannot be dropped")


def _install(libc: Any, machine: str, steps: bytes) -> None:
    import ctypes

    buffer = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(buffer))
    if libc.syscall(syscalls.special(machine)["seccomp"], 1, 0, program) != 0:
        raise OSError("the call filter was refused")


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _word(value: int) -> bytes:
    return struct.pack("I", value)


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, first and last: a filter of runs is short and fast."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def _when(call: int, then: bytes) -> list[bytes]:
    return [_step(_JUMP_EQUAL, call, 0, len(then) // 8), then]


def _if_argument(index: int, test: int, values: Sequence[int], otherwise: int) -> bytes:
    """Allow if the low half of an argument passes ``test`` for one of ``values``, else an error."""
    parts = [_step(_LOAD, 16 + 8 * index)]
    for value in values:
        parts += [_step(test, value, 0, 1), _step(_RETURN, _ALLOW)]
    return b"".join([*parts, _step(_RETURN, _ERRNO | otherwise)])
