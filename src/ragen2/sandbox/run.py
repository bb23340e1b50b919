"""Run a program that nobody trusts on a list of tests and bring back what it put out.

A test gives standard input, or asks for values: ``probes`` are Python expressions or (function,
arguments) pairs, evaluated in the program's namespace. Expected answers stay in this process.
"""

from __future__ import annotations

import contextlib
import itertools
import marshal
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ragen2.errors import EnvError
from ragen2.sandbox.child import wall_seconds
from ragen2.sandbox.isolation import (
    INSIDE_SCRATCH,
    Isolation,
    best_isolation,
    command,
    environment,
    library_folders,
    readable_paths,
)
from ragen2.sandbox.read_values import read

Status = Literal[
    "ok", "error", "syntax", "time", "output", "disk", "crash", "forbidden", "unrun", "lost"
]
Probe = str | tuple[str, list[Any]]

_INSIDE = ("kernel", "fence", "write_values", "worker", "child")
"""Our modules that run in the sandbox, each after those it imports."""
_START = (
    "import marshal,os,sys\n"
    "size=int.from_bytes(os.read(0,8),'big')\n"
    "for name,code in marshal.loads(os.read(0,size)):\n"
    "    module=type(sys)(name)\n"
    "    sys.modules[name]=module\n"
    "    exec(code,module.__dict__)\n"
    "    package,_,short=name.rpartition('.')\n"
    "    setattr(sys.modules.setdefault(package,type(sys)(package)),short,module)\n"
    "module.main()\n"
)
"""Runs our modules from standard input: their files are not readable inside the sandbox."""
_GRACE_SECONDS = 10.0
"""For starting, on a busy machine, beyond the time that the program may take."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What a program may use."""

    seconds_per_test: float = 1.0
    """Computing time; on the clock it may take twice that and a second."""
    seconds_per_program: float = 3.0
    """Computing time of all tests together; tests beyond it are not run."""
    memory_mb: int = 512
    output_kb: int = 1024
    disk_kb: int = 4096


@dataclass(frozen=True, slots=True)
class Given:
    """What a program is given: standard input, or expressions to evaluate after it ran."""

    stdin: str = ""
    probes: tuple[Probe, ...] | None = None
    setup: str = ""
    """Python that runs after the program and before the probes."""


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """What a program did with one test. Only ``ok`` comes with an answer to look at."""

    status: Status
    stdout: str = ""
    values: tuple[Any, ...] = ()
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A way of running programs: their limits and their isolation."""

    limits: ResourceLimits = field(default_factory=ResourceLimits)
    isolation: Isolation = field(default_factory=lambda: best_isolation("auto"))

    def run(self, program: str, tests: Sequence[Given], prelude: str = "") -> list[ProgramOutcome]:
        """Run ``program`` afresh on each test. Raises only if the sandbox itself cannot work.

        ``prelude`` is trusted Python, imports as a rule, whose names the program finds defined.
        """
        texts = {"program": program, "prelude": prelude}
        outcomes = self._attempt(texts, tests) or self._attempt(texts, tests)
        if tests and not outcomes and not self.isolation.needs_fence:
            raise EnvError(
                f"the sandbox ended twice before it ran a test ({self.isolation.description}); free "
                'memory or processes, or set isolation = "weak", which needs less of the system'
            )
        missing = (
            outcomes[-1] if outcomes and outcomes[-1].status == "syntax" else ProgramOutcome("lost")
        )
        return outcomes + [missing] * (len(tests) - len(outcomes))

    def run_all(
        self, programs: Iterable[tuple[str, Sequence[Given]]], workers: int = 2
    ) -> list[list[ProgramOutcome]]:
        """Run several programs, each on its own tests, ``workers`` at a time."""
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda pair: self.run(*pair), programs))

    def _attempt(self, texts: dict[str, str], tests: Sequence[Given]) -> list[ProgramOutcome]:
        """The outcomes that one sandbox reports; none when it could not even start."""
        with contextlib.ExitStack() as stack:
            scratch = INSIDE_SCRATCH
            if not self.isolation.is_strong:
                scratch = tempfile.mkdtemp(prefix="ragen2-sandbox-")
                stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            job = stack.enter_context(tempfile.TemporaryFile())
            self._write_job(job, texts, tests, scratch)
            return list(_parse(self._start(job, len(tests))))[: len(tests)]

    def _write_job(
        self, file: BinaryIO, texts: dict[str, str], tests: Sequence[Given], scratch: str
    ) -> None:
        # Files of our own account stay out of reach even where Landlock is missing.
        nobody = not self.isolation.is_strong and _can_become_nobody()
        if nobody:
            os.chmod(scratch, 0o777)  # noqa: S103 - the program's own empty folder
        job = {
            **texts,
            "tests": len(tests),
            "parent": os.getpid(),
            "scratch": scratch,
            "landlock": self.isolation.landlock,
            "seccomp": self.isolation.seccomp,
            "fence": self.isolation.needs_fence,
            "readable": [] if self.isolation.is_strong else list(readable_paths()),
            "become_nobody": nobody,
            "seconds_per_test": self.limits.seconds_per_test,
            "seconds_per_program": self.limits.seconds_per_program,
            "memory_bytes": self.limits.memory_mb << 20,
            "output_bytes": self.limits.output_kb << 10,
            "disk_bytes": self.limits.disk_kb << 10,
        }
        file.write(_framed(_inside_code()) + _framed(marshal.dumps(job)))
        for test in tests:
            file.write(_framed(marshal.dumps(_as_dict(test))))
        file.seek(0)

    def _start(self, job: BinaryIO, num_tests: int) -> bytes:
        """Start the sandbox on ``job`` and read its report until it ends or must be ended."""
        python = ["-S", "-s", "-P", "-B", "-X", "utf8", "-c", _START]
        allowed = wall_seconds(self.limits.seconds_per_program) + _GRACE_SECONDS
        size = num_tests * (3 * (self.limits.output_kb << 10) + 1000)
        with subprocess.Popen(  # noqa: S603 - our own command line
            command(self.isolation, self.limits.disk_kb << 10, python),
            stdin=job,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
        ) as process:
            try:
                return _read_report(process.stdout, time.monotonic() + allowed, size)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)


@lru_cache(maxsize=1)
def _inside_code() -> bytes:
    """Our modules for the inside, compiled once: parsing them each time takes long."""
    here = Path(__file__).parent
    modules = []
    for short in _INSIDE:
        source = (here / f"{short}.py").read_text(encoding="utf-8")
        name = f"{__package__}.{short}"
        modules.append((name, compile(source, f"<sandbox {short}>", "exec", dont_inherit=True)))
    return marshal.dumps(modules)


@lru_cache(maxsize=1)
def _can_become_nobody() -> bool:
    """Whether we are root and a user without rights could still read the interpreter's library."""
    if os.geteuid() != 0:
        return False
    folders = [Path(folder) for folder in library_folders()]
    above = {parent for folder in folders for parent in (folder, *folder.parents)}
    above.add(Path(tempfile.gettempdir()))
    return all(folder.stat().st_mode & 0o001 for folder in above)


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


def _as_dict(test: Given) -> dict[str, Any]:
    if test.probes is None:
        return {"stdin": test.stdin.encode("utf-8", "surrogatepass")}
    return {"probes": list(test.probes), "setup": test.setup}


def _read_report(pipe: Any, deadline: float, max_bytes: int) -> bytes:
    chunks = []
    size = 0
    while size <= max_bytes:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            break
        chunk = os.read(pipe.fileno(), 1 << 16)
        if not chunk:
            break
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _parse(report: bytes) -> Iterable[ProgramOutcome]:
    """Outcomes in order, up to the first that did not arrive whole."""
    start = 0
    while (end := report.find(b"\n", start)) >= 0:
        status, milliseconds, *sizes = report[start:end].decode().split()
        bounds = [end + 1]
        for size in sizes:
            bounds.append(bounds[-1] + int(size))
        if bounds[-1] > len(report):
            return
        output, value, error = (report[a:b] for a, b in itertools.pairwise(bounds))
        yield _outcome(status, int(milliseconds) / 1000, output, value, error)
        start = bounds[-1]


def _outcome(
    status: Any, seconds: float, output: bytes, value: bytes, error: bytes
) -> ProgramOutcome:
    """Read one report; what the program wrote where a value should be counts as its error.

    The program may have taken over its worker and written the value itself. That forges nothing: a
    value is only ever compared with the expected answer, which the program does not know.
    """
    stdout = output.decode("utf-8", "replace")
    if status == "ok" and value:
        try:
            values = tuple(read(value))
        except (ValueError, TypeError) as problem:
            return ProgramOutcome("error", stdout, error=str(problem)[:200], seconds=seconds)
        return ProgramOutcome("ok", stdout, values, seconds=seconds)
    text = value if status in ("error", "syntax") else error
    message = text.decode("utf-8", "replace")[:500] if status != "ok" else ""
    return ProgramOutcome(status, stdout, error=message, seconds=seconds)
