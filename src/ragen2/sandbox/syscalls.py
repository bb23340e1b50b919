"""The system calls a program may make: what plain computing needs, and nothing that reaches out.

Names and numbers are the kernel's (``asm/unistd.h``); each entry reads ``name x86_64 aarch64``,
with ``-`` where a machine has no such call. Everything else fails with "not permitted".
"""

from __future__ import annotations

_ALLOWED = (
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
    "unlinkat 263 35, statfs 137 43, fstatfs 138 44, umask 95 166, "
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
    "socketpair 53 199, recvfrom 45 207, shutdown 48 210, setsockopt 54 208, "
    "getsockopt 55 209, "
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
_CHECKED = (
    "clone 56 220, clone3 435 435, kill 62 129, tgkill 234 131, ioctl 16 29, fcntl 72 25, "
    "prlimit64 302 261, sendto 44 206"
)
"""Calls that are allowed for some arguments only; ``kernel`` knows which."""
_SETTING_UP = "seccomp 317 277, capset 126 91"

MACHINES = ("x86_64", "aarch64")
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
"""These three have the same number everywhere."""


def allowed(machine: str) -> list[int]:
    """Numbers of the calls a program may always make on ``machine``."""
    return sorted(_numbers(_ALLOWED, machine).values())


def special(machine: str) -> dict[str, int]:
    """Numbers, by name, of the calls whose arguments matter and of those that build the filter."""
    return {**_numbers(_CHECKED, machine), **_numbers(_SETTING_UP, machine)}


def _numbers(table: str, machine: str) -> dict[str, int]:
    column = 1 + MACHINES.index(machine)
    entries = [entry.split() for entry in table.split(",")]
    return {entry[0]: int(entry[column]) for entry in entries if entry[column] != "-"}
