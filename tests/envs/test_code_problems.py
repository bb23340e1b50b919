"""Our own programming problems: enough, solvable, tested well, and the same everywhere."""

import hashlib
import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from ragen2.envs.deepcoder.cases import Problem, grade
from ragen2.envs.deepcoder.problems import FAMILIES, own_problem, problem_names
from ragen2.sandbox import Sandbox

SHORTCUTS = {
    "stdin": ("print()", "print(0)", "print(input())", "print(1)", "print(True)", "print(False)"),
    "call": ("return None", "return 0", "return args[0]", "return 1", "return True", "return []"),
}


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [own_problem(name) for name in problem_names()]


def _program(problem: Problem, body: str) -> str:
    return body if problem.form == "stdin" else f"def {problem.entry}(*args):\n    {body}"


def _ratios(programs: list[tuple[Problem, str]]) -> dict[str, float]:
    """Share of tests passed by one program for each problem, two at a time."""
    sandbox = Sandbox()
    with ThreadPoolExecutor(2) as pool:
        grades = pool.map(lambda pair: grade(pair[1], pair[0].cases, sandbox), programs)
        return {
            problem.name: grade.ratio for (problem, _), grade in zip(programs, grades, strict=True)
        }


def test_there_are_more_than_a_hundred_problems_of_every_level_and_both_forms(
    problems: list[Problem],
) -> None:
    assert len({problem.name for problem in problems}) == len(problems) >= 150
    assert set(Counter(problem.level for problem in problems)) == {1, 2, 3, 4, 5}
    assert min(Counter(problem.form for problem in problems).values()) >= 60


def test_every_problem_has_at_least_eight_different_hidden_tests(problems: list[Problem]) -> None:
    for problem in problems:
        inputs = {repr(case.given) for case in problem.cases}
        assert len(inputs) == len(problem.cases) >= 8, problem.name


def test_every_family_names_at_least_four_adversarial_cases() -> None:
    assert min(len(family.edges) for family in FAMILIES) >= 4


def test_shown_examples_are_not_among_the_hidden_tests(problems: list[Problem]) -> None:
    for problem in problems:
        assert "Example" in problem.statement, problem.name
        for case in problem.cases:
            if problem.form == "stdin":
                assert f"Example input:\n{case.given.stdin}Example" not in problem.statement
            else:
                ((name, arguments),) = case.given.probes or ()
                call = f"{name}({', '.join(map(repr, arguments))})"
                assert f"Example: {call} ==" not in problem.statement


def test_every_reference_solution_passes_all_its_tests(problems: list[Problem]) -> None:
    ratios = _ratios([(problem, problem.solution) for problem in problems])
    assert [name for name, ratio in ratios.items() if ratio < 1] == []


def test_no_shortcut_solves_a_problem(problems: list[Problem]) -> None:
    ratios = _ratios(
        [
            (problem, _program(problem, SHORTCUTS[problem.form][index % 6]))
            for index, problem in enumerate(problems)
        ]
    )
    assert [name for name, ratio in ratios.items() if ratio == 1] == []


def test_a_quadratic_program_is_right_but_a_hasty_one_is_caught() -> None:
    problem = own_problem("kth_largest-second-2")
    hasty = _program(problem, "a = args[0]\n    return sorted(a)[-2]")
    if problem.form == "stdin":
        hasty = "a = list(map(int, input().split()))\nprint(sorted(a)[-2])"
    ratio = grade(hasty, problem.cases, Sandbox()).ratio
    assert 0 < ratio < 1


def test_statements_are_short_enough_for_a_small_context(problems: list[Problem]) -> None:
    assert max(len(problem.statement) for problem in problems) <= 800


def test_texts_have_no_unfilled_parameter_and_no_separator(problems: list[Problem]) -> None:
    for problem in problems:
        text = problem.statement + problem.solution + problem.idea + problem.summary
        assert "$" not in text, problem.name
        assert "||" not in text, problem.name


def _digest() -> str:
    cases = [
        [repr(own_problem(name).cases), own_problem(name).statement] for name in problem_names()
    ]
    return hashlib.sha256(json.dumps(cases).encode()).hexdigest()


def test_problems_are_the_same_in_another_process() -> None:
    code = "import test_code_problems; print(test_code_problems._digest())"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == _digest()
