"""Attack every isolation that this machine offers, and run correct programs in it.

python benchmarks/sandbox_attacks.py results/sandbox_attacks.json
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import ragen2
from attack_programs import ALL_CALLS, ATTACKS, CALLS, FORGERIES
from lying_programs import ASSERTS, CHECKS, LIARS, METHODS, RIGHT
from ragen2.envs.deepcoder.answers import Case, Problem, grade
from ragen2.envs.deepcoder.formats import read_problems
from ragen2.envs.deepcoder.problems import own_problem
from ragen2.sandbox import Check, Given, Isolation, ResourceLimits, Sandbox, isolation, run

QUICK = ResourceLimits(seconds_per_test=0.4, seconds_per_program=0.8, memory_mb=128, output_kb=64)
EXPECTED = "ANSWER-7f3a"
OUTSIDE = ("/tmp/attack", "/dev/shm/ragen2attack")  # noqa: S108 - where attacks try to write
PROGRAMS, TESTS = 100, 8
"""Correct programs to run, and tests of each."""
PAIRS = (
    ("attacks", "attacks_succeeded"),
    ("calls", "calls_reached"),
    ("forgeries", "forgeries_passed"),
)
"""What was tried, and what should be empty."""


@dataclass
class Scene:
    """What an attack aims at."""

    target: Path
    secret: Path
    scratch: Path
    marker: str
    listener: socket.socket
    sockets: list[socket.socket]
    """All that a program could reach."""

    def fill(self, program: str) -> str:
        """The program with this scene's names in it."""
        values = {
            "target": repr(str(self.target)),
            "secret": repr(str(self.secret)),
            "package": repr(str(Path(ragen2.__file__).parent)),
            "port": str(self.listener.getsockname()[1]),
            "parent": str(os.getpid()),
        }
        for name, value in values.items():
            program = program.replace(f"@{name}@", value)
        return program

    def damage(self) -> list[str]:
        """What an attack has changed, taken or left behind."""
        left = [self.target, *self.scratch.iterdir(), *map(Path, OUTSIDE)]
        found = [f"{path} exists" for path in left if path.exists()]
        if not self.secret.exists() or self.secret.read_text() != EXPECTED:
            found.append("a file of ours was changed")
        elif self.secret.stat().st_mode & 0o777 == 0o777:
            found.append("the mode of a file of ours was changed")
        if select.select(self.sockets, [], [], 0)[0]:
            found.append("a connection was made")
        deadline = time.monotonic() + 5  # the kernel takes a moment to clear away what was killed
        while alive(self.marker) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found + [f"process {pid} is left" for pid in alive(self.marker)]


@contextmanager
def set_scene(folder: Path) -> Iterator[Scene]:
    """A scene in ``folder``, where temporary files go too; sandboxes carry its marker."""
    secret = folder / "answers.txt"
    secret.write_text(EXPECTED)
    scratch = folder / "scratch"
    scratch.mkdir()
    marker = uuid.uuid4().hex
    kept = tempfile.tempdir, run._START
    tempfile.tempdir, run._START = str(scratch), f"{run._START}# {marker}\n"
    os.environ["RAGEN2_TEST_SECRET"] = EXPECTED
    target = folder / "stolen"
    try:
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = listener.getsockname()[1]
            sockets = [listener]
            for kind, name in (
                (socket.SOCK_STREAM, f"\0ragen2-attack-{port}"),
                (socket.SOCK_DGRAM, f"\0ragen2-datagram-{port}"),
                (socket.SOCK_DGRAM, f"{target}.socket"),
            ):
                sockets.append(stack.enter_context(socket.socket(socket.AF_UNIX, kind)))
                sockets[-1].bind(name)
            sockets[1].listen()
            os.chmod(f"{target}.socket", 0o777)  # noqa: S103 - as services leave theirs
            yield Scene(target, secret, scratch, marker, listener, sockets)
    finally:
        tempfile.tempdir, run._START = kept
        del os.environ["RAGEN2_TEST_SECRET"]


def alive(marker: str) -> list[str]:
    """Processes that carry ``marker`` on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


def offered() -> dict[str, Isolation]:
    """Every isolation that works here, by name."""
    found = {}
    for one in isolation.candidates("auto"):
        if isinstance(one, Isolation) and not run.why_not(one):
            name = os.path.basename(one.program) if one.program else one.wall
            found[name if one.has_files else f"{name}, no mounts"] = one
    return found


def attack(program: str, form: Isolation, scene: Scene) -> list[str]:
    """What ``program`` has achieved in the sandbox; nothing, if all is well."""
    started = time.monotonic()
    (outcome,) = Sandbox(QUICK, form).run(scene.fill(program), [Given(stdin="1\n")])
    found = [line for line in outcome.stdout.splitlines() if "GOT" in line]
    if EXPECTED in outcome.stdout + outcome.error:
        found.append("read a secret")
    if len(outcome.stdout) > QUICK.output_kb << 10:
        found.append("more output than allowed")
    if time.monotonic() - started > 30:
        found.append("more time than allowed")
    return found + scene.damage()


def forge(program: str, form: Isolation) -> list[str]:
    """Tests that a program passes which must not pass any."""
    cases = [
        Case(Given(call=("f", [1])), (EXPECTED,)),
        Case(Given(call=("f", [2])), ([EXPECTED],)),
        Case(Given(check=Check(f"from program import f\nassert f(2) == '{EXPECTED}'"))),
    ]
    result = grade(program, cases, Sandbox(QUICK, form))
    return [f"passed test {index}" for index, passed in enumerate(result.passed) if passed]


def lie(program: str, form: Isolation) -> list[str]:
    """Ends of the tests in Python that a program passes which knows no answer."""
    cases = [case for problem in problems_in_python() for case in problem.cases]
    grades = grade(program, cases, Sandbox(replace(QUICK, seconds_per_program=60.0), form))
    pairs = zip(cases, grades.passed, strict=True)
    return [case.given.check.source[-200:] for case, passed in pairs if case.given.check and passed]


@lru_cache(maxsize=1)
def problems_in_python() -> tuple[Problem, ...]:
    """The tests of lying_programs.py as the problems of three data sets."""
    methods = {"test_code": METHODS, "solution_file": "hello.py"}
    records: list[dict[str, Any]] = [{"tests": ASSERTS}, methods]
    records += [{"test": test, "entry_point": "f"} for test in CHECKS.values()]
    shared = {"prompt": RIGHT, "solution": RIGHT}
    return tuple(read_problems({**shared, **record} for record in records))


def hold(form: Isolation) -> dict[str, Any]:
    """All attacks and forgeries in one isolation."""
    successes: dict[str, list[str]] = {}
    for name, program in ATTACKS.items():
        with tempfile.TemporaryDirectory() as folder, set_scene(Path(folder)) as scene:
            successes[name] = attack(program, form, scene)
    with tempfile.TemporaryDirectory() as folder, set_scene(Path(folder)) as scene:
        reached = attack(ALL_CALLS, form, scene)
    forged = {name: forge(program, form) for name, program in FORGERIES.items()}
    forged |= {name: lie(program, form) for name, program in LIARS.items()}
    return {
        "wall": form.wall,
        "has_files": form.has_files,
        "attacks": len(ATTACKS),
        "attacks_succeeded": {name: got for name, got in successes.items() if got},
        "calls": len(CALLS),
        "calls_reached": reached,
        "forgeries": len(forged),
        "forgeries_passed": {name: got for name, got in forged.items() if got},
    }


def solve(forms: Sequence[Isolation]) -> list[dict[str, int]]:
    """Right programs in each isolation, in turns, so that a busy machine is busy for all."""
    right = [0] * len(forms)
    seconds: list[list[float]] = [[] for _ in forms]
    for seed in range(100_000, 100_000 + PROGRAMS):
        problem = own_problem(seed)
        for index, form in enumerate(forms):
            started = time.monotonic()
            result = grade(problem.solution, problem.cases[:TESTS], Sandbox(isolation=form))
            seconds[index].append(time.monotonic() - started)
            right[index] += all(result.passed)
    return [
        {"programs": PROGRAMS, "programs_right": count, "median_ms": round(1000 * median(times))}
        for count, times in zip(right, seconds, strict=True)
    ]


def table(results: dict[str, Any]) -> str:
    """The results as the table of docs/environments/deepcoder.md."""
    lines = [
        "| isolation | attacks succeed | calls reached | forgeries pass | solutions right | median ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in results["isolations"].items():
        cells = [f"{len(row[got])} of {row[tried]}" for tried, got in PAIRS]
        right = f"{row['programs_right']} of {row['programs']}"
        lines.append(f"| {' | '.join([name, *cells, right, str(row['median_ms'])])} |")
    return "\n".join(lines)


def main() -> None:
    """Write what each isolation held, and show it as a table."""
    forms = offered()
    rows = zip(forms.items(), solve(list(forms.values())), strict=True)
    found = {name: hold(form) | solved for (name, form), solved in rows}
    results = {"kernel": os.uname().release, "isolations": found}
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
