"""Run a program that nobody trusts on a list of tests and bring back what it put out.

A test gives standard input, calls a function, or is Python of its own that calls the program from another
process. Expected answers never enter the program's process.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import marshal
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ragen2.errors import GradingError
from ragen2.sandbox.child import wall_seconds
from ragen2.sandbox.isolation import (
    DEVICES,
    SCRATCH,
    Demand,
    Isolation,
    candidates,
    command,
    environment,
    layout,
    library_folders,
    readable_paths,
)
from ragen2.sandbox.read_values import read

Status = Literal["ok", "error", "syntax", "time", "output", "disk", "crash", "unrun", "setup"]
"""``setup``: the sandbox failed, not the program; no outcome has it, it is raised."""

_INSIDE = ("kernel", "mounts", "write_values", "revive", "remote", "judge", "worker", "child")
"""Our modules that run in the sandbox, each after those it imports."""
_FOR_CHECKS = ("revive", "remote", "judge")
"""Those that only checks need."""
_START = (
    "import builtins,marshal,os,sys\n"
    "data,size=b'',int.from_bytes(os.read(0,8),'big')\n"
    "while len(data)<size:\n"
    "    data+=os.read(0,size-len(data))\n"
    "for name,code in marshal.loads(data):\n"
    "    module=type(sys)(name)\n"
    "    sys.modules[name]=module\n"
    "    module.__builtins__=vars(builtins).copy()\n"
    "    exec(code,module.__dict__)\n"
    "    package,_,short=name.rpartition('.')\n"
    "    setattr(sys.modules.setdefault(package,type(sys)(package)),short,module)\n"
    "module.main()\n"
)
"""Runs our modules from standard input: their files are not readable inside the sandbox. They have built-in
functions of their own: a program may rebind its ``len`` without breaking ours."""
ALLOW_UNSAFE = "RAGEN2_ALLOW_UNSAFE_CODE"
"""Environment variable by which the user allows programs to run where there is no wall."""
_CURE = (
    "install bubblewrap (apt-get install bubblewrap) and allow user namespaces, or use Linux 5.13 or "
    'later with Landlock where mounts are allowed, or a container runtime (isolation = "container": '
    "gVisor's runsc, crun or runc); at your own risk, "
    f"{ALLOW_UNSAFE}=1 in the environment runs programs without"
)
_ATTEMPTS = 2
_MAX_SAID = 10_000
_log = logging.getLogger(__name__)
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
class Check:
    """A test that is Python of its own. It ends without an error if the program passes.

    It imports the program as a module and runs in a process without it: what it calls is called over there,
    and results come as plain data. Python's own comparisons are then all that decides.
    """

    source: str
    module: str = "program"
    """The name under which ``source`` imports the program."""
    classes: frozenset[str] = frozenset()
    """Classes of the program whose objects are no plain data to the test, whatever they are made of."""
    attributes: frozenset[str] = frozenset()
    """Attributes and methods of the program's objects that the test may use."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a program is given: standard input, or a function's name and arguments, or a check."""

    stdin: str = ""
    call: tuple[str, list[Any]] | None = None
    check: Check | None = None


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """What a program did with one test. Only ``ok`` comes with an answer to look at."""

    status: Status
    stdout: str = ""
    value: Any = None
    """What the function returned; of a check, whether it was passed."""
    error: str = ""
    seconds: float = 0.0


@lru_cache(maxsize=8)
def best_isolation(demand: Demand) -> Isolation:
    """The best isolation that ``demand`` asks for and that works here.

    Without a whole wall it raises, unless the user's environment has ``RAGEN2_ALLOW_UNSAFE_CODE=1``: no
    setting, and so no run file, can ask for that. What there is of a wall is then used.
    """
    reasons: list[str] = []
    half = Isolation("none")
    for isolation in candidates(demand):
        reason = isolation if isinstance(isolation, str) else why_not(isolation)
        if isinstance(isolation, Isolation) and not reason:
            if isolation.has_files:
                return isolation
            half = isolation
            reason = "where mounts are refused Landlock alone shows programs which files exist"
        if reason not in reasons:
            reasons.append(reason)
    if os.environ.get(ALLOW_UNSAFE) == "1":
        text = "programs run %s, as %s=1 allows: %s"
        _log.warning(text, half.behind, ALLOW_UNSAFE, "; ".join(reasons))
        return half
    raise GradingError(
        f"isolation is {demand}, but there is no such wall for untrusted programs here: "
        f"{'; '.join(reasons)}; {_CURE}"
    )


def why_not(isolation: Isolation) -> str:
    """Why ``isolation`` does not work here; nothing when it does."""
    texts = {"program": "print('inside')", "prelude": "", "preload": ""}
    sandbox = Sandbox(ResourceLimits(seconds_per_test=10.0, seconds_per_program=10.0), isolation)
    outcomes, failure = sandbox._attempt(texts, [Given()])
    if [outcome.stdout for outcome in outcomes] == ["inside\n"]:
        return ""
    name = os.path.basename(isolation.program) or isolation.wall
    return f"{name}: {outcomes[0].error if outcomes else failure}"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A way of running programs: their limits and their isolation."""

    limits: ResourceLimits = field(default_factory=ResourceLimits)
    isolation: Isolation = field(default_factory=lambda: best_isolation("auto"))

    def run(self, program: str, tests: Sequence[Given], prelude: str = "") -> list[ProgramOutcome]:
        """Run ``program`` afresh on each test. Raises only if the sandbox itself cannot work.

        ``prelude`` is trusted Python, imports as a rule, whose names the program finds defined.
        """
        texts = {"program": program, "prelude": prelude, "preload": _preload(tests)}
        outcomes: list[ProgramOutcome] = []
        for _ in range(_ATTEMPTS):
            more, failure = self._attempt(texts, tests[len(outcomes) :])
            outcomes += more
            if outcomes and outcomes[-1].status == "syntax":
                return outcomes + [outcomes[-1]] * (len(tests) - len(outcomes))
            if len(outcomes) == len(tests):
                return outcomes
        raise GradingError(
            f"the sandbox ({self.isolation.description}) failed {_ATTEMPTS} times, and not by the "
            f"program's fault: {failure}; free memory, disk or processes, or choose another isolation"
        )

    def run_all(
        self, programs: Iterable[tuple[str, Sequence[Given]]], workers: int = 2
    ) -> list[list[ProgramOutcome]]:
        """Run several programs, each on its own tests, ``workers`` at a time."""
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda pair: self.run(*pair), programs))

    def _attempt(
        self, texts: dict[str, str], tests: Sequence[Given]
    ) -> tuple[list[ProgramOutcome], str]:
        """The outcomes that one sandbox reports, and why there are no more."""
        try:
            with tempfile.TemporaryFile() as job, tempfile.TemporaryFile() as errors:
                self._write_job(job, texts, tests)
                outcomes = list(_parse(self._start(job, errors, len(tests))))[: len(tests)]
                errors.seek(0)
                said = errors.read(_MAX_SAID).decode(errors="replace").strip()
        except OSError as error:
            return [], str(error)
        if outcomes and outcomes[-1].status == "setup":
            return outcomes[:-1], outcomes[-1].error
        return outcomes, said.rpartition("\n")[2] or "it ended or was ended without a word"

    def _write_job(self, file: BinaryIO, texts: dict[str, str], tests: Sequence[Given]) -> None:
        has_files = self.isolation.has_files
        job = {
            **texts,
            "tests": len(tests),
            "parent": os.getpid(),
            "wall": self.isolation.wall,
            "scratch": SCRATCH if has_files else "",
            "layout": layout(),
            "readable": [*library_folders(), *DEVICES] if has_files else list(readable_paths()),
            # Files of our own account stay out of reach even where nothing else hides them.
            "become_nobody": not has_files and _can_become_nobody(),
            "seconds_per_test": self.limits.seconds_per_test,
            "seconds_per_program": self.limits.seconds_per_program,
            "memory_bytes": self.limits.memory_mb << 20,
            "output_bytes": self.limits.output_kb << 10,
            "disk_bytes": self.limits.disk_kb << 10,
        }
        file.write(
            _framed(_inside_code(any(test.check for test in tests))) + _framed(marshal.dumps(job))
        )
        for test in tests:
            file.write(_framed(marshal.dumps(_for_program(test))))
            if test.check:
                file.write(_framed(marshal.dumps(asdict(test.check))))
        file.seek(0)

    def _start(self, job: BinaryIO, errors: BinaryIO, num_tests: int) -> bytes:
        """Start the sandbox on ``job`` and read its report until it ends or must be ended."""
        python = ["-S", "-s", "-P", "-B", "-X", "utf8", "-c", _START]
        allowed = wall_seconds(self.limits.seconds_per_program) + _GRACE_SECONDS
        size = num_tests * (3 * (self.limits.output_kb << 10) + 1000)
        with subprocess.Popen(  # noqa: S603 - our own command line
            command(self.isolation, self.limits.disk_kb << 10, python),
            stdin=job,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(),
            start_new_session=True,
        ) as process:
            try:
                return _read_report(process.stdout, time.monotonic() + allowed, size)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)


@lru_cache(maxsize=2)
def _inside_code(with_checks: bool) -> bytes:
    """Our modules for the inside, compiled once: parsing them each time takes long."""
    here = Path(__file__).parent
    modules = []
    for short in _INSIDE:
        if short in _FOR_CHECKS and not with_checks:
            continue
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


def _for_program(test: Given) -> dict[str, Any]:
    if test.check:
        return {"check": True}
    if test.call:
        return {"call": test.call}
    return {"stdin": test.stdin.encode("utf-8", "surrogatepass")}


def _preload(tests: Sequence[Given]) -> str:
    """Imports that the judges of ``tests`` need: they are then done once, not in each of them."""
    sources = (test.check.source for test in tests if test.check)
    return "import unittest" if any("import unittest" in source for source in sources) else ""


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

    The program may have taken over its worker and written the value itself. That forges nothing: a value is
    only ever compared with the expected answer, which the program does not know. A check's verdict is written
    by the judge's worker alone.
    """
    stdout = output.decode("utf-8", "replace")
    if status == "ok" and value:
        try:
            return ProgramOutcome("ok", stdout, read(value), seconds=seconds)
        except ValueError as problem:
            return ProgramOutcome("error", stdout, error=str(problem)[:200], seconds=seconds)
    text = value if status in ("error", "syntax") else error
    message = text.decode("utf-8", "replace")[:500] if status != "ok" else ""
    return ProgramOutcome(status, stdout, error=message, seconds=seconds)
