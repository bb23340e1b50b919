"""The program inside the sandbox: one fresh worker for every test, and a report of what it put out.

This supervisor never runs the program itself: it forks a worker for each test, the worker locks
itself up and runs the program on that test's input, and the supervisor watches the clock. What
comes back is what the program printed or returned: no expected answer is ever in here, so a program
that takes over its worker can at best choose its own output. Tests that are Python of their own run in
a second worker, the judge's, locked up like the first. This file is started thousands of times, so it
imports little.

Job on descriptor 0: length-prefixed marshalled dicts, the job and then the tests, each read only
when its turn comes, a check's text only by its judge. Report on descriptor 1: for each test a line
``status milliseconds`` and three sizes, then that many bytes of standard output, of value and of error text.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
import time

from ragen2.sandbox import kernel, mounts
from ragen2.sandbox.worker import READY, VALUE_FD, reason, work

TYPE_CHECKING = False  # importing typing would slow down every start of the sandbox
if TYPE_CHECKING:
    from typing import Any

TICK_MS = 20
MAX_FILES = 64
MAX_ERROR_BYTES = 2000


def main() -> None:
    """Run every test of the job, or as many as its time allows, and report on each."""
    report = os.dup(1)
    try:
        _make_seekable(0)
        job = receive(0)
        job["report"] = report
        _set_up(job)
        _run_tests(job)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not the program's fault
        send(report, "setup", 0.0, (b"", b"", reason(error)))


def _make_seekable(descriptor: int) -> None:
    """Put a file in the place of a pipe, which some container runtimes make of standard input.

    The kernel copies: texts that only judges may read do not pass through this process.
    """
    try:
        os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:
        copy = os.memfd_create("job")
        while os.splice(descriptor, copy, 1 << 20):
            pass
        os.lseek(copy, 0, os.SEEK_SET)
        os.dup2(copy, descriptor)
        os.close(copy)


def _set_up(job: Any) -> None:
    """Put up what is common to all workers; each of them then locks itself up."""
    job["filter"], job["rules"] = b"", -1
    if sys.platform.startswith("linux"):
        # In its own namespace it has no parent that it can see.
        kernel.die_with_parent(job["parent"] if os.getpid() != 1 else 0)
        kernel.hide_memory()
    if job["wall"] == "none":
        return
    if not kernel.filters_calls():
        raise OSError("system calls can be filtered on Linux on x86-64 and ARM64 only")
    job["filter"] = kernel.make_call_filter()
    if job["wall"] == "landlock" and job["scratch"]:
        bounds = job["scratch"], job["disk_bytes"], MAX_FILES
        job["become_nobody"] = mounts.enter(job["layout"], *bounds) and os.getuid() == 0
    if version := kernel.landlock_version():
        job["rules"] = kernel.file_rules(version, job["readable"], job["scratch"])
    elif job["wall"] == "landlock" or os.path.exists("/proc/self"):
        raise OSError("this kernel has no Landlock (Linux 5.13 or later can have it)")


def _run_tests(job: Any) -> None:
    for text in (job["prelude"], job["preload"]):
        exec(text, {})  # noqa: S102 - our own text; its modules are then loaded once for all
    left = job["seconds_per_program"]
    deadline = time.monotonic() + wall_seconds(left)
    for _ in range(job["tests"]):
        test = receive(0)
        if "check" in test:
            test["check"] = skip(0)
        job["cpu_seconds"] = min(left, job["seconds_per_test"])
        job["wall_seconds"] = min(
            deadline - time.monotonic(), wall_seconds(job["seconds_per_test"])
        )
        if left <= 0 or job["wall_seconds"] <= 0:
            send(job["report"], "unrun", 0.0, (b"", b"", b""))
            continue
        status, seconds, outputs = run_test(job, test)
        send(job["report"], status, seconds, outputs)
        left -= seconds
        if status in ("syntax", "setup"):
            break


def wall_seconds(seconds: float) -> float:
    """How long ``seconds`` of computing may last: a busy machine gives a program half its time."""
    return 2 * seconds + 1


def receive(descriptor: int) -> Any:
    """The next object of the job."""
    size = int.from_bytes(os.read(descriptor, 8), "big")
    return marshal.loads(os.read(descriptor, size))  # noqa: S302 - written by our own process


def skip(descriptor: int) -> tuple[int, int]:
    """Where the next object of the job is, and its size; it is left for another process to read."""
    size = int.from_bytes(os.read(descriptor, 8), "big")
    return os.lseek(descriptor, size, os.SEEK_CUR) - size, size


def send(report: int, status: str, seconds: float, outputs: tuple[bytes, bytes, bytes]) -> None:
    """Write one test's outcome, whole."""
    sizes = " ".join(str(len(output)) for output in outputs)
    data = f"{status} {round(1000 * seconds)} {sizes}\n".encode() + b"".join(outputs)
    while data:
        data = data[os.write(report, data) :]


def run_test(job: Any, test: Any) -> tuple[str, float, tuple[bytes, bytes, bytes]]:
    """Run one test to its end: what became of it, the seconds computed, and what it put out."""
    job["supervisor"] = os.getpid()
    if "check" in test:
        status, seconds, outputs = _judge(job, test["check"])
    else:
        worker = WorkerMonitor(job, test)
        watch(worker)
        status, seconds, outputs = worker.report()
    _empty(job["scratch"])
    return status, seconds, outputs


def _judge(job: Any, check: tuple[int, int]) -> tuple[str, float, tuple[bytes, bytes, bytes]]:
    """Run a test that is Python of its own: the program in one worker, the test in another.

    The test's text is read by the judge's worker alone. Neither the program's worker nor this process, from
    which the next one will be forked, ever holds it.
    """
    questions, answers = os.pipe(), os.pipe()
    program = WorkerMonitor(job, {"channel": (questions[0], answers[1])})
    judge = WorkerMonitor(job, {"channel": (answers[0], questions[1]), "check": check})
    for descriptor in (*questions, *answers):
        os.close(descriptor)
    watch(judge, program)
    status, _, (_, value, error) = judge.report()
    ending, seconds, outputs = program.report()
    if "setup" in (status, ending):
        return "setup", seconds, (b"", b"", error or outputs[2])
    if (status, judge.letter) == ("ok", b"p"):
        return "ok", seconds, (outputs[0], b"true", b"")
    if ending != "ok":
        return ending, seconds, outputs
    if (status, judge.letter) == ("ok", b"f"):
        return "ok", seconds, (outputs[0], b"false", b"")
    return status, seconds, (outputs[0], value, error)


def watch(worker: WorkerMonitor, *beside: WorkerMonitor) -> None:
    """Read what workers put out until the first of them ends; none outlives it, or its own limits."""
    workers = (worker, *beside)
    while worker.ending is None:
        owners = {reader: one for one in workers for reader in one.open}
        poll = select.poll()
        for reader in owners:
            poll.register(reader, select.POLLIN | select.POLLHUP)
        poll.register(worker.job["report"], 0)
        for reader, _ in poll.poll(TICK_MS if worker.open else 1):
            if reader == worker.job["report"]:  # nobody is left to read it
                os._exit(1)
            owners[reader].read(reader)
        for one in workers:
            one.look()
    for one in beside:
        one.stopped = one.ending is None
        one.stop()


class WorkerMonitor:
    """One worker, its output so far, and the limits it must keep."""

    def __init__(self, job: Any, test: Any) -> None:
        self.job = job
        self.started = time.monotonic()
        self.ending: str | None = None
        self.letter = b""
        self.stopped = False
        self.seconds = 0.0
        given = _input_file(test.get("stdin", b""))
        pipes = [os.pipe() for _ in range(3)]
        self.pid = os.fork()
        if self.pid == 0:
            try:
                if "check" in test:
                    offset, size = test["check"]
                    test["check"] = marshal.loads(os.pread(0, size, offset))  # noqa: S302 - our own
                _become_worker(given, [writer for _, writer in pipes])
                work(job, test)
            finally:
                os._exit(1)
        os.close(given)
        for _, writer in pipes:
            os.close(writer)
        self.open = {reader for reader, _ in pipes}
        self.chunks: dict[int, list[bytes]] = {reader: [] for reader, _ in pipes}
        self.sizes = dict.fromkeys(self.chunks, 0)

    def look(self) -> None:
        """See whether the worker has ended, and end it where it broke a limit."""
        if self.ending is not None:
            return
        pid, code, usage = os.wait4(self.pid, os.WNOHANG)
        if pid:
            self._end(self._ending(code), usage)
        elif broken := self._broken_limit():
            self.stop(broken)

    def stop(self, ending: str = "ok") -> None:
        """End the worker, unless it has ended."""
        if self.ending is None:
            os.kill(self.pid, 9)
            self._end(ending, os.wait4(self.pid, 0)[2])

    def report(self) -> tuple[str, float, tuple[bytes, bytes, bytes]]:
        """How it ended, the seconds it computed, standard output, value and start of the error text."""
        output, error, value = (b"".join(chunks) for chunks in self.chunks.values())
        ending = self.ending or "crash"
        if value[:1] != READY and not self.stopped:
            return "setup", self.seconds, (b"", b"", value[1:] or f"ended by {ending}".encode())
        self.letter = value[1:2]
        outputs = output, value[2:], error[:MAX_ERROR_BYTES]
        return _status(ending, self.letter), self.seconds, outputs

    def read(self, reader: int) -> None:
        """Take what is there; nothing is there for good once the worker has closed it."""
        data = os.read(reader, 1 << 16)
        if not data:
            self.open.discard(reader)
            os.close(reader)
        self.sizes[reader] += len(data)
        if self.sizes[reader] <= self.job["output_bytes"]:
            self.chunks[reader].append(data)

    def _end(self, ending: str, usage: Any) -> None:
        self._drain()
        self.ending = ending
        self.seconds = usage.ru_utime + usage.ru_stime

    def _drain(self) -> None:
        """Take what is still in the pipes; a stray process that keeps one open must not stop us."""
        for reader in list(self.open):
            os.set_blocking(reader, False)
            try:
                while reader in self.open and self.sizes[reader] <= self.job["output_bytes"]:
                    self.read(reader)
            except BlockingIOError:
                pass
            if reader in self.open:
                self.open.discard(reader)
                os.close(reader)

    def _ending(self, code: int) -> str:
        if self.sizes and max(self.sizes.values()) > self.job["output_bytes"]:
            return "output"
        if os.WIFSIGNALED(code):
            return "time" if os.WTERMSIG(code) == 24 else "crash"  # 24: SIGXCPU
        return "ok"

    def _broken_limit(self) -> str:
        if max(self.sizes.values()) > self.job["output_bytes"]:
            return "output"
        waited = time.monotonic() - self.started
        if waited > self.job["wall_seconds"] or self._computed() > self.job["cpu_seconds"]:
            return "time"
        return "disk" if _is_full(self.job["scratch"]) else ""

    def _computed(self) -> float:
        """Seconds of computing so far; elsewhere than on Linux the worker's own limit rules."""
        if not sys.platform.startswith("linux"):
            return 0.0
        try:
            # The kernel's number for another process's CPU clock (MAKE_PROCESS_CPUCLOCK, CPUCLOCK_SCHED).
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0


def _status(status: str, letter: bytes) -> str:
    """What the worker said of its end, unless it was ended."""
    if status != "ok":
        return status
    return {b"s": "syntax", b"e": "error"}.get(letter, "ok")


def _input_file(data: bytes) -> int:
    # A file without a name, not a pipe: a program that never reads cannot block us, and cannot
    # find the input of another test.
    if sys.platform.startswith("linux"):
        descriptor = os.memfd_create("input")
    else:
        import tempfile

        descriptor, path = tempfile.mkstemp()
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


def _is_full(scratch: str) -> bool:
    """Whether the scratch folder holds too many files; their size is bounded by the kernel."""
    return bool(scratch) and len(os.listdir(scratch)) > MAX_FILES


def _empty(scratch: str) -> None:
    """Remove the files of the last test; the filter of calls lets no program make folders."""
    for name in os.listdir(scratch) if scratch else ():
        os.unlink(f"{scratch}/{name}")
