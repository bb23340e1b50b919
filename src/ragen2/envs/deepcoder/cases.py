"""A programming problem and how a program is graded on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ragen2.envs.deepcoder.answers import same_text, same_value
from ragen2.sandbox import Given, ProgramOutcome, Sandbox, Status

Form = Literal["stdin", "call"]

_JUDGE_NAMES = (
    "from decimal import Decimal\n"
    "from fractions import Fraction\n"
    "inf = float('inf')\n"
    "nan = float('nan')\n"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One hidden test: what the program is given, and the answers that count as right."""

    given: Given
    accepted: tuple[Any, ...] = ()
    judge: str = ""
    """A Python expression over ``answers``, for what equality cannot say. Judged in a second
    sandbox, where there is no trace of the program but its answers."""
    judge_setup: str = ""
    """Python that the judge runs first."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A task, its hidden tests and, where there is one, a program that solves it.

    Two problems are equal only if they are the same object, so that results can be kept by problem.
    """

    name: str
    statement: str
    form: Form
    cases: tuple[Case, ...]
    solution: str = ""
    summary: str = ""
    """What is asked for, in a few words."""
    idea: str = ""
    """How to solve it, in half a sentence."""
    level: int = 0
    """1 (easy) to 5; 0: unknown."""
    entry: str = ""
    """The function to write, in the call form."""
    prelude: str = ""
    """Imports that a program may rely on without writing them."""
    split: str = ""
    """The part of its data set that the problem belongs to, where that says."""


@dataclass(frozen=True, slots=True)
class Grade:
    """How a program did."""

    passed: tuple[bool, ...]
    outcomes: tuple[ProgramOutcome, ...]

    @property
    def ratio(self) -> float:
        """Share of the tests passed."""
        return sum(self.passed) / len(self.passed)

    @property
    def first_failure(self) -> Status:
        """How the first test that was not passed ended; ``ok`` means with a wrong answer."""
        pairs = zip(self.passed, self.outcomes, strict=True)
        return next((outcome.status for passed, outcome in pairs if not passed), "ok")


def grade(program: str, cases: Sequence[Case], sandbox: Sandbox, prelude: str = "") -> Grade:
    """Run ``program`` on every case and compare its answers with the accepted ones here."""
    outcomes = sandbox.run(program, [case.given for case in cases], prelude)
    passed = [_is_right(case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]
    doubtful = [
        index
        for index, (case, outcome) in enumerate(zip(cases, outcomes, strict=True))
        if case.judge and outcome.status == "ok"
    ]
    if doubtful:
        verdicts = sandbox.run("", [_judgement(cases[i], outcomes[i]) for i in doubtful])
        for index, verdict in zip(doubtful, verdicts, strict=True):
            passed[index] = verdict.status == "ok" and verdict.values == (True,)
    return Grade(tuple(passed), tuple(outcomes))


def _is_right(case: Case, outcome: ProgramOutcome) -> bool:
    if outcome.status != "ok" or case.judge:
        return False
    if case.given.probes is None:
        return any(same_text(answer, outcome.stdout) for answer in case.accepted)
    if len(outcome.values) != len(case.given.probes):
        return False
    found = outcome.values[0] if len(outcome.values) == 1 else outcome.values
    return any(same_value(answer, found) for answer in case.accepted)


def _judgement(case: Case, outcome: ProgramOutcome) -> Given:
    try:
        answers = repr(outcome.values)
    except (ValueError, RecursionError):  # an integer too long to print, or nesting too deep
        answers = "None"
    setup = f"{_JUDGE_NAMES}{case.judge_setup}\nanswers = {answers}\n"
    return Given(probes=(f"bool({case.judge})",), setup=setup)
