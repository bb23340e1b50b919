"""DeepCoder: write a program for a task; hidden tests say how much of it is right."""

from __future__ import annotations

import logging
import re
import textwrap
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from ragen2.envs.base import Easier, Env, Episode, Step, Waits
from ragen2.envs.deepcoder.answers import Problem, grade
from ragen2.envs.deepcoder.formats import problems_of
from ragen2.envs.deepcoder.problems import own_problem
from ragen2.envs.toolkit.records import TaskSet
from ragen2.envs.toolkit.wording import pick
from ragen2.errors import EnvError
from ragen2.sandbox import Demand, ResourceLimits, Sandbox, Status, best_isolation

MAX_PROGRAM_CHARACTERS = 200_000
_BY_THE_MACHINE: tuple[Status, ...] = ("time", "unrun", "crash")
"""Endings that another machine, or this one at another time, might have spared a program."""
_log = logging.getLogger(__name__)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
_PHRASES = {
    "ok": "a wrong answer",
    "error": "an error",
    "syntax": "no Python",
    "time": "too slow",
    "output": "too much output",
    "disk": "too much written",
    "crash": "a crash",
    "unrun": "no time left",
}
_GUESSES: dict[str, tuple[str, ...]] = {
    "stdin": ("print(0)", "print(input())", "print(len(input().split()))", "print(True)"),
    "call": ("return 0", "return args[0]", "return len(args)", "return True"),
}


class DeepCoder(Env):
    """Write a program, once; the reward is the share of hidden tests that it passes."""

    kind: Literal["DeepCoder"] = "DeepCoder"
    max_turns: int = Field(1, ge=1, description="replies the agent may write in one episode")
    max_actions: int = Field(1, ge=1, description="actions the environment takes in one episode")
    data: str = Field("", description="problems: file, folder or hub id; empty: generated ones")
    held_out_data: str = Field("", description="problems for held-out seeds; empty: a part of data")
    form: Literal["any", "stdin", "call"] = Field(
        "any", description="only programs (stdin), only functions (call), or any problem"
    )
    min_level: int = Field(1, ge=1, le=5, description="easiest problems to give, 1 to 5")
    max_level: int = Field(5, ge=1, le=5, description="hardest problems to give, 1 to 5")
    max_tests: int = Field(20, ge=0, description="most tests a problem of a file; 0: all of them")
    held_out_ratio: float = Field(
        0.2, gt=0.0, lt=1.0, description="part of the problems held out where no split is named"
    )
    seconds_per_test: float = Field(1.0, gt=0.0, le=60.0, description="computing time of one test")
    seconds_per_program: float = Field(
        3.0, gt=0.0, le=600.0, description="computing time of all tests of a program together"
    )
    memory_mb: int = Field(512, ge=64, description="memory that a program may use")
    isolation: Demand = Field(
        "auto",
        description="strong: bubblewrap; weak: Landlock; container: gVisor or runc; auto: the first",
    )

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.held_out_data and not self.data:
            raise ValueError("held_out_data needs data to train on; set data too")
        if self.min_level > self.max_level:
            raise ValueError(
                f"min_level {self.min_level} is above max_level {self.max_level}; exchange them"
            )
        return self

    one_action: ClassVar[bool] = True
    thoughts: ClassVar[str] = "how the program will work, in two or three sentences"
    reply_tokens: ClassVar[int] = 1024
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    reward_kind: ClassVar[Literal["binary", "dense"]] = "dense"

    @property
    def instruction(self) -> str:
        """Rules and a worked reply."""
        return (
            f"{self.rules} "
            "Example: <think>read two numbers and print their sum</think>"
            "<answer>a, b = map(int, input().split())\nprint(a + b)</answer>"
        )

    @property
    def rules(self) -> str:
        """What a program must be, and what it is paid for."""
        return (
            "You solve programming tasks in Python 3 with its standard library. Write the whole "
            "program: either it reads standard input and prints the answer, or it defines the "
            "function asked for. Hidden tests run it; the reward is the share that passes."
        )

    @property
    def answer_form(self) -> str:
        """A program."""
        return "the whole program"

    @property
    def waits_for(self) -> Waits:
        """Programs run in sandboxes of their own."""
        return "cores"

    @property
    def limits(self) -> ResourceLimits:
        """What a program may use."""
        return ResourceLimits(self.seconds_per_test, self.seconds_per_program, self.memory_mb)

    @property
    def easier(self) -> Easier:
        """Generated problems up to a lower level."""
        return tuple(
            {"min_level": min(self.min_level, most), "max_level": most}
            for most in range(1, self.max_level if not self.data else 1)
        )

    def start(self, seed: int, luck: int) -> CodeEpisode:
        """The problem of ``seed``; nothing in it depends on luck."""
        del luck
        best_isolation(self.isolation)  # what cannot be had is reported before any play
        return CodeEpisode(self, _problem(self, seed))


def extract_program(reply: str) -> str:
    """The program in a reply: the last fenced block that is not empty, else all of it.

    Space around it does not count, nor does indenting the whole of it or its first line.
    """
    pieces = _FENCE.split(reply.replace("\r\n", "\n"))
    fenced = [piece for piece in pieces[1::2] if piece.strip()]
    return textwrap.dedent(fenced[-1] if fenced else "".join(pieces)).strip()


class CodeEpisode(Episode):
    """One task and one program for it."""

    def __init__(self, env: DeepCoder, problem: Problem) -> None:
        self.env = env
        self.problem = problem
        self._result = ""
        self._solved = False

    @property
    def observation(self) -> str:
        """The task; once a program has run, how many tests it passed."""
        return self._result or self.problem.statement

    def step(self, action: str) -> Step:
        """Run the program on the hidden tests. Text that is not Python passes none of them."""
        if self._result:
            return Step(0.0, True, solved=self._solved, effective=False)
        program = extract_program(action)
        if not program.strip() or len(program) > MAX_PROGRAM_CHARACTERS:
            return Step(0.0, False, valid=False, effective=False)
        passed, failure = _graded(self.problem, program, self.env.limits, self.env.isolation)
        self._solved = all(passed)
        self._result = f"Tests passed: {sum(passed)} of {len(passed)}."
        if not self._solved:
            self._result += f" First failure: {_PHRASES[failure]}."
        return Step(sum(passed) / len(passed), True, self._solved)

    def expert(self) -> tuple[str, ...]:
        """The reference solution; nothing where the data have none."""
        return () if self._result or not self.problem.solution else (self.problem.solution,)

    def random_action(self, rng: np.random.Generator) -> str:
        """A short program of the right form that guesses."""
        guess = pick(rng, *_GUESSES[self.problem.form])
        if self.problem.form == "stdin":
            return guess
        return f"def {self.problem.entry}(*args):\n    {guess}"

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """What is asked for, how to get it, and in which form."""
        del actions
        summary = self.problem.summary.strip().rstrip(".")
        if not self.problem.idea:
            parts = [f"{pick(rng, 'The task:', 'I am asked this:', 'To do:')} {summary}."]
        else:
            parts = [f"{pick(rng, 'The task asks for', 'Wanted:', 'I need')} {summary}."]
            parts.append(f"{pick(rng, 'Idea:', 'Plan:', 'I can do this:')} {self.problem.idea}.")
        if self.problem.form == "stdin":
            parts.append(pick(rng, "I read the input and print it.", "Read, compute, print."))
        else:
            parts.append(f"{pick(rng, 'I write', 'I define')} {self.problem.entry}.")
        return " ".join(parts)


@dataclass(slots=True, eq=False)
class _Verdict:
    """What is known about one program; whoever asks first finds out, the others wait for that."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    found: tuple[tuple[bool, Status], ...] | None = None


_verdicts_lock = threading.Lock()


@lru_cache(maxsize=1024)
def _verdict(problem: Problem, program: str, limits: ResourceLimits, demand: Demand) -> _Verdict:
    return _Verdict()


def _graded(
    problem: Problem, program: str, limits: ResourceLimits, demand: Demand
) -> tuple[tuple[bool, ...], Status]:
    """Which tests ``program`` passes and how it first fails: the same text always gets the same.

    That it first fails with ``ok`` means: by a wrong answer.
    """
    results = _results(problem, program, limits, demand)
    is_in_python = problem.solution and any(case.given.check for case in problem.cases)
    counted = _counted(problem, limits, demand) if is_in_python else tuple(range(len(results)))
    passed = tuple(results[index][0] for index in counted)
    failures = (results[index][1] for index in counted if not results[index][0])
    return passed, next(failures, "ok")


def _results(
    problem: Problem, program: str, limits: ResourceLimits, demand: Demand
) -> tuple[tuple[bool, Status], ...]:
    """Of each test, whether ``program`` passes it and how it ended."""
    with _verdicts_lock:  # two threads that both miss would otherwise get two verdicts
        verdict = _verdict(problem, program, limits, demand)
    with verdict.lock:
        if verdict.found is None:
            sandbox = Sandbox(limits, best_isolation(demand))
            result = grade(program, problem.cases, sandbox, problem.prelude)
            statuses = (outcome.status for outcome in result.outcomes)
            verdict.found = tuple(zip(result.passed, statuses, strict=True))
        return verdict.found


@lru_cache(maxsize=1024)
def _counted(problem: Problem, limits: ResourceLimits, demand: Demand) -> tuple[int, ...]:
    """The tests that count: of those written in Python, not the ones that the problem's own solution fails.

    One that it has no time for counts: a busy machine decides nothing. Where none would be left, all count.
    """
    every = tuple(range(len(problem.cases)))
    results = _results(problem, problem.solution, limits, demand)
    refuses = [
        bool(case.given.check) and not passed and status not in _BY_THE_MACHINE
        for case, (passed, status) in zip(problem.cases, results, strict=True)
    ]
    counted = tuple(index for index in every if not refuses[index])
    if any(refuses):
        _log.warning(
            "problem %s: its own solution fails %d of %d tests, %s",
            problem.name,
            sum(refuses),
            len(every),
            "which are left out" if counted else "which count all the same: there are no others",
        )
    return counted or every


def _problem(env: DeepCoder, seed: int) -> Problem:
    wanted = (env.form, env.min_level, env.max_level)
    if env.data:
        files = (env.data, env.held_out_data)
        return _file_problems(files, env.max_tests, env.held_out_ratio, wanted).pick(seed)
    return own_problem(seed, env.held_out_ratio, env.form, (env.min_level, env.max_level))


@lru_cache(maxsize=8)
def _file_problems(
    files: tuple[str, str], max_tests: int, held_out_ratio: float, wanted: tuple[str, int, int]
) -> TaskSet[Problem]:
    """Problems of files. The split comes first, so that all settings agree on it."""
    problems = problems_of(*files, max_tests=max_tests, held_out_ratio=held_out_ratio)
    return TaskSet(_chosen(problems.training, wanted), _chosen(problems.held_out, wanted))


def _chosen(problems: tuple[Problem, ...], wanted: tuple[str, int, int]) -> tuple[Problem, ...]:
    """Problems of the wanted form and levels; one of unknown level counts as any."""
    form, low, high = wanted
    found = tuple(
        problem
        for problem in problems
        if (problem.level == 0 or low <= problem.level <= high) and form in ("any", problem.form)
    )
    if not found:
        raise EnvError(
            f"no problem has form {form!r} and a level from {low} to {high}; widen "
            "form, min_level or max_level"
        )
    return found
