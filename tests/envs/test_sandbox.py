"""The sandbox under attack, in every form of isolation, and at its daily work."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attack_programs import (
    ALL_CALLS,
    ATTACKS,
    CALLS,
    FORGERIES,
    HARMLESS,
    SEEN_WITHOUT_MOUNTS,
)
from ragen2.envs import make
from ragen2.envs.deepcoder.answers import Case, grade
from ragen2.envs.deepcoder.problems import own_problem
from ragen2.errors import ConfigError, GradingError
from ragen2.sandbox import (
    Given,
    Isolation,
    Members,
    Opaque,
    Pairs,
    ResourceLimits,
    Sandbox,
    best_isolation,
    container,
    isolation,
    kernel,
    run,
)
from sandbox_attacks import QUICK, Scene, alive, attack, forge, offered, set_scene

FORMS = offered()
CONTAINERS = ("runsc", "crun", "runc")


@pytest.fixture(params=["bwrap", "landlock", "landlock, no mounts", "container"])
def form(request: pytest.FixtureRequest) -> Isolation:
    names = CONTAINERS if request.param == "container" else (request.param,)
    found = [FORMS[name] for name in names if name in FORMS]
    if not found:
        missing = (
            "a container runtime"
            if names == CONTAINERS
            else names[0].replace("bwrap", "bubblewrap")
        )
        pytest.skip(f"{missing} does not work here; install it to test this wall")
    return found[0]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with set_scene(tmp_path) as found:
        yield found


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_succeeds_or_leaves_anything_behind(
    name: str, form: Isolation, scene: Scene
) -> None:
    got = attack(ATTACKS[name], form, scene)
    if name in SEEN_WITHOUT_MOUNTS and not form.has_files:
        assert [line[:4] for line in got] == ["GOT "]
    else:
        assert got == []


def test_no_call_beyond_the_list_is_reached(form: Isolation, scene: Scene) -> None:
    assert len(CALLS) > 80
    assert attack(ALL_CALLS, form, scene) == []


@pytest.mark.parametrize("name", HARMLESS)
def test_outside_the_sandbox_the_attack_works(name: str, scene: Scene) -> None:
    done = subprocess.run(
        [sys.executable, "-c", scene.fill(ATTACKS[name])],
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
    assert forge(FORGERIES[name], form) == []
    assert scene.damage() == []


def test_our_process_survives_hash_collisions_quickly(form: Isolation) -> None:
    program = "def f(n): return {i * (2**61 - 1) for i in range(n)}"
    sandbox = Sandbox(ResourceLimits(10, 20), form)
    expected = frozenset(range(8000))
    result = grade(program, [Case(Given(call=("f", [8000])), (expected,))], sandbox)
    assert result.passed == (False,)


def test_every_test_gets_a_fresh_process(form: Isolation) -> None:
    program = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)"
    outcomes = Sandbox(QUICK, form).run(program, [Given(call=("f", [1]))] * 3)
    assert [outcome.value for outcome in outcomes] == [1, 1, 1]


def test_a_program_sees_only_its_own_test(form: Isolation) -> None:
    program = """
import gc, os, sys
given = input()
texts = [t for t in gc.get_objects() if isinstance(t, dict)]
print(any("OTHER" in str(list(t.values())) for t in texts if "stdin" in t or "call" in t))
try:
    print(os.listdir("."))
    open("left", "w").write(given)
except PermissionError:
    print([])
"""
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
    (outcome,) = Sandbox(QUICK, form).run(program, [Given(call=("f", []))])
    values = outcome.value
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


def test_threads_and_asyncio_and_the_standard_library_work(form: Isolation) -> None:
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
print(hashlib.md5(b"").hexdigest()[:4])
"""
    sandbox = Sandbox(ResourceLimits(seconds_per_test=10, seconds_per_program=20), form)
    (outcome,) = sandbox.run(program, [Given()])
    assert outcome.stdout.split() == ["20000", "7", "True", "True", "True", "d41d"]


def test_files_can_be_written_where_their_size_is_bounded(form: Isolation) -> None:
    program = """
import os, tempfile
with tempfile.TemporaryFile(dir=".") as file:
    file.write(b"x" * 1000)
open("f.txt", "w").write("kept")
print(open("f.txt").read())
os.remove("f.txt")
print(os.listdir("."))
"""
    (outcome,) = Sandbox(ResourceLimits(), form).run(program, [Given()])
    if form.has_files:
        assert outcome.stdout.split() == ["kept", "[]"]
    else:
        assert outcome.error.startswith(("PermissionError", "FileNotFoundError"))


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
    (outcome,) = sandbox.run(program, [Given(call=("add", [[1, 2]]))], "from typing import *")
    assert outcome.value == 3


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


LACKS = {
    "Landlock": "kernel.landlock_version = lambda: 0",
    "seccomp": "kernel.filters_calls = lambda: False",
    "mounts": "mounts.enter = lambda *rest: kernel.check(-1, 'unshare')",
}
"""What a kernel may lack, as lines that the inside of a sandbox runs first."""


@pytest.fixture
def kernel_without(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Take something from the kernel, as sandboxes see it, on a machine without bubblewrap."""

    def lack(what: str) -> None:
        lines = f"from ragen2.sandbox import kernel, mounts\n{LACKS[what]}\nmodule.main()"
        monkeypatch.setattr(run, "_START", run._START.replace("module.main()", lines))

    monkeypatch.setattr(isolation.shutil, "which", lambda name: None)
    monkeypatch.delenv(run.ALLOW_UNSAFE, raising=False)
    best_isolation.cache_clear()
    yield lack
    best_isolation.cache_clear()


@pytest.mark.parametrize("demand", ["auto", "weak"])
@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("Landlock", r"this kernel has no Landlock \(Linux 5.13 or later can have it\)"),
        ("seccomp", "system calls can be filtered on Linux on x86-64 and ARM64 only"),
    ],
)
def test_without_a_wall_no_program_runs(
    missing: str, reason: str, demand: str, kernel_without: Callable[[str], None]
) -> None:
    kernel_without(missing)
    with pytest.raises(GradingError, match=f"isolation is {demand}, but .*{reason}") as found:
        best_isolation(demand)
    assert "apt-get install bubblewrap" in str(found.value)
    assert 'isolation = "container"' in str(found.value)
    assert "RAGEN2_ALLOW_UNSAFE_CODE=1 in the environment" in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("demand", ["strong", "container"])
def test_what_is_not_installed_is_an_error(
    demand: str, kernel_without: Callable[[str], None]
) -> None:
    with pytest.raises(GradingError, match=f"isolation is {demand}, but .* installed;"):
        best_isolation(demand)


def test_the_user_alone_allows_programs_without_a_wall(
    kernel_without: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernel_without("Landlock")
    for setting in ({"isolation": "none"}, {"allow_unsafe_code": True}):
        with pytest.raises(ConfigError, match="DeepCoder"):
            make("DeepCoder", **setting)
    for value in ("", "0", "no"):
        monkeypatch.setenv(run.ALLOW_UNSAFE, value)
        with pytest.raises(GradingError):
            best_isolation("auto")
    monkeypatch.setenv(run.ALLOW_UNSAFE, "1")
    assert best_isolation("auto") == Isolation("none")
    assert "programs run with your own rights" in caplog.text


def test_without_a_wall_a_subinterpreter_reads_any_file() -> None:
    """Which is why nothing in the interpreter, such as audit hooks, is taken for a wall."""
    program = ATTACKS["files of a subinterpreter"]
    (outcome,) = Sandbox(QUICK, Isolation("none")).run(program, [Given()])
    assert outcome.stdout.startswith("GOT root:")


def test_landlock_without_mounts_is_half_a_wall_which_the_user_alone_can_accept(
    kernel_without: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernel_without("mounts")
    with pytest.raises(GradingError, match=r"mounts are refused.*which files exist"):
        best_isolation("auto")
    monkeypatch.setenv(run.ALLOW_UNSAFE, "1")
    assert {best_isolation("auto") for _ in range(3)} == {Isolation("landlock")}
    (record,) = caplog.records
    assert "programs run behind Landlock and a filter of system calls" in record.getMessage()


@pytest.mark.skipif("runc" not in FORMS, reason="runc does not work here")
def test_where_only_a_container_is_a_wall_it_is_taken(
    kernel_without: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_without("mounts")
    runc = FORMS["runc"]
    monkeypatch.setattr(isolation.shutil, "which", {"runc": runc.program}.get)
    assert best_isolation("auto") == runc


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
    monkeypatch.setattr(Sandbox, "_start", lambda *rest: b"")
    with pytest.raises(GradingError, match="failed 2 times, and not by the program's fault"):
        Sandbox(QUICK, Isolation("landlock")).run("print(1)", [Given()])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("worker.kernel.lock = lambda *rest: kernel.check(-1, 'the lock')", "the lock was refused"),
        ("module.run_test = lambda *rest: os.fork(-1)", "TypeError"),
        ("worker._limit = lambda job: os.kill(os.getpid(), 9)", "ended by crash"),
    ],
)
def test_a_fault_in_setting_up_is_an_error_and_not_a_zero(
    fault: str, reason: str, form: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = f"from ragen2.sandbox import kernel, worker\n{fault}\nmodule.main()"
    monkeypatch.setattr(run, "_START", run._START.replace("module.main()", lines))
    with pytest.raises(GradingError, match=reason):
        Sandbox(QUICK, form).run("print(1)", [Given()])


def test_a_lost_sandbox_is_started_again_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, form: Isolation
) -> None:
    reports = []
    start = Sandbox._start

    def cut(*rest: Any) -> bytes:
        whole = start(*rest)
        reports.append(whole if reports else whole[: len(whole) // 2])
        return reports[-1]

    monkeypatch.setattr(Sandbox, "_start", cut)
    tests = [Given(stdin=str(number)) for number in range(6)]
    outcomes = Sandbox(QUICK, form).run("print(input())", tests)
    assert [outcome.stdout for outcome in outcomes] == [f"{number}\n" for number in range(6)]
    assert len(reports) == 2


@pytest.mark.parametrize(
    ("max_bytes", "verdict"), [(1 << 28, "[True]"), (1 << 20, "[True]"), (1000, "")]
)
def test_under_a_limit_on_file_sizes_a_right_program_is_right_or_nothing(
    max_bytes: int, verdict: str, form: Isolation
) -> None:
    code = f"""
import resource, sys
sys.path[:] = {sys.path!r}
from ragen2.envs.deepcoder.answers import Case, grade
from ragen2.sandbox import *
resource.setrlimit(resource.RLIMIT_FSIZE, ({max_bytes}, {max_bytes}))
case = Case(Given(stdin="4"), ("5",))
try:
    print(list(grade("print(int(input()) + 1)", [case], Sandbox(ResourceLimits(), {form!r})).passed))
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    refused = "GradingError: the sandbox"
    if form.wall == "container":  # gVisor's memory is one large file
        assert done.stdout.startswith(("[True]", refused))
    else:
        assert done.stdout.startswith(verdict or refused), done.stderr


def _killed(form: Isolation, cache: Path, temporary: Path) -> list[str]:
    """What is left of a sandbox 20 seconds, or less, after the process that started it was killed."""
    marker = uuid.uuid4().hex
    code = (
        "from ragen2.sandbox import *\nfrom ragen2.sandbox import run\n"
        f"run._START += '# {marker}'\n"
        f"Sandbox(ResourceLimits(60, 60), {form!r}).run('while True: pass', [Given()])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"],
        env={**os.environ, "TMPDIR": str(temporary), "RAGEN2_CACHE": str(cache)},
    ) as process:
        deadline = time.monotonic() + 20
        while len(alive(marker)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(alive(marker)) >= 3
        process.kill()
    while alive(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive(marker)


def test_programs_end_when_our_process_is_killed(
    form: Isolation, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert _killed(form, tmp_path_factory.mktemp("cache"), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not set(CONTAINERS) & set(FORMS), reason="no container runtime works here")
def test_what_a_killed_container_leaves_is_swept_away_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = next(FORMS[name] for name in CONTAINERS if name in FORMS)
    _killed(form, tmp_path, tmp_path)
    monkeypatch.setenv("RAGEN2_CACHE", str(tmp_path))
    for kept in (container._bundle, container._sweep):
        kept.cache_clear()
    (outcome,) = Sandbox(QUICK, form).run("print(1)", [Given()])
    assert outcome.stdout == "1\n"
    assert list(tmp_path.glob("containers/*/state/*")) == []
    container._bundle.cache_clear()
