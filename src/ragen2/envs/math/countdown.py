"""Countdown: join given numbers, each used once, into an expression that equals a target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from ragen2.envs.base import HELD_OUT_SEEDS, Easier, Env, Episode, Step, belongs
from ragen2.envs.math import expressions
from ragen2.envs.math.expressions import Expression, ExpressionError, Number, Operation
from ragen2.envs.toolkit.records import (
    HeldOutData,
    HeldOutRatio,
    Record,
    TaskSet,
    load_task_set,
    read_records,
    require_fields,
    require_training_data,
)
from ragen2.envs.toolkit.wording import pick
from ragen2.errors import EnvError
from ragen2.seeding import stream

MAX_NUMBERS = 6
MAX_DRAWS = 100_000
MAX_UNSOLVABLE = 1000
"""Records in a row without a solution after which the file is given up."""
_CLAIM = re.compile(r"=\s*[-−+]?[0-9]{1,20}(?:[./][0-9]{1,20})?\s*\Z", re.ASCII)


def _check_operations(text: str) -> str:
    if not text or len(set(text)) < len(text) or set(text) - set(expressions.OPERATIONS):
        raise ValueError(f"must be some of {expressions.OPERATIONS}, each once, got {text!r}")
    return text


@dataclass(frozen=True, slots=True)
class CountdownTask:
    """Numbers, the target, and one expression that joins them to it, where known."""

    numbers: tuple[int, ...]
    target: int
    solution: str = ""

    @property
    def names(self) -> tuple[str]:
        """What makes two tasks the same: the numbers in any order, and the target."""
        return (f"{sorted(self.numbers)} {self.target}",)


class Countdown(Env):
    """Reach a target with the given numbers."""

    kind: Literal["Countdown"] = "Countdown"
    max_turns: int = Field(1, ge=1, description="replies the agent may write in one episode")
    max_actions: int = Field(1, ge=1, description="actions the environment takes in one episode")
    min_numbers: int = Field(3, ge=2, le=MAX_NUMBERS, description="least count of given numbers")
    max_numbers: int = Field(4, ge=2, le=MAX_NUMBERS, description="greatest count of given numbers")
    low: int = Field(1, ge=1, description="least number that may be given")
    high: int = Field(99, ge=1, le=10_000, description="greatest number that may be given")
    max_target: int = Field(100, ge=1, le=1_000_000, description="greatest target")
    operations: Annotated[str, AfterValidator(_check_operations)] = Field(
        expressions.OPERATIONS, description="operations an expression may use"
    )
    numbers_reward: float = Field(
        0.1, ge=0.0, lt=1.0, description="reward for the right numbers with a wrong value"
    )
    data: str = Field("", description="records with nums and target: file, folder or hub id")
    held_out_data: HeldOutData = ""
    held_out_ratio: HeldOutRatio = 0.1

    one_action: ClassVar[bool] = True
    thoughts: ClassVar[str] = "your attempts and their results, in a few short lines"
    reply_tokens: ClassVar[int] = 300
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    reward_kind: ClassVar[Literal["binary", "dense"]] = "dense"

    @model_validator(mode="after")
    def _ranges_are_ordered(self) -> Self:
        if self.min_numbers > self.max_numbers:
            raise ValueError(
                f"min_numbers {self.min_numbers} is over max_numbers {self.max_numbers}"
            )
        if self.low > self.high:
            raise ValueError(f"low {self.low} is over high {self.high}")
        require_training_data(self.data, self.held_out_data)
        return self

    @property
    def instruction(self) -> str:
        """Rules and a worked reply that uses only the allowed operations."""
        first, last = self.operations[0], self.operations[-1]
        example = Operation(last, Operation(first, Number(8), Number(4)), Number(2))
        value = expressions.evaluate(example)
        return (
            f"{self.rules} Example for 2 4 8 and target {value}: "
            f"<think>{', '.join(expressions.working(example))}</think>"
            f"<answer>{expressions.write(example)}</answer>"
        )

    @property
    def rules(self) -> str:
        """What an expression may hold and must equal."""
        return (
            f"Join the numbers with {' '.join(self.operations)} and brackets into an expression "
            "that equals the target. Use every number exactly once and no other number."
        )

    @property
    def answer_form(self) -> str:
        """An expression."""
        return "one expression, without an equals sign"

    @property
    def easier(self) -> Easier:
        """Fewer numbers."""
        return tuple(
            {"min_numbers": min(self.min_numbers, most), "max_numbers": most}
            for most in range(2, self.max_numbers if not self.data else 2)
        )

    def start(self, seed: int, luck: int) -> CountdownEpisode:
        """The task of ``seed``; nothing here depends on luck."""
        del luck
        if not self.data:
            return CountdownEpisode(self, draw_task(self, seed))
        tasks = load_tasks(self.data, self.held_out_data, self.held_out_ratio)
        return CountdownEpisode(self, _solvable_task(tasks, seed, self.operations))


@lru_cache(maxsize=4096)
def draw_task(env: Countdown, seed: int) -> CountdownTask:
    """Join random numbers by random operations until the result can be a target.

    Every value on the way is a positive whole number. Held-out seeds and the others draw from two
    parts of all tasks that never meet.
    """
    rng = stream("Countdown", "task", seed)
    for _ in range(MAX_DRAWS):
        count = int(rng.integers(env.min_numbers, env.max_numbers + 1))
        numbers = tuple(int(number) for number in rng.integers(env.low, env.high + 1, size=count))
        joined = _join(numbers, env.operations, rng)
        if joined is None or joined[0] > env.max_target:
            continue
        task = CountdownTask(numbers, joined[0], expressions.write(joined[1]))
        if belongs(seed, *task.names):
            return task
    raise EnvError(
        f"no Countdown task with {env.min_numbers} to {env.max_numbers} numbers from {env.low} to "
        f"{env.high}, operations {env.operations} and a target up to {env.max_target} in "
        f"{MAX_DRAWS} draws; widen the range, allow more operations or raise max_target"
    )


def _join(
    numbers: tuple[int, ...], operations: str, rng: np.random.Generator
) -> tuple[int, Expression] | None:
    """Join two parts at a time; None when the operation drawn does not give a positive integer."""
    parts: list[tuple[int, Expression]] = [(number, Number(number)) for number in numbers]
    while len(parts) > 1:
        a, left = parts.pop(int(rng.integers(len(parts))))
        b, right = parts.pop(int(rng.integers(len(parts))))
        symbol = operations[int(rng.integers(len(operations)))]
        if (symbol == "-" and a <= b) or (symbol == "/" and a % b):
            return None
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[symbol]
        parts.append((value, Operation(symbol, left, right)))
    return parts[0]


@lru_cache(maxsize=4)
def load_tasks(data: str, held_out_data: str, held_out_ratio: float) -> TaskSet[CountdownTask]:
    """Tasks of record files in two parts that share none."""
    return load_task_set(
        _read_tasks,
        lambda task: task.names,
        data=data,
        held_out_data=held_out_data,
        held_out_ratio=held_out_ratio,
    )


def _read_tasks(source: str) -> Iterator[CountdownTask]:
    for record in read_records(source):
        require_fields(record, ("target",), source)
        numbers = _whole_numbers(record.get("nums", record.get("numbers")))
        target = _whole_numbers([record["target"]])
        if not 2 <= len(numbers) <= MAX_NUMBERS or len(target) != 1:
            raise EnvError(
                f"a record of {source} is no Countdown task: {_shortened(record)}; it needs nums, "
                f"a list of 2 to {MAX_NUMBERS} whole numbers from 0, and target, a whole number"
            )
        yield CountdownTask(numbers, target[0], str(record.get("solution") or ""))


def _whole_numbers(value: Any) -> tuple[int, ...]:
    """Whole numbers of a list, or of its text in a table; empty when there is anything else."""
    texts = re.findall(r"[^\s,\[\]]+", value) if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(re.fullmatch(r"[0-9]{1,9}", str(t)) for t in texts):
        return ()
    return tuple(int(text) for text in texts)


def _shortened(record: Record) -> str:
    return str({name: record.get(name) for name in ("nums", "target")})[:200]


def _solvable_task(tasks: TaskSet[CountdownTask], seed: int, operations: str) -> CountdownTask:
    """The task of ``seed``, or the next one that the allowed operations can solve."""
    for offset in range(MAX_UNSOLVABLE):
        following = seed + offset
        if seed < HELD_OUT_SEEDS:
            following %= HELD_OUT_SEEDS
        task = _solved(tasks.pick(following), operations)
        if task.solution:
            return task
    raise EnvError(
        f"{MAX_UNSOLVABLE} Countdown records in a row cannot be solved with operations "
        f"{operations}; allow more operations"
    )


@lru_cache(maxsize=65_536)
def _solved(task: CountdownTask, operations: str) -> CountdownTask:
    if judge(task.solution, task, operations) == "solved":
        return task
    found = expressions.find(task.numbers, task.target, operations)
    solution = "" if found is None else expressions.write(found)
    return CountdownTask(task.numbers, task.target, solution)


Verdict = Literal["unreadable", "wrong numbers", "wrong value", "solved"]


def judge(action: str, task: CountdownTask, operations: str = expressions.OPERATIONS) -> Verdict:
    """What an expression is worth as an answer to a task.

    One ``= number`` at its end is allowed and ignored: the expression alone is judged. A forbidden
    operation is as bad as a wrong number; a division by zero has no value, hence a wrong one.
    """
    try:
        expression = _read(action)
    except ExpressionError:
        return "unreadable"
    used = expressions.numbers(expression)
    if sorted(used) != sorted(task.numbers) or expressions.symbols(expression) - set(operations):
        return "wrong numbers"
    try:
        value = expressions.evaluate(expression)
    except ZeroDivisionError:
        return "wrong value"
    return "solved" if value == task.target else "wrong value"


def _read(action: str) -> Expression:
    # The length is checked before the pattern search, which would look at every "=" of a huge text.
    return expressions.parse(_CLAIM.sub("", action[: 2 * expressions.MAX_LENGTH]))


class CountdownEpisode(Episode):
    """One task; the first readable expression ends it."""

    def __init__(self, env: Countdown, task: CountdownTask) -> None:
        self.env = env
        self.task = task
        self._answer = ""
        self._verdict: Verdict = "unreadable"

    @property
    def observation(self) -> str:
        """Numbers and target; after the answer, what it was worth."""
        numbers = " ".join(str(number) for number in self.task.numbers)
        task = f"Numbers: {numbers} Target: {self.task.target}"
        return f"{task}\nYou answered {self._answer}: {self._verdict}." if self._answer else task

    def step(self, action: str) -> Step:
        """Pay 1 for the target, ``numbers_reward`` for the right numbers, 0 for anything else."""
        if self._answer:
            return Step(0.0, done=True, solved=self._verdict == "solved", effective=False)
        verdict = judge(action, self.task, self.env.operations)
        if verdict == "unreadable":
            return Step(0.0, done=False, valid=False, effective=False)
        self._answer, self._verdict = " ".join(action.split()), verdict
        rewards = {"solved": 1.0, "wrong value": self.env.numbers_reward}
        return Step(rewards.get(verdict, 0.0), done=True, solved=verdict == "solved")

    def expert(self) -> tuple[str, ...]:
        """The known solution."""
        return () if self._answer else (self.task.solution,)

    def random_action(self, rng: np.random.Generator) -> str:
        """All numbers in random order, joined by random operations."""
        order = rng.permutation(len(self.task.numbers))
        text = str(self.task.numbers[order[0]])
        for index in order[1:]:
            symbol = self.env.operations[int(rng.integers(len(self.env.operations)))]
            text += f" {symbol} {self.task.numbers[index]}"
        return text

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """Numbers and target, then the working of the expression step by step."""
        numbers = _listed(self.task.numbers)
        target = self.task.target
        openings = (
            f"I have {numbers} and want {target}.",
            f"From {numbers} I must make {target}.",
            f"The target is {target}, the numbers are {numbers}.",
            f"{target} has to come out of {numbers}.",
        )
        closings = ("That is it.", "Each number is used once.", "All numbers are used.", "Done.")
        try:
            lines = expressions.working(_read(actions[0])) if actions else []
        except (ExpressionError, ZeroDivisionError):
            lines = []
        steps = f"{', '.join(lines)}." if lines else "I try this."
        return f"{pick(rng, *openings)} {steps} {pick(rng, *closings)}"


def _listed(numbers: tuple[int, ...]) -> str:
    return f"{', '.join(str(number) for number in numbers[:-1])} and {numbers[-1]}"
