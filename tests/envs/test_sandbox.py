"""The sandbox under attack, in every form of isolation, and at its daily work."""

import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sandbox_attacks import ATTACKS, FORGERIES

import ragen2
from ragen2.envs.deepcoder.answers import Case, grade
from ragen2.envs.deepcoder.problems import own_problem
from ragen2.errors import EnvError
from ragen2.sandbox import (
    Given,
    Isolation,
    Members,
    Opaque,
    Pairs,
    ResourceLimits,
    Sandbox,
    best_isolation,
    isolation,
    kernel,
    run,
)

QUICK = ResourceLimits(seconds_per_test=0.4, seconds_per_program=0.8, memory_mb=128, output_kb=64)
EXPECTED = "ANSWER-7f3a"
OUTSIDE = ("/tmp/attack", "/dev/shm/ragen2attack")  # noqa: S108 - where attacks try to write
HARMLESS = (
    *("start a program", "shell", "replace itself", "zombie children", "fork through libc"),
    *("memory through mmap", "huge file", "read the password file", "read the expected answer"),
    *(
        "read our own code",
        "import our own code",
        "write elsewhere",
        "write elsewhere through libc",
    ),
    *("write above the scratch folder", "symbolic link", "symbolic link to write", "hard link"),
    *("environment of the parents", "TCP connection", "UDP packet", "listen", "abstract socket"),
    *("socket through libc", "kill through libc", "thread bomb"),
)
"""Attacks that may be let loose for a moment, to see that they are attacks."""


def _forms() -> dict[str, Isolation]:
    weak = Isolation(landlock=kernel.landlock_version(), seccomp=kernel.has_seccomp())
    forms = {"limits": Isolation(), "weak": weak}
    strong = isolation._strong(kernel.has_seccomp())
    if isinstance(strong, Isolation):
        forms["strong"] = strong
    return forms


FORMS = _forms()


@pytest.fixture(params=["strong", "weak", "limits"])
def form(request: pytest.FixtureRequest) -> Isolation:
    if request.param not in FORMS:
        pytest.skip("bubblewrap does not work here; install it to test the strong form")
    return FORMS[request.param]


@dataclass
class Scene:
    """What an attack aims at."""

    target: Path
    secret: Path
    listener: socket.socket
    abstract: socket.socket
    scratch: Path
    marker: str

    def fill(self, program: str) -> str:
        values = {
            "target": repr(str(self.target)),
            "secret": repr(str(self.secret)),
            "package": repr(str(Path(ragen2.__file__).parent)),
            "port": str(self.port),
            "parent": str(os.getpid()),
        }
        for name, value in values.items():
            program = program.replace(f"@{name}@", value)
        return program

    @property
    def port(self) -> int:
        return self.listener.getsockname()[1]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    secret = tmp_path / "answers.txt"
    secret.write_text(EXPECTED)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("RAGEN2_TEST_SECRET", EXPECTED)
    marker = uuid.uuid4().hex
    monkeypatch.setattr(run, "_START", f"{run._START}# {marker}\n")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0ragen2-attack-{listener.getsockname()[1]}")
        abstract.listen()
        yield Scene(tmp_path / "stolen", secret, listener, abstract, scratch, marker)


def _alive(marker: str) -> list[str]:
    """Processes of the sandbox that carries ``marker`` on its command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


def _assert_nothing_happened(scene: Scene) -> None:
    assert list(scene.scratch.iterdir()) == []
    assert not scene.target.exists()
    for place in OUTSIDE:
        assert not Path(place).exists()
    assert scene.secret.read_text() == EXPECTED
    assert scene.secret.stat().st_mode & 0o777 != 0o777
    readable, _, _ = select.select([scene.listener, scene.abstract], [], [], 0)
    assert readable == []
    deadline = time.monotonic() + 5  # the kernel takes a moment to clear away what was killed
    while _alive(scene.marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _alive(scene.marker) == []


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_succeeds_or_leaves_anything_behind(
    name: str, form: Isolation, scene: Scene
) -> None:
    started = time.monotonic()
    (outcome,) = Sandbox(QUICK, form).run(scene.fill(ATTACKS[name]), [Given(stdin="1\n")])
    assert time.monotonic() - started < 30
    assert "GOT" not in outcome.stdout
    assert EXPECTED not in outcome.stdout + outcome.error
    assert len(outcome.stdout) <= QUICK.output_kb << 10
    _assert_nothing_happened(scene)


@pytest.mark.parametrize("name", HARMLESS)
def test_outside_the_sandbox_the_attack_works(name: str, scene: Scene) -> None:
    program = scene.fill(ATTACKS[name]).replace("i < 10**6", "i < 100")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=scene.scratch,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        input="1\n",
    )
    assert "GOT" in done.stdout


@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_passes_a_test(name: str, form: Isolation, scene: Scene) -> None:
    cases = [
        Case(Given(probes=(("f", [1]),)), (EXPECTED,)),
        Case(Given(probes=("f(2)",)), ([EXPECTED],)),
        Case(Given(probes=("f(2)",)), judge=f"answers[0] == '{EXPECTED}'"),
    ]
    result = grade(FORGERIES[name], cases, Sandbox(QUICK, form))
    assert result.passed == (False, False, False)
    _assert_nothing_happened(scene)


def test_there_are_at_least_thirty_attacks() -> None:
    assert len(ATTACKS) + len(FORGERIES) >= 30


def test_our_process_survives_hash_collisions_quickly(form: Isolation) -> None:
    program = "def f(n): return {i * (2**61 - 1) for i in range(n)}"
    sandbox = Sandbox(ResourceLimits(10, 20), form)
    expected = frozenset(range(8000))
    result = grade(program, [Case(Given(probes=("f(8000)",)), (expected,))], sandbox)
    assert result.passed == (False,)


def test_every_test_gets_a_fresh_process(form: Isolation) -> None:
    program = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)"
    outcomes = Sandbox(QUICK, form).run(program, [Given(probes=("f(1)",))] * 3)
    assert [outcome.values for outcome in outcomes] == [(1,), (1,), (1,)]


def test_a_program_sees_only_its_own_test(form: Isolation) -> None:
    program = """
import gc, os, sys
given = input()
texts = [t for t in gc.get_objects() if isinstance(t, dict)] if "fence" not in given else []
print(any("OTHER" in str(list(t.values())) for t in texts if "stdin" in t or "probes" in t))
print(os.listdir("."))
open("left", "w").write(given)
"""
    if form.needs_fence:
        program = program.replace("gc.get_objects()", "[]")
    tests = [Given(stdin="OTHER1"), Given(stdin="second"), Given(stdin="OTHER2")]
    outcomes = Sandbox(QUICK, form).run(program, tests)
    assert outcomes[1].stdout.split() == ["False", "[]"]


def test_one_slow_test_does_not_spoil_the_others(form: Isolation) -> None:
    program = "n = int(input())\nwhile n == 2: pass\nif n == 3: 1 / 0\nprint(n)"
    outcomes = Sandbox(QUICK, form).run(program, [Given(stdin=f"{n}\n") for n in (1, 2, 3, 4)])
    assert [outcome.status for outcome in outcomes] == ["ok", "time", "error", "ok"]
    assert outcomes[2].error == "ZeroDivisionError: division by zero"
    assert outcomes[3].stdout == "4\n"


def test_the_time_of_a_program_is_bounded_over_all_tests(form: Isolation) -> None:
    outcomes = Sandbox(QUICK, form).run("while True: pass", [Given()] * 6)
    statuses = [outcome.status for outcome in outcomes]
    assert statuses[:2] == ["time", "time"]
    assert statuses[-1] == "unrun"


@pytest.mark.parametrize("ending", ["import sys; sys.exit()", "exit(3)", "raise SystemExit('x')"])
def test_leaving_early_is_harmless(ending: str, form: Isolation) -> None:
    ending = ending.replace("exit(3)", "__import__('sys').exit(3)")
    (outcome,) = Sandbox(QUICK, form).run(f"print(5)\n{ending}\nprint(6)", [Given()])
    assert (outcome.status, outcome.stdout) == ("ok", "5\n")


def test_values_come_back_as_they_were(form: Isolation) -> None:
    program = """
from collections import Counter, OrderedDict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
Point = namedtuple("Point", "x y")
def f():
    return [None, True, -3, 2**100, 0.1, 1e300, 1 + 2j, "é\\ud800", b"\\x00", (1, (2,)), {3},
            {"a": [1]}, Point(1, 2), deque([1]), Fraction(1, 3), Decimal("0.1"), Counter("a"), f]
"""
    (outcome,) = Sandbox(QUICK, form).run(program, [Given(probes=("f()",))])
    (values,) = outcome.values
    assert values[:10] == [
        None,
        True,
        -3,
        2**100,
        0.1,
        1e300,
        1 + 2j,
        "é\ud800",
        b"\x00",
        (1, (2,)),
    ]
    assert values[10:13] == [Members((3,)), Pairs((("a", [1]),)), (1, 2)]
    assert [str(value) for value in values[13:16]] == ["[1]", "1/3", "0.1"]
    assert values[16:] == [Pairs((("a", 1),)), Opaque("function")]


@pytest.mark.parametrize("name", ["strong", "weak"])
def test_threads_and_asyncio_and_the_standard_library_work(name: str) -> None:
    if name not in FORMS or not FORMS[name].seccomp:
        pytest.skip(f"the {name} form is not to be had here")
    program = """
import array, asyncio, bisect, calendar, cmath, collections, copy, csv, dataclasses, datetime
import decimal, enum, fractions, functools, hashlib, heapq, io, itertools, json, math, operator
import queue, random, re, statistics, string, struct, sys, textwrap, threading, time, typing, uuid
import urllib.parse, zlib, numbers, unicodedata, tempfile, contextlib, inspect, logging, secrets

@dataclasses.dataclass
class Pair:
    left: "int"

sys.setrecursionlimit(10**6)
threading.stack_size(1 << 25)
def deep(n): return 0 if n == 0 else 1 + deep(n - 1)
thread = threading.Thread(target=lambda: print(deep(20000)))
thread.start()
thread.join()
async def wait(): await asyncio.sleep(0.01); return Pair(7).left
print(asyncio.run(wait()))
print(random.random() < 1, time.time() > 0, datetime.date.today().year > 2000)
open("f.txt", "w").write("kept")
print(open("f.txt").read(), hashlib.md5(b"").hexdigest()[:4])
"""
    sandbox = Sandbox(ResourceLimits(seconds_per_test=10, seconds_per_program=20), FORMS[name])
    (outcome,) = sandbox.run(program, [Given()])
    assert outcome.stdout.split() == ["20000", "7", "True", "True", "True", "kept", "d41d"]


def test_output_of_other_threads_and_exit_functions_counts(form: Isolation) -> None:
    program = """
import atexit, io, sys
buffer = io.StringIO()
sys.stdout = buffer
atexit.register(lambda: sys.__stdout__.write(buffer.getvalue()))
print("late")
"""
    (outcome,) = Sandbox(QUICK, form).run(program, [Given()])
    assert outcome.stdout == "late\n"


def test_methods_of_a_solution_class_can_be_called(form: Isolation) -> None:
    program = "class Solution:\n    def add(self, a: List[int]) -> int:\n        return sum(a)"
    sandbox = Sandbox(QUICK, form)
    (outcome,) = sandbox.run(program, [Given(probes=(("add", [[1, 2]]),))], "from typing import *")
    assert outcome.values == (3,)


def test_large_input_and_text_beyond_ascii_arrive_whole(form: Isolation) -> None:
    text = "".join(f"{number} é√😀\n" for number in range(20_000))
    sandbox = Sandbox(ResourceLimits(), form)
    program = "import sys\ndata = sys.stdin.read()\nprint(len(data), data[-3:])"
    (outcome,) = sandbox.run(program, [Given(stdin=text)])
    assert outcome.stdout == f"{len(text)} {text[-3:]}\n"


def test_the_order_of_a_set_is_the_same_every_time(form: Isolation) -> None:
    program = "print(list({str(i) for i in range(50)}))"
    first, second = (Sandbox(QUICK, form).run(program, [Given()])[0] for _ in range(2))
    assert first.stdout == second.stdout


@pytest.mark.parametrize("text", ["x = (", "\x00", "é√😀", "\ud800", "return 1", "<think>"])
def test_text_that_is_no_program_is_told_from_a_program(text: str, form: Isolation) -> None:
    outcomes = Sandbox(QUICK, form).run(text, [Given(), Given()])
    assert [outcome.status for outcome in outcomes] == ["syntax", "syntax"]


@pytest.mark.slow
def test_a_thousand_correct_programs_in_a_row_all_pass() -> None:
    problems = [own_problem(seed) for seed in range(100_000, 100_150)]
    rounds = [problems[index % len(problems)] for index in range(1000)]
    sandbox = Sandbox()
    runs = [
        (problem.solution, [case.given for case in problem.cases[turn % 3 :: 6]])
        for turn, problem in enumerate(rounds)
    ]
    outcomes = sandbox.run_all(runs)
    failed = [
        problem.name
        for problem, results in zip(rounds, outcomes, strict=True)
        if any(outcome.status != "ok" for outcome in results)
    ]
    assert failed == []


def test_strong_isolation_that_cannot_be_had_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation.shutil, "which", lambda name: None)
    best_isolation.cache_clear()
    with pytest.raises(
        EnvError, match=r"isolation is strong, but bubblewrap .* is not installed"
    ) as found:
        best_isolation("strong")
    best_isolation.cache_clear()
    assert "apt-get install bubblewrap" in str(found.value)


def test_weaker_isolation_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(isolation, "_strong", lambda seccomp: "bubblewrap is on holiday")
    best_isolation.cache_clear()
    with caplog.at_level(logging.WARNING):
        forms = {best_isolation("auto") for _ in range(3)}
    best_isolation.cache_clear()
    assert not next(iter(forms)).is_strong
    assert [record.getMessage()[:60] for record in caplog.records] == [
        "isolation of programs is weaker: bubblewrap is on holiday; t"
    ]


def test_installed_packages_are_hidden_from_programs() -> None:
    hidden = isolation.hidden_folders()
    assert any(path.endswith("-packages") for path in hidden)
    assert not any(
        path == folder or path.startswith(folder + "/")
        for path in isolation.readable_paths()
        for folder in hidden
    )


@pytest.mark.parametrize("machine", kernel.MACHINES)
def test_no_call_is_both_free_and_checked(machine: str) -> None:
    free, checked = kernel.allowed_calls(machine), kernel.checked_calls(machine)
    assert len(set(free)) == len(free)
    assert set(free).isdisjoint(checked.values())


def test_a_sandbox_that_cannot_start_is_an_error_and_not_a_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sandbox, "_start", lambda self, job, num_tests: b"")
    with pytest.raises(EnvError, match="the sandbox ended twice before it ran a test"):
        Sandbox(QUICK, FORMS["weak"]).run("print(1)", [Given()])


def test_programs_end_when_our_process_is_killed(form: Isolation, tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    code = (
        "from ragen2.sandbox import *\nfrom ragen2.sandbox import run\n"
        f"run._START += '# {marker}'\n"
        f"Sandbox(ResourceLimits(60, 60), {form!r}).run('while True: pass', [Given()])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        deadline = time.monotonic() + 20
        while len(_alive(marker)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(_alive(marker)) >= 3
        process.kill()
    while _alive(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _alive(marker) == []
