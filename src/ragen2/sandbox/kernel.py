"""Rules that Linux puts on a process which asks for them: Landlock (files) and seccomp (calls).

Used inside the sandbox by the process that is about to run a program, and outside it to learn what
this kernel offers. Needs no package and no privilege, and cannot be undone by the process. The
numbers are those of ``linux/landlock.h``, ``seccomp.h``, ``filter.h``, ``prctl.h``.
"""

from __future__ import annotations

import os
import struct
import sys

TYPE_CHECKING = False  # importing typing would slow down every start of the sandbox
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_SET_PARENT_DEATH_SIGNAL, _SET_NO_NEW_PRIVS, _SET_DUMPABLE = 1, 38, 4

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
_AF_UNIX = 1
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
"""Copying descriptors, flags and locks; not F_SETOWN, which can send signals to others."""
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Terminal or not, its size, bytes waiting, blocking or not, close on exec or not."""

# System calls that a program may make: what plain computing needs, and nothing that reaches out.
# Names and numbers are those of ``asm/unistd.h``; each entry reads ``name x86_64 aarch64``, with
# ``-`` where a machine has no such call. Every call that is not listed fails with EPERM: a list of
# what is allowed stays safe when a newer kernel adds calls, a list of what is forbidden does not.
_ALLOWED_CALLS = (
    # reading and writing open files
    "read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, "
    "lseek 8 62, close 3 57, close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24, "
    "pipe 22 -, pipe2 293 59, flock 73 32, fsync 74 82, fdatasync 75 83, ftruncate 77 46, "
    "sendfile 40 71, copy_file_range 326 285, "
    # naming files (the file system rules decide which)
    "open 2 -, openat 257 56, creat 85 -, stat 4 -, fstat 5 80, lstat 6 -, "
    "newfstatat 262 79, statx 332 291, access 21 -, faccessat 269 48, faccessat2 439 439, "
    "readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61, getcwd 79 17, "
    "chdir 80 49, rename 82 -, renameat 264 38, renameat2 316 276, unlink 87 -, "
    "unlinkat 263 35, umask 95 166, "
    # memory
    "mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216, msync 26 227, "
    "mincore 27 232, madvise 28 233, brk 12 214, membarrier 324 283, "
    # waiting
    "poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, "
    "epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, "
    "epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19, nanosleep 35 101, "
    "clock_nanosleep 230 115, pause 34 -, futex 202 98, futex_waitv 449 449, "
    "sched_yield 24 124, wait4 61 260, waitid 247 95, restart_syscall 219 128, "
    # pairs of sockets inside the process (asyncio wakes itself through one)
    "recvfrom 45 207, shutdown 48 210, getsockopt 55 209, "
    # its own signals and timers
    "rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, "
    "rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, alarm 37 -, "
    "getitimer 36 102, setitimer 38 103, "
    # threads and the end
    "set_tid_address 218 96, set_robust_list 273 99, get_robust_list 274 100, rseq 334 293, "
    "exit 60 93, exit_group 231 94, "
    # asking
    "getpid 39 172, getppid 110 173, gettid 186 178, getpgrp 111 -, getpgid 121 155, "
    "getsid 124 156, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, "
    "getgroups 115 158, getresuid 118 148, getresgid 120 150, capget 125 90, uname 63 160, "
    "sysinfo 99 179, times 100 153, getrusage 98 165, getrlimit 97 163, setrlimit 160 164, "
    "gettimeofday 96 169, time 201 -, clock_gettime 228 113, clock_getres 229 114, "
    "sched_getaffinity 204 123, getcpu 309 168, getrandom 318 278"
)
_CHECKED_CALLS = (
    "clone 56 220, clone3 435 435, kill 62 129, tgkill 234 131, ioctl 16 29, fcntl 72 25, "
    "prlimit64 302 261, sendto 44 206, socketpair 53 199"
)
"""Calls that are allowed for some arguments only; ``make_call_filter`` says which."""
_SETUP_CALLS = "seccomp 317 277, capset 126 91"

MACHINES = ("x86_64", "aarch64")
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
"""These three have the same number everywhere."""


def load_libc() -> Any:
    """The C library, through which the kernel is called."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def check(result: int, name: str) -> int:
    """``result`` of a call of the kernel, which must not be negative."""
    if result < 0:
        import ctypes

        raise OSError(f"{name} was refused ({os.strerror(ctypes.get_errno())})")
    return result


def landlock_version() -> int:
    """The version of Landlock that this kernel offers; 0 for none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, int(load_libc().syscall(LANDLOCK_CREATE, None, 0, 1)))


def filters_calls() -> bool:
    """Whether we know this machine's call numbers."""
    return sys.platform.startswith("linux") and os.uname().machine in MACHINES


def file_rules(version: int, readable: Sequence[str], scratch: str) -> int:
    """A descriptor of rules that leave ``readable`` to be read and ``scratch``, if any, to be written.

    All rights that this kernel knows are handled, that is, denied where no rule grants them. A right
    that it does not know must not be named: the kernel then refuses the whole set.
    """
    libc = load_libc()
    handled = _ALL_FILE_RIGHTS[max(known for known in _ALL_FILE_RIGHTS if known <= version)]
    fields = [handled]
    if version >= 4:
        fields.append(_ALL_TCP_RIGHTS)
    if version >= 6:
        fields.append(_ALL_SCOPES)
    packed = struct.pack(f"{len(fields)}Q", *fields)
    rules = check(libc.syscall(LANDLOCK_CREATE, packed, len(packed), 0), "a set of Landlock rules")
    for path in readable:
        _allow(libc, rules, path, _READ & handled)
    if scratch:
        _allow(libc, rules, scratch, _SCRATCH & handled)
    return rules


def die_with_parent(parent: int) -> None:
    """Ask to be killed when process ``parent``, which started this one, ends; end if it has."""
    load_libc().prctl(_SET_PARENT_DEATH_SIGNAL, 9, 0, 0, 0)
    # The parent may have died before the request took effect, and then no signal ever comes.
    if os.getppid() != parent:
        os._exit(1)


def hide_memory() -> None:
    """Keep other processes of this account out of the memory and descriptors of this one and its children.

    A program and the judge of it are such processes.
    """
    check(load_libc().prctl(_SET_DUMPABLE, 0, 0, 0, 0), "hiding memory")


def lock(rules: int, call_filter: bytes) -> None:
    """Give up privileges and put ``rules`` (-1: none) and the filter on this process for good."""
    libc = load_libc()
    machine = os.uname().machine
    # Without it the kernel refuses both kinds of rules to an unprivileged process: a set-user-id
    # program started under a filter could otherwise be made to misbehave with its privileges.
    check(libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if machine in MACHINES:
        _drop_capabilities(libc, machine)
    if rules >= 0:
        check(libc.syscall(LANDLOCK_RESTRICT, rules, 0), "Landlock")
        os.close(rules)
    # Last, as the filter forbids the calls that were needed to get here.
    if call_filter:
        _install(libc, machine, call_filter.replace(_word(_OWN_PID), _word(os.getpid())))


def make_call_filter() -> bytes:
    """The filter of system calls, as a program in the kernel's packet language."""
    machine = os.uname().machine
    number = checked_calls(machine)
    parts = [
        # Numbers mean other calls under another architecture's ABI, and a process can switch
        # between ABIs: i386 on x86-64 (checked by architecture) and x32 (checked by a bit).
        _step(_LOAD, 4),
        _step(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, 0),
        _step(_JUMP_NOT_BELOW, _FIRST_X32_CALL, 0, 1),
        _step(_RETURN, _ERRNO | _EPERM),
        # The arguments of clone3 are behind a pointer, where a filter cannot look; "no such call"
        # makes the C library fall back to clone, whose flags it can see: threads, no processes.
        *_when(number["clone3"], _step(_RETURN, _ERRNO | _ENOSYS)),
        *_when(number["clone"], _if_argument(0, _JUMP_SET, (_CLONE_THREAD,), _EPERM)),
        *_when(number["kill"], _if_argument(0, _JUMP_EQUAL, (_OWN_PID,), _EPERM)),
        *_when(number["tgkill"], _if_argument(0, _JUMP_EQUAL, (_OWN_PID,), _EPERM)),
        *_when(number["ioctl"], _if_argument(1, _JUMP_EQUAL, _IOCTL, _ENOTTY)),
        *_when(number["fcntl"], _if_argument(1, _JUMP_EQUAL, _FCNTL, _EPERM)),
        *_when(number["prlimit64"], _if_argument(0, _JUMP_EQUAL, (0,), _EPERM)),
        # A datagram pair could otherwise write to any socket by its address. The length must be 0: of
        # the address itself, a pointer, only one half would be compared.
        *_when(number["sendto"], _if_argument(5, _JUMP_EQUAL, (0,), _EPERM)),
        *_when(number["socketpair"], _if_argument(0, _JUMP_EQUAL, (_AF_UNIX,), _EPERM)),
    ]
    for first, last in _ranges(allowed_calls(machine)):
        parts += [
            _step(_JUMP_NOT_BELOW, first, 1, 0),
            _step(_RETURN, _ERRNO | _EPERM),
            _step(_JUMP_ABOVE, last, 1, 0),
            _step(_RETURN, _ALLOW),
        ]
    return b"".join([*parts, _step(_RETURN, _ERRNO | _EPERM)])


def allowed_calls(machine: str) -> list[int]:
    """Numbers of the calls a program may always make on ``machine``."""
    return sorted(_numbers(_ALLOWED_CALLS, machine).values())


def checked_calls(machine: str) -> dict[str, int]:
    """Numbers, by name, of the calls whose arguments matter and of those that build the filter."""
    return {**_numbers(_CHECKED_CALLS, machine), **_numbers(_SETUP_CALLS, machine)}


def _allow(libc: Any, rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
    rule = struct.pack("=Qi", rights, descriptor)
    added = libc.syscall(LANDLOCK_ADD, rules, _RULE_PATH_BENEATH, rule, 0)
    os.close(descriptor)
    check(added, f"a Landlock rule for {path}")


def _drop_capabilities(libc: Any, machine: str) -> None:
    header = struct.pack("Ii", 0x20080522, 0)
    nothing = struct.pack("6I", *[0] * 6)
    check(libc.syscall(checked_calls(machine)["capset"], header, nothing), "dropping capabilities")


def _install(libc: Any, machine: str, steps: bytes) -> None:
    import ctypes

    buffer = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(buffer))
    check(libc.syscall(checked_calls(machine)["seccomp"], 1, 0, program), "the call filter")


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


def _numbers(table: str, machine: str) -> dict[str, int]:
    column = 1 + MACHINES.index(machine)
    entries = [entry.split() for entry in table.split(",")]
    return {entry[0]: int(entry[column]) for entry in entries if entry[column] != "-"}
