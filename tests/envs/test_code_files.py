"""Programming problems in the formats of their publishers."""

import base64
import builtins
import json
import pickle
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ragen2.envs.deepcoder.answers import Problem, grade
from ragen2.envs.deepcoder.formats import problems_of, read_problems, read_tests
from ragen2.envs.toolkit.records import read_records
from ragen2.errors import EnvError
from ragen2.sandbox import ResourceLimits, Sandbox
from ragen2.sandbox.run import _for_program

STDIN_TESTS = [{"input": "1 2\n", "output": "3\n"}, {"input": "-1 1\n", "output": "0\n"}]
SUM = "a, b = map(int, input().split())\nprint(a + b)"
SOLUTION_CLASS = "class Solution:\n    def total(self, a: List[int]) -> int:\n        return sum(a)"
FUNCTION_TESTS = [
    {"input": "[1, 2]", "output": "3", "testtype": "functional"},
    {"input": "[]", "output": "0", "testtype": "functional"},
]
PACKED = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(FUNCTION_TESTS)))).decode()

RECORDS: dict[str, tuple[dict[str, object], str]] = {
    "MBPP": (
        {
            "task_id": 602,
            "text": "Write a function to double a number.",
            "code": "def double(x):\r\n    return 2 * x",
            "test_list": ["assert double(2) == 4", "assert double(0) == 0"],
            "test_setup_code": "",
            "challenge_test_list": [],
        },
        "call",
    ),
    "sanitized MBPP": (
        {
            "task_id": 12,
            "prompt": "Write a function to find the circle's area.",
            "code": "import math\ndef area(r):\n    return math.pi * r * r",
            "test_imports": ["import math"],
            "test_list": [
                "assert math.isclose(area(1), 3.14159, rel_tol=0.001)",
                "assert not area(0)",
                "assert set([area(0)]) == set([0])",
            ],
        },
        "call",
    ),
    "TACO on standard input": (
        {
            "question": "Add two numbers.",
            "solutions": json.dumps([SUM]),
            "input_output": json.dumps({"inputs": ["1 2\n", "5 5"], "outputs": ["3\n", "10"]}),
            "difficulty": "EASY",
            "starter_code": "",
        },
        "stdin",
    ),
    "TACO with a function": (
        {
            "question": "Add the numbers.",
            "solutions": ["def total(a):\n    return sum(a)"],
            "input_output": {"inputs": [[[1, 2]], [[]]], "outputs": [[3], [0]], "fn_name": "total"},
            "starter_code": "def total(a):",
        },
        "call",
    ),
    "PrimeIntellect": (
        {
            "prompt": "Add two numbers.",
            "gold_standard_solution": f"```python\n{SUM}\n```",
            "verification_info": json.dumps(
                {
                    "language": "python",
                    "test_cases": [
                        {"fn_name": None, "type": "stdin_stdout", **test} for test in STDIN_TESTS
                    ],
                }
            ),
        },
        "stdin",
    ),
    "PrimeIntellect with a function": (
        {
            "prompt": "Add the numbers.",
            "gold_standard_solution": "def total(a):\n    return sum(a)",
            "verification_info": {
                "test_cases": [
                    {"type": "function_call", "fn_name": "total", "input": [[1, 2]], "output": [3]}
                ]
            },
        },
        "call",
    ),
    "LiveCodeBench": (
        {
            "question_title": "Total",
            "question_content": "Add the numbers.",
            "starter_code": "class Solution:\n    def total(self, a: List[int]) -> int:\n        ",
            "public_test_cases": json.dumps(FUNCTION_TESTS[:1]),
            "private_test_cases": PACKED,
            "metadata": json.dumps({"func_name": "total"}),
            "difficulty": "medium",
            "solution": SOLUTION_CLASS,
        },
        "call",
    ),
    "DeepCoder": (
        {
            "problem": "Add two numbers.",
            "solutions": [f"```python\n{SUM}\n```"],
            "tests": json.dumps([{**test, "testtype": "stdin"} for test in STDIN_TESTS]),
            "starter_code": "",
            "metadata": {},
        },
        "stdin",
    ),
    "DeepCoder with a function": (
        {
            "problem": "Add the numbers.",
            "solutions": [SOLUTION_CLASS],
            "tests": [{**test, "metadata": {"func_name": "total"}} for test in FUNCTION_TESTS],
            "starter_code": "class Solution:\n    def total(self, a: List[int]) -> int:\n        ",
        },
        "call",
    ),
    "CodeContests": (
        {
            "description": "Add two numbers.",
            "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
            "private_tests": {"input": ["4 4\n"], "output": ["8\n"]},
            "solutions": {"language": [2, 3], "solution": ["int main() {}", SUM]},
        },
        "stdin",
    ),
    "HumanEval": (
        {
            "task_id": "HumanEval/0",
            "prompt": 'from typing import List\n\n\ndef total(a: List[int]) -> int:\n    """Add up."""\n',
            "entry_point": "total",
            "canonical_solution": "    return sum(a)\n",
            "test": (
                "\n\nMETADATA = {\n    'author': 'x'\n}\n\n\ndef check(candidate):\n"
                "    assert candidate([1, 2]) == 3\n"
                "    for n in range(5):\n        assert candidate([n]) == n\n"
            ),
        },
        "call",
    ),
    "P3": (
        {
            "sat": "def sat(x: int, a=10):\n    return x * x == a * a and x < 0",
            "sol_header": "def sol(a=10):",
            "docstring": "Find the negative root.",
            "solution": "def sol(a=10):\n    return -a",
        },
        "call",
    ),
    "Exercism": (
        {
            "prompt": "Greet.",
            "solution_file": "hello.py",
            "starter_code": "def greet(name):\n    pass",
            "solution": "def greet(name):\n    if not name: raise ValueError('who')\n"
            "    return 'Hi ' + name",
            "test_code": (
                "import unittest\nfrom hello import greet as say\n"
                "class T(unittest.TestCase):\n"
                "    def test_name(self):\n"
                "        expected = 'Hi Ann'\n"
                "        self.assertEqual(say('Ann'), expected)\n"
                "    def test_empty(self):\n"
                "        with self.assertRaises(ValueError) as err:\n"
                "            say('')\n"
                "        self.assertEqual(err.exception.args[0], 'who')\n"
            ),
        },
        "call",
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_becomes_a_problem_that_its_solution_solves(name: str) -> None:
    record, form = RECORDS[name]
    (problem,) = read_problems([record])
    assert problem.form == form
    assert grade(problem.solution, problem.cases, Sandbox(), problem.prelude).ratio == 1


@pytest.mark.parametrize("name", RECORDS)
def test_a_wrong_program_does_not_solve_it(name: str) -> None:
    record, form = RECORDS[name]
    (problem,) = read_problems([record])
    wrong = "print(77)" if form == "stdin" else f"def {problem.entry}(*args):\n    return 77"
    assert grade(wrong, problem.cases, Sandbox()).ratio < 1


@pytest.mark.parametrize("name", RECORDS)
def test_expected_answers_are_not_in_what_the_program_is_given(name: str) -> None:
    (problem,) = read_problems([RECORDS[name][0]])
    for case in problem.cases:
        seen = repr(_for_program(case.given))
        assert "accepted" not in seen
        assert "Hi Ann" not in seen
        assert "isclose" not in seen
        assert "sat" not in seen


def test_a_pickle_that_does_more_than_hold_text_is_refused() -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return print, ("unpickled",)

    packed = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    with pytest.raises(ValueError, match="neither JSON nor a compressed pickle"):
        read_tests(packed)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "x"}, "problem 0 has the fields prompt, none of which holds tests; known: sat"),
        ({"prompt": "x", "tests": "{"}, r"problem 0 cannot be read \(tests are neither JSON"),
        ({"prompt": "x", "tests": ["print(1)"]}, "is not an assert statement"),
        ({"tests": [{"input": "", "output": ""}]}, "it has none of the fields problem"),
        ({"prompt": "x", "input_output": {"a": 1}}, "tests have a, not inputs and outputs"),
    ],
)
def test_a_record_that_cannot_be_read_says_why(record: dict[str, object], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        read_problems([record])


def test_long_lists_of_tests_are_thinned_evenly(tmp_path: Path) -> None:
    tests = [{"input": str(i), "output": str(i)} for i in range(101)]
    lines = [json.dumps({"prompt": f"Echo {n}.", "tests": tests}) for n in range(4)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    problems = problems_of(str(tmp_path / "p.jsonl"), max_tests=5, held_out_ratio=0.25)
    assert [case.given.stdin for case in problems.training[0].cases] == [
        "0",
        "25",
        "50",
        "75",
        "100",
    ]


def test_problems_with_the_same_statement_never_fall_on_both_sides(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"Echo {n % 10}.", "tests": STDIN_TESTS}) for n in range(50)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    problems = problems_of(str(tmp_path / "p.jsonl"), held_out_ratio=0.3)
    training = {problem.statement for problem in problems.training}
    held_out = {problem.statement for problem in problems.held_out}
    assert (len(training), len(held_out)) == (7, 3)
    assert training.isdisjoint(held_out)


def _solved(problems: list[Problem]) -> list[str]:
    """Names of the problems whose own solution passes all tests, two at a time.

    One that does not is tried once more alone, with more time: the clock of a busy machine counts too.
    """

    def passes(problem: Problem, seconds: float = 4.0) -> bool:
        limits = ResourceLimits(seconds_per_test=seconds, seconds_per_program=5 * seconds)
        return grade(problem.solution, problem.cases, Sandbox(limits), problem.prelude).ratio == 1

    with ThreadPoolExecutor(2) as pool:
        solved = list(pool.map(passes, problems))
    pairs = zip(problems, solved, strict=True)
    return [one.name for one, is_solved in pairs if is_solved or passes(one, 20.0)]


@pytest.mark.slow
def test_all_mbpp_reference_solutions_pass(real_data: Callable[[str], Path]) -> None:
    problems = read_problems(read_records(str(real_data("deepcoder/mbpp.jsonl.gz"))))
    assert len(problems) == 972
    assert len(_solved(problems)) == 972


def test_the_splits_of_mbpp_are_kept(real_data: Callable[[str], Path]) -> None:
    problems = problems_of(str(real_data("deepcoder/mbpp.jsonl.gz")))
    assert {problem.split for problem in problems.training} == {"train", "prompt"}
    assert {problem.split for problem in problems.held_out} == {"test", "validation"}
    assert len(problems.held_out) == 589


def test_exercism_puzzles_and_contest_problems_can_be_read(
    real_data: Callable[[str], Path],
) -> None:
    sizes = {}
    for name in ("exercism_python", "p3_puzzles", "codecontests_test"):
        problems = read_problems(read_records(str(real_data(f"deepcoder/{name}.jsonl.gz"))))
        sizes[name] = len(problems)
        sample = [problem for problem in problems if problem.solution][::12]
        assert _solved(sample) == [problem.name for problem in sample]
    assert sizes == {"exercism_python": 126, "p3_puzzles": 385, "codecontests_test": 165}


def test_what_starter_code_takes_for_granted_hides_nothing_of_python() -> None:
    (problem,) = read_problems([RECORDS["LiveCodeBench"][0]])
    space: dict[str, object] = {}
    exec(problem.prelude, space)  # noqa: S102 - our own text
    known = {name: getattr(builtins, name) for name in space if hasattr(builtins, name)}
    assert {name: space[name] for name in known if not name.startswith("__")} == {"pow": pow}
