"""Tests that are Python: right programs pass all of them, liars none, in every form of isolation."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from lying_programs import ASSERTS, CHECKS, LIARS, METHODS, RIGHT
from ragen2.envs.deepcoder.answers import Problem, grade
from ragen2.envs.deepcoder.formats import problems_of, read_problems
from ragen2.sandbox import Isolation, ResourceLimits, Sandbox, run
from sandbox_attacks import QUICK, lie, offered, problems_in_python

LIMITS = ResourceLimits(seconds_per_test=4, seconds_per_program=60, memory_mb=256)
FORMS = offered()
FORM = next(iter(FORMS.values()))


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Isolation:
    return FORMS[request.param]


def _failed(problem: Problem, program: str, form: Isolation) -> list[str]:
    """Tests that a program does not pass, and why."""
    result = grade(program, problem.cases, Sandbox(LIMITS, form), problem.prelude)
    cases = zip(problem.cases, result.passed, result.outcomes, strict=True)
    return [
        f"{case.given.check.source[-200:]}: {outcome.status} {outcome.error}"
        for case, passed, outcome in cases
        if case.given.check and not passed
    ]


def test_a_right_program_passes_every_form_of_test(form: Isolation) -> None:
    for problem in problems_in_python():
        assert problem.num_left_out == 0
        assert _failed(problem, RIGHT, form) == []
    assert sum(len(problem.cases) for problem in problems_in_python()) == (
        len(ASSERTS) + METHODS.count("def test_") + len(CHECKS)
    )


@pytest.mark.parametrize("liar", LIARS)
def test_no_liar_passes_any_form_of_test(liar: str, form: Isolation) -> None:
    assert lie(LIARS[liar], form) == []


def _puzzle(sat: str) -> Problem:
    (problem,) = read_problems([{"sat": sat, "sol_header": "def sol():"}])
    return problem


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        ("str", "'ab'", ["[float('nan')] * 3", "b'ab'", "['a', 'b']", "type('S', (str,), {})"]),
        ("int", "3", ["True", "3.0", "'3'", "float('nan')", "None"]),
        ("float", "0.5", ["float('nan')", "1", "'0.5'"]),
        ("bool", "True", ["1", "'x'"]),
        (
            "List[int]",
            "[1, 2]",
            ["(1, 2)", "[1, 2.0]", "[True]", "{1, 2}", "range(3)", "iter([1])"],
        ),
        ("List[List[str]]", "[['a'], []]", ["['a']", "[('a',)]", "[[1]]"]),
        ("Dict[str, int]", "{'a': 1}", ["{1: 1}", "{'a': 'b'}", "[('a', 1)]"]),
        ("Tuple[int, str]", "(1, 'a')", ["(1,)", "('a', 1)", "[1, 'a']"]),
        ("Set[int]", "{1}", ["[1]", "{'a'}"]),
        ("Optional[int]", "None", ["'x'"]),
    ],
)
def test_the_answer_to_a_puzzle_must_be_of_its_type(
    annotation: str, right: str, wrong: list[str]
) -> None:
    problem = _puzzle(f"def sat(x: {annotation}):\n    return True")
    for answer, passes in [(right, True), *((answer, False) for answer in wrong)]:
        result = grade(f"def sol(): return {answer}", problem.cases, Sandbox(QUICK, FORM))
        assert result.passed == (passes,), answer


def test_a_subclass_is_judged_as_the_plain_value_it_holds() -> None:
    """Whatever its methods say: only the data leaves the program's process."""
    problem = _puzzle("def sat(x: str):\n    return x == 'ab' and len(x) == 2")
    program = (
        "class S(str):\n    def __eq__(self, o): return True\n    def __len__(self): return 2\n"
    )
    for text, passes in [("ab", True), ("x", False)]:
        result = grade(
            f"{program}def sol(): return S({text!r})", problem.cases, Sandbox(QUICK, FORM)
        )
        assert result.passed == (passes,)


def test_an_assertion_in_a_function_that_the_program_calls_cannot_be_swallowed() -> None:
    statement = "def seen(n):\n    assert n == 5\napply(seen, 3)"
    record = {
        "prompt": "x",
        "tests": [f"{statement}\nassert True"],
        "solution": "def apply(g, n): g(n + 2)",
    }
    (problem,) = read_problems([record])
    swallow = "def apply(g, n):\n    try:\n        g(0)\n    except BaseException:\n        pass"
    assert grade(problem.solution, problem.cases, Sandbox(QUICK, FORM)).passed == (True,)
    assert grade(swallow, problem.cases, Sandbox(QUICK, FORM)).passed == (False,)


COMPARED = """
import unittest
from unittest import mock
from hello import Number, f

class Tests(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(Number(3).value, 3)
    def test_objects(self):
        self.assertEqual(Number(3), Number(3))
    def test_objects_by_name(self):
        first = Number(3)
        wanted = Number(3)
        self.assertTrue(first == wanted)
    def test_member(self):
        self.assertIn(3, Number(3))
    def test_helper(self):
        self.check(Number(3), Number(3))
    def check(self, left, right):
        self.assertEqual(left, right)
    def test_mock(self):
        with mock.patch("hello.f"):
            self.assertEqual(f(1), 1)
"""
NUMBER = (
    "class Number:\n    def __init__(self, value): self.value = value\n"
    "    def __eq__(self, other): return self.value == other.value\n"
    "    def __contains__(self, n): return n == self.value\ndef f(n): return n\n"
)


def test_tests_that_only_the_program_could_judge_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = {"prompt": "x", "solution_file": "hello.py", "solution": NUMBER, "test_code": COMPARED}
    other = {
        "prompt": "y",
        "tests": ["import numpy\nassert numpy.isclose(f(1), 1)"],
        "solution": NUMBER,
    }
    last = {"prompt": "z", "tests": ["assert f(1) == 1"], "solution": NUMBER}
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(map(json.dumps, (record, other, last))))
    with caplog.at_level(logging.WARNING):
        problems = problems_of(str(path), held_out_ratio=0.5)
    found = {problem.summary: problem for problem in (*problems.training, *problems.held_out)}
    assert {name: (len(p.cases), p.num_left_out) for name, p in found.items()} == {
        "x": (1, 5),
        "z": (1, 0),
    }
    assert "6 of 8 tests are left out" in caplog.text
    assert "1 of 3 problems" in caplog.text


def test_what_a_call_does_to_its_arguments_is_seen_by_the_test() -> None:
    program = (
        "def work(rows, seen, table, pile):\n    rows[0].append(9)\n    rows.sort(key=len)\n"
        "    seen.add(4)\n    table['k'] = rows[0]\n    del table['x']\n    pile.appendleft(0)\n"
        "    return sum(map(len, rows))"
    )
    test = """
from collections import deque
rows, seen, table, pile = [[1, 2], [3]], {3}, {"x": 1}, deque([1])
first = rows[0]
assert work(rows, seen, table, pile) == 4
assert rows == [[3], [1, 2, 9]] and seen == {3, 4} and table == {"k": [3]} and pile == deque([0, 1])
"""
    (problem,) = read_problems([{"prompt": "x", "tests": [test], "solution": program}])
    assert _failed(problem, program, FORM) == []


def test_a_test_that_stood_in_the_memory_of_the_program_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the liar that looks for it would prove nothing."""
    given = run._for_program
    monkeypatch.setattr(run, "_for_program", lambda test: {**given(test), "text": str(test.check)})
    assert lie(LIARS["the expected answer in memory"], FORM) != []


def test_the_job_may_come_through_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does where a container runtime copies standard input."""
    command = run.command

    def piped(*rest: Any) -> list[str]:
        return ["bash", "-c", 'exec "$@" < <(cat)', "bash", *command(*rest)]

    monkeypatch.setattr(run, "command", piped)
    statements = [f"assert f({n}) == {n + 1}" for n in range(30)]
    padding = "#" * 5000
    record = {"prompt": "x", "tests": [f"{text}  {padding}" for text in statements]}
    (problem,) = read_problems([{**record, "solution": "def f(n): return n + 1"}])
    assert _failed(problem, problem.solution, FORM) == []
    assert not any(grade("def f(n): return n", problem.cases, Sandbox(LIMITS, FORM)).passed)


def test_checks_that_no_time_is_left_for_do_not_disturb_those_before_them() -> None:
    statements = [f"assert f({n}) == {n}" for n in range(6)]
    (problem,) = read_problems([{"prompt": "x", "tests": statements, "solution": "x = 1"}])
    program = "def f(n):\n    while n == 1: pass\n    return n"
    limits = ResourceLimits(seconds_per_test=0.3, seconds_per_program=0.3)
    result = grade(program, problem.cases, Sandbox(limits, FORM))
    assert result.passed == (True, False, False, False, False, False)
    assert [one.status for one in result.outcomes] == ["ok", "time", *["unrun"] * 4]


@pytest.mark.parametrize(
    "way",
    [
        "os._exit(0)",
        "while True: pass",
        "for d in range(4, 64):\n        try: os.write(d, b'x' * 64)\n        except OSError: pass",
    ],
)
def test_a_test_that_catches_all_errors_is_not_passed_by_a_program_that_ends(way: str) -> None:
    test = "caught = False\ntry:\n    f(1)\nexcept BaseException:\n    caught = True\nassert caught"
    (problem,) = read_problems([{"prompt": "x", "tests": [test], "solution": ""}])
    raises, ends = "def f(n): raise ValueError", f"import os\ndef f(n):\n    {way}\n    os._exit(0)"
    limits = ResourceLimits(seconds_per_test=0.2, seconds_per_program=2)
    assert grade(raises, problem.cases, Sandbox(limits, FORM)).passed == (True,)
    assert grade(ends, problem.cases, Sandbox(limits, FORM)).passed == (False,)


def test_asserts_that_compare_the_programs_own_objects_are_left_out() -> None:
    tests = ["assert Number(3) == Number(3)", "assert Number(3).value == f(3)", "assert f(3) == 3"]
    left, right = "n = Number(3)\nassert n != Number(4)", "n = Number(3)\nassert n.value == 3"
    record = {"prompt": "x", "tests": [*tests, left, right], "solution": NUMBER}
    (problem,) = read_problems([record])
    assert [
        case.given.check.source.strip()[-16:] for case in problem.cases if case.given.check
    ] == [
        "assert f(3) == 3",
        "ert n.value == 3",
    ]
    assert problem.num_left_out == 3
    assert _failed(problem, NUMBER, FORM) == []


def test_an_object_cannot_be_asked_whether_it_holds_the_answer() -> None:
    head = "import itertools\nclass Bag:\n    def __init__(self, n): self.n = n\n    def __iter__(self): "
    right, liar = f"{head}return iter([self.n])", f"{head}return itertools.count()"
    problem = _asserts(right, "assert list(Bag(4)) == [4]", "assert 4 in Bag(4)")
    assert grade(right, problem.cases, Sandbox(QUICK, FORM)).passed == (True, False)
    assert grade(liar, problem.cases, Sandbox(QUICK, FORM)).passed == (False, False)


LENGTH = """
class Length:
    def __init__(self, size): self.size = size
    def __add__(self, other): return Length(self.size + (other.size if isinstance(other, Length) else other))
    def __sub__(self, other): return Length(self.size - other.size)
    def __rsub__(self, other): return Length(other - self.size)
    def __abs__(self): return abs(self.size)
    def __len__(self): return int(self.size)
    def meters(self): return self.size
"""
LENGTH_TESTS = """
import unittest
from hello import Length
class Tests(unittest.TestCase):
    def test_almost(self):
        self.assertAlmostEqual(Length(3).meters(), 3)
    def test_attribute(self):
        self.assertAlmostEqual(Length(3).size, 3, delta=0.1)
    def test_objects(self):
        self.assertEqual((Length(3) + Length(4)).size, 7)
        self.assertEqual(abs(Length(3) - Length(4)), 1)
        self.assertEqual(len(Length(3)), 3)
    def test_by_hand(self):
        self.assertTrue(abs(Length(3).meters() - 3) < 0.1)
    def test_mixed(self):
        self.assertEqual((Length(3) + 4).size, 7)
"""


def test_an_object_cannot_learn_the_answer_by_being_calculated_with() -> None:
    """A tolerance subtracts the answer; an object must not be told what was subtracted from it."""
    record = {
        "prompt": "x",
        "solution_file": "hello.py",
        "solution": LENGTH,
        "test_code": LENGTH_TESTS,
    }
    (problem,) = read_problems([record])
    assert (len(problem.cases), problem.num_left_out) == (3, 2)
    assert _failed(problem, LENGTH, FORM) == []
    liar = (
        "class Length:\n    def __init__(self, *a): self.size = self\n    def meters(self): return self\n"
        "    def __sub__(self, other): return self\n    __add__ = __rsub__ = __sub__\n"
        "    def __abs__(self): return 0\n    def __len__(self): return 0\n"
    )
    assert not any(grade(liar, problem.cases, Sandbox(LIMITS, FORM)).passed)


def _asserts(solution: str, *tests: str) -> Problem:
    (problem,) = read_problems([{"prompt": "x", "tests": list(tests), "solution": solution}])
    return problem


SWALLOWED = {
    "generator": (
        "def source():\n    yield 1\n    assert seen == [1]\nseen = []\nfeed(source(), seen.append)",
        "def feed(items, put):\n    for k in items: put(k)",
        "def feed(items, put):\n    try: list(items)\n    except BaseException: pass",
    ),
    "error": (
        "def seen(n):\n    if n != 5: raise ValueError(n)\nfeed(seen, 3)",
        "def feed(g, n): g(n + 2)",
        "def feed(g, n):\n    try: g(0)\n    except BaseException: pass",
    ),
    "finally": (
        "try:\n    try:\n        assert feed(3) == 5\n    finally:\n        feed(-1)\n"
        "except ValueError:\n    pass",
        "def feed(n):\n    if n < 0: raise ValueError\n    return n + 2",
        "def feed(n):\n    if n < 0: raise ValueError",
    ),
}


@pytest.mark.parametrize("name", SWALLOWED)
def test_what_goes_wrong_in_a_test_cannot_be_swallowed_by_the_program(name: str) -> None:
    test, right, liar = SWALLOWED[name]
    problem = _asserts(right, f"{test}\nassert True")
    assert _failed(problem, right, FORM) == []
    assert len(_failed(problem, liar, FORM)) == 1


@pytest.mark.parametrize("base", ["AssertionError", "Exception", "BaseException"])
def test_no_error_of_the_program_catches_the_failure_of_a_test(base: str) -> None:
    test = "try:\n    pop([])\n    assert False\nexcept EmptyError:\n    pass"
    right = (
        "class EmptyError(Exception): pass\ndef pop(x):\n    if not x: raise EmptyError('empty')"
    )
    problem = _asserts(right, test)
    assert _failed(problem, right, FORM) == []
    for error in (f"EmptyError = {base}", f"class EmptyError({base}): pass"):
        assert len(_failed(problem, f"{error}\ndef pop(x): return None", FORM)) == 1


HELPER = "def double(n):\n    return 2 * n\n\n\ndef half(n):\n"


def test_helpers_of_the_prompt_are_not_the_programs_to_write() -> None:
    record = {
        "prompt": f'{HELPER}    """Undo double."""\n',
        "entry_point": "half",
        "canonical_solution": "    return n // 2\n",
        "test": "def check(candidate):\n    assert candidate(double(3)) == 3\n",
    }
    (problem,) = read_problems([record])
    right = "def half(n): return n >> 1"
    liar = "def double(n): return n\ndef half(n): return n"
    assert _failed(problem, problem.solution, FORM) == []
    assert _failed(problem, right, FORM) == []
    assert len(_failed(problem, liar, FORM)) == 1


CROSSING = {
    "Counter": (
        "def top(c):\n    c['a'] += 1\n    return c + type(c)('b')",
        "from collections import Counter\nc = Counter('b')\nassert top(c).most_common(1) == [('b', 2)]"
        "\nassert c == Counter('ab') and c['z'] == 0 and type(top(c)) is Counter",
    ),
    "defaultdict": (
        "def add(d, k, v): d[k].append(v)",
        "from collections import defaultdict\nd = defaultdict(list)\nadd(d, 'a', 1)\nd['b'].append(2)"
        "\nassert d == {'a': [1], 'b': [2]}",
    ),
    "OrderedDict": (
        "def last(d):\n    d.move_to_end('a')\n    return d",
        "from collections import OrderedDict\nd = OrderedDict(a=1, b=2)\n"
        "assert last(d) == OrderedDict(b=2, a=1) and list(d) == ['b', 'a']",
    ),
    "deque": (
        "def f(d, x):\n    d.append(x)\n    return d.maxlen",
        "from collections import deque\nd = deque([1, 2], maxlen=2)\n"
        "assert f(d, 3) == 2 and list(d) == [2, 3]",
    ),
    "bytearray": ("def flip(b): b.reverse()", "b = bytearray(b'ab')\nflip(b)\nassert b == b'ba'"),
    "time zone": (
        "from datetime import datetime, timezone\ndef f(n): return datetime.fromtimestamp(n, timezone.utc)",
        "from datetime import datetime, timezone\nassert f(0) == datetime(1970, 1, 1, tzinfo=timezone.utc)"
        "\nassert f(0) != datetime(1970, 1, 1)",
    ),
    "keyword argument": (
        "def order(numbers): numbers.sort()",
        "x = [2, 1]\norder(numbers=x)\nassert x == [1, 2]",
    ),
    "argument of a call that fails": (
        "def take(x):\n    x.pop()\n    raise IndexError",
        "x = [1]\ntry:\n    take(x)\n    assert False\nexcept IndexError:\n    assert x == []",
    ),
    "permuted rows": (
        "def order(rows):\n    rows.sort()\n    return rows",
        "a, b = [2], [1]\nrows = [a, b]\nassert order(rows) is rows\n"
        "assert rows == [[1], [2]] and rows[0] is b and a == [2]",
    ),
    "argument of an error": (
        "def f(n): raise ValueError([1, 2])",
        "try:\n    f(3)\n    assert False\nexcept ValueError as e:\n    assert e.args == ([1, 2],)",
    ),
    "object with a method clear": (
        "class B:\n    def __init__(self): self.a = [1]\n    def clear(self): self.a = []\n"
        "    def size(self): return len(self.a)\ndef move(b, out): out.append(b.size())",
        "b, out = B(), []\nmove(b, out)\nassert out == [1] and b.size() == 1",
    ),
    "base of an error": (
        "class BankError(Exception): pass\nclass Low(BankError): pass\ndef f(n): raise Low('low')",
        "try:\n    f(1)\n    assert False\nexcept BankError as e:\n    assert type(e) is Low",
    ),
    "base of a class": (
        "class Node:\n    def __init__(self, v): self.v = v\nclass Leaf(Node): pass\nclass Twig: pass\n"
        "def make(v): return Leaf(v)",
        "n = make(3)\nassert n.v == 3 and isinstance(n, Node) and isinstance(n, Leaf)\n"
        "assert issubclass(Leaf, Node) and not isinstance(n, Twig) and not issubclass(Node, Leaf)",
    ),
    "list of a class": (
        "class Stack(list):\n    def push(self, x): self.append(x)\n    def peek(self): return self[-1]",
        "s = Stack()\ns.push(3)\nassert s.peek() == 3",
    ),
}


@pytest.mark.parametrize("name", CROSSING)
def test_what_crosses_between_program_and_test_is_what_it_was(name: str) -> None:
    program, test = CROSSING[name]
    exec(f"{program}\n{test}", {})  # noqa: S102 - our own text, which is right in plain Python
    assert _failed(_asserts(program, test), program, FORM) == []


POINT = "class Point:\n    def __init__(self, x): self.x = x\n    def get(self): return self.x\n"
OTHERWISE = {
    "a subclass": f"{POINT}class Special(Point): pass\ndef make(x): return Special(x)",
    "another class": POINT.replace("Point", "Other") + "def make(x): return Other(x)",
    "a tuple": "from typing import NamedTuple\nclass Point(NamedTuple):\n    x: int\n"
    "    def get(self): return self.x\nmake = Point",
    "a dict": "class Point(dict):\n    x = property(lambda self: self['x'])\n"
    "    def get(self): return self.x\ndef make(x): return Point(x=x)",
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_a_right_program_may_build_its_objects_otherwise(way: str) -> None:
    problem = _asserts(
        f"{POINT}def make(x): return Point(x)", "p = make(3)\nassert p.x == 3 and p.get() == 3"
    )
    assert _failed(problem, OTHERWISE[way], FORM) == []


def test_a_subclass_of_the_error_asked_for_is_such_an_error() -> None:
    right = "class Bad(Exception): pass\ndef f(n): raise Bad"
    problem = _asserts(right, "try:\n    f(1)\n    assert False\nexcept Bad:\n    pass")
    assert (
        _failed(problem, right.replace("raise Bad", "raise type('Worse', (Bad,), {})"), FORM) == []
    )


def test_an_error_that_is_also_a_built_in_one_is_both() -> None:
    right = "class Bad(Exception): pass\nclass Worse(Bad, ValueError): pass\ndef f(n): raise Worse"
    caught = "try:\n    f(1)\n    assert False\nexcept {}:\n    pass"
    problem = _asserts(right, *(caught.format(one) for one in ("Bad", "ValueError", "Worse")))
    assert _failed(problem, right, FORM) == []


OF_ALL_KINDS = """
import sys
Channel = sys.modules["ragen2.sandbox.remote"].Channel
Channel._describe = lambda self, kind: [7, "Lie", ["KeyError", "ValueError", "TypeError"]]
def f(n): raise LookupError
"""


@pytest.mark.parametrize("error", ["KeyError", "ValueError", "TypeError"])
def test_an_error_of_all_kinds_is_none_though_the_program_writes_the_message_itself(
    error: str,
) -> None:
    right = f"def f(n): raise {error}"
    problem = _asserts(right, f"try:\n    f(1)\n    assert False\nexcept {error}:\n    pass")
    assert _failed(problem, right, FORM) == []
    assert len(_failed(problem, OF_ALL_KINDS, FORM)) == 1


FORMS_OF_TESTS = """
import asyncio, unittest
from hello import f
def setUpModule():
    global WANTED
    WANTED = 3
def test_function():
    assert f(1) == 3
class TestPlain:
    def test_in_a_plain_class(self):
        assert f(1) == 3
    class TestWithin:
        def test_in_a_class_within(self):
            assert f(1) == 3
class Mixin:
    n = None
    def test_mixed_in(self):
        self.assertEqual(f(self.n), self.n + 2)
class Base(unittest.TestCase):
    def test_base(self):
        self.assertEqual(f(1), WANTED)
class Tests(Mixin, Base):
    n = 5
    def test_numpy(self):
        import numpy
        self.assertEqual(numpy.array(f(1)), 3)
    async def test_async(self):
        self.assertEqual(f(1), 3)
    def test_logs(self):
        with self.assertLogs():
            f(1)
"""


def test_no_form_of_test_vanishes() -> None:
    """Three are run: the base's for itself and for its heir, and the mixed-in one, for its heir alone."""
    record = {"prompt": "x", "solution_file": "hello.py", "test_code": FORMS_OF_TESTS}
    (problem,) = read_problems([{**record, "solution": "def f(n): return n + 2"}])
    assert (len(problem.cases), problem.num_left_out) == (3, 6)
    assert _failed(problem, problem.solution, FORM) == []


def test_a_file_in_which_no_test_is_found_counts_as_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {
        "test_code": "import unittest\nfrom hello import f\nunittest.main()",
        "solution_file": "hello.py",
    }
    records = [
        {"prompt": "x", **files},
        *({"prompt": p, "tests": ["assert f() == 1"]} for p in "yz"),
    ]
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    problems_of(str(path), held_out_ratio=0.5)
    assert "1 of 3 tests are left out" in caplog.text
    assert "1 of 3 problems" in caplog.text


def test_bare_containers_annotate_puzzles_too() -> None:
    problem = _puzzle("def sat(x: List):\n    return len(x) == 2")
    assert grade("def sol(): return [1, 'a']", problem.cases, Sandbox(QUICK, FORM)).ratio == 1
    assert grade("def sol(): return (1, 2)", problem.cases, Sandbox(QUICK, FORM)).ratio == 0
