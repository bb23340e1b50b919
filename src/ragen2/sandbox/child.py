"""The program inside the sandbox: one fresh worker for every test, and a report of what it put out.

This supervisor never runs the program itself: it forks a worker for each test, the worker locks
itself up and runs the program on that test's input, and the supervisor watches the clock. What
comes back is what the program printed or returned, never a verdict: no expected answer is ever in
here, so a program that takes over its worker can at best choose its own output. It is started
thousands of times, so it imports little.

Job on descriptor 0: length-prefixed marshalled dicts, the job and then the tests, each read only
when its turn comes. Report on descriptor 1: for each test a line ``status milliseconds`` and three
sizes, then that many bytes of standard output, of value and of error text.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
import time

from ragen2.sandbox import fence, kernel
from ragen2.sandbox.worker import VALUE_FD, work

TYPE_CHECKING = False  # importing typing would slow down every start of the sandbox
if TYPE_CHECKING:
    from typing import Any

TICK_MS = 20
MAX_FILES = 64
MAX_SWEEPS = 100
MAX_ERROR_BYTES = 2000


def main() -> None:
    """Run every test of the job, or as many as its time allows, and report on each."""
    job = receive(0)
    report = os.dup(1)
    if sys.platform.startswith("linux"):
        # In its own namespace it has no parent that it can see; bubblewrap then does the same.
        kernel.die_with_parent(job["parent"] if os.getpid() != 1 else 0)
        if not job["seccomp"] and os.getpid() != 1:
            kernel.adopt_orphans()
    job["filter"] = kernel.make_call_filter() if job["seccomp"] else b""
    job["rules"] = -1
    if job["landlock"]:
        job["rules"] = kernel.file_rules(job["landlock"], job["readable"], job["scratch"])
    exec(job["prelude"], {})  # noqa: S102 - our own text; its modules are then loaded once for all
    left = job["seconds_per_program"]
    deadline = time.monotonic() + wall_seconds(left)
    for _ in range(job["tests"]):
        test = receive(0)
        job["cpu_seconds"] = min(left, job["seconds_per_test"])
        job["wall_seconds"] = min(
            deadline - time.monotonic(), wall_seconds(job["seconds_per_test"])
        )
        if left <= 0 or job["wall_seconds"] <= 0:
            send(report, "unrun", 0.0, (b"", b"", b""))
            continue
        status, seconds, outputs = run_test(job, test)
        send(report, status, seconds, outputs)
        left -= seconds
        if status == "syntax":
            break


def wall_seconds(seconds: float) -> float:
    """How long ``seconds`` of computing may last: a busy machine gives a program half its time."""
    return 2 * seconds + 1


def receive(descriptor: int) -> Any:
    """The next object of the job."""
    size = int.from_bytes(os.read(descriptor, 8), "big")
    return marshal.loads(os.read(descriptor, size))  # noqa: S302 - written by our own process


def send(report: int, status: str, seconds: float, outputs: tuple[bytes, bytes, bytes]) -> None:
    """Write one test's outcome, whole."""
    sizes = " ".join(str(len(output)) for output in outputs)
    data = f"{status} {round(1000 * seconds)} {sizes}\n".encode() + b"".join(outputs)
    while data:
        data = data[os.write(report, data) :]


def run_test(job: Any, test: Any) -> tuple[str, float, tuple[bytes, bytes, bytes]]:
    """Fork a worker for one test and watch it to its end."""
    job["supervisor"] = os.getpid()
    given = _input_file(job["scratch"], test.get("stdin", b""))
    pipes = [os.pipe() for _ in range(3)]
    pid = os.fork()
    if pid == 0:
        try:
            _become_worker(given, [writer for _, writer in pipes])
            work(job, test)
        finally:
            os._exit(1)
    os.close(given)
    for _, writer in pipes:
        os.close(writer)
    monitor = WorkerMonitor(pid, [reader for reader, _ in pipes], job)
    status, seconds = monitor.to_the_end()
    _sweep(job)
    output, value, error = monitor.outputs()
    return _status(status, value), seconds, (output, value[1:], error)


class WorkerMonitor:
    """One worker, its output so far, and the limits it must keep."""

    def __init__(self, pid: int, readers: list[int], job: Any) -> None:
        self.pid = pid
        self.job = job
        self.chunks: dict[int, list[bytes]] = {reader: [] for reader in readers}
        self.sizes = dict.fromkeys(readers, 0)
        self.started = time.monotonic()
        self.poll = select.poll()
        self.open = set(readers)
        for reader in readers:
            self.poll.register(reader, select.POLLIN | select.POLLHUP)

    def to_the_end(self) -> tuple[str, float]:
        """Read until the worker ends or breaks a limit; say how, and how long it computed."""
        broken = ""
        while not broken:
            ready = self.poll.poll(TICK_MS) if self.open else []
            for reader, _ in ready:
                self._read(reader)
            pid, code, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self._drain()
                return self._ending(code), usage.ru_utime + usage.ru_stime
            if not self.open:
                time.sleep(0.001)
            broken = self._broken_limit()
        os.kill(self.pid, 9)
        _, _, usage = os.wait4(self.pid, 0)
        self._drain()
        return broken, usage.ru_utime + usage.ru_stime

    def outputs(self) -> tuple[bytes, bytes, bytes]:
        """Standard output, value and the start of the error text."""
        output, error, value = (b"".join(chunks) for chunks in self.chunks.values())
        return output, value, error[:MAX_ERROR_BYTES]

    def _read(self, reader: int) -> int:
        data = os.read(reader, 1 << 16)
        if not data:
            self.poll.unregister(reader)
            self.open.discard(reader)
            os.close(reader)
        self.sizes[reader] += len(data)
        if self.sizes[reader] <= self.job["output_bytes"]:
            self.chunks[reader].append(data)
        return len(data)

    def _drain(self) -> None:
        """Take what is still in the pipes; a stray process that keeps one open must not stop us."""
        for reader in list(self.open):
            os.set_blocking(reader, False)
            try:
                while reader in self.open and self.sizes[reader] <= self.job["output_bytes"]:
                    self._read(reader)
            except BlockingIOError:
                pass
            if reader in self.open:
                os.close(reader)

    def _ending(self, code: int) -> str:
        if self.sizes and max(self.sizes.values()) > self.job["output_bytes"]:
            return "output"
        if os.WIFSIGNALED(code):
            return "time" if os.WTERMSIG(code) == 24 else "crash"  # 24: SIGXCPU
        return "forbidden" if os.WEXITSTATUS(code) == fence.EXIT_STATUS else "ok"

    def _broken_limit(self) -> str:
        if max(self.sizes.values()) > self.job["output_bytes"]:
            return "output"
        waited = time.monotonic() - self.started
        if waited > self.job["wall_seconds"] or self._computed() > self.job["cpu_seconds"]:
            return "time"
        return "disk" if _is_full(self.job["scratch"], self.job["disk_bytes"]) else ""

    def _computed(self) -> float:
        """Seconds of computing so far; elsewhere than on Linux the worker's own limit rules."""
        if not sys.platform.startswith("linux"):
            return 0.0
        try:
            # The kernel's number for another process's CPU clock (MAKE_PROCESS_CPUCLOCK, CPUCLOCK_SCHED).
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0


def _status(status: str, value: bytes) -> str:
    """What the worker said of its end, unless it was ended."""
    if status != "ok":
        return status
    return {b"s": "syntax", b"e": "error"}.get(value[:1], "ok")


def _input_file(scratch: str, data: bytes) -> int:
    # A file without a name, not a pipe: a program that never reads cannot block us, and cannot
    # find the input of another test.
    path = f"{scratch}/.input"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, 0)
    return descriptor


def _become_worker(given: int, writers: list[int]) -> None:
    output, error, value = writers
    os.dup2(given, 0)
    os.dup2(value, VALUE_FD)
    os.dup2(output, 1)
    os.dup2(error, 2)


def _is_full(scratch: str, disk_bytes: int) -> bool:
    """Whether the scratch folder holds too much."""
    total = files = 0
    try:
        with os.scandir(scratch) as entries:
            for entry in entries:
                files += 1
                total += entry.stat(follow_symlinks=False).st_size
                if files > MAX_FILES or total > disk_bytes:
                    return True
    except OSError:
        return False
    return False


def _sweep(job: Any) -> None:
    """End what the worker left running and empty the scratch folder."""
    if os.getpid() == 1:
        _kill(-1)
    elif not job["seccomp"] and sys.platform.startswith("linux"):
        for _ in range(MAX_SWEEPS):
            for pid in _children():
                _kill(pid)
            _reap()
            if not _children():
                break
    _reap()
    for name in os.listdir(job["scratch"]):
        try:
            os.unlink(f"{job['scratch']}/{name}")
        except OSError:  # a folder, made where nothing forbids it: it goes with the scratch folder
            continue


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except OSError:
        return


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _children() -> list[int]:
    """Processes whose parent we are, orphans that we adopted among them."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid() and fields[0] != "Z":
                found.append(int(name))
    return found
