"""MetaMathQA: answer a math question; each wrong attempt halves what the right answer will pay."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from ragen2.envs.base import Easier, Env, Episode, Step, belongs, rising
from ragen2.envs.math.answers import (
    MAX_TEXT,
    final_answer,
    require_math_verify,
    same_answer,
    same_mathematics,
    same_text,
)
from ragen2.envs.math.word_problems import QUESTION_TYPES, QuestionType, draw_problem
from ragen2.envs.toolkit.records import (
    HeldOutData,
    HeldOutRatio,
    Record,
    TaskSet,
    load_task_set,
    read_records,
    require_training_data,
)
from ragen2.envs.toolkit.wording import pick
from ragen2.errors import EnvError
from ragen2.seeding import stream

MAX_DRAWS = 10_000
_TYPE_MARKS: dict[str, QuestionType] = {
    "fobar": "backward",
    "sv": "self_verification",
    "self_verification": "self_verification",
    "rephrased": "rephrased",
}
"""How MetaMath's own type names (GSM_FOBAR, MATH_SV, GSM_Rephrased, MATH_AnsAug) end."""
_QUESTION_FIELDS = ("query", "question", "problem")
_ANSWER_FIELDS = ("response", "answer", "solution")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MathTask:
    """A question, its answer, and where the question comes from."""

    question: str
    answer: str
    type: QuestionType
    original: str
    """The question it was made from, or itself."""
    working: tuple[str, ...]
    """Lines of a solution, where known."""

    @property
    def names(self) -> tuple[str, str]:
        """By its original question first: all its variants belong together; then by its own."""
        return _folded(self.original), _folded(self.question)


class MetaMathQA(Env):
    """Answer a math question, with several attempts."""

    kind: Literal["MetaMathQA"] = "MetaMathQA"
    max_turns: int = Field(5, ge=1, description="replies the agent may write in one episode")
    max_actions: int = Field(5, ge=1, description="attempts the environment takes in one episode")
    num_steps: int = Field(3, ge=1, le=12, description="steps of a generated problem: difficulty")
    max_number: int = Field(20, ge=2, le=1000, description="greatest amount in a generated step")
    types: tuple[QuestionType, ...] = Field(
        QUESTION_TYPES, min_length=1, description="question types to draw or to keep of the data"
    )
    answer_rule: Literal["value", "strict", "math_verify"] = Field(
        "value",
        description="compare answers by exact value, as text without case and spaces, or by value and "
        "with the package math-verify, for LaTeX, sets and expressions",
    )
    data: str = Field("", description="records in MetaMathQA or GSM8K form: file, folder or hub id")
    held_out_data: HeldOutData = ""
    held_out_ratio: HeldOutRatio = 0.1

    one_action: ClassVar[bool] = True
    thoughts: ClassVar[str] = "your working, step by step, in short sentences"
    reply_tokens: ClassVar[int] = 400
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    reward_kind: ClassVar[Literal["binary", "dense"]] = "dense"

    @model_validator(mode="after")
    def _data_is_complete(self) -> Self:
        require_training_data(self.data, self.held_out_data)
        return self

    @property
    def instruction(self) -> str:
        """Rules and a worked reply."""
        return (
            f"{self.rules} Example: <think>3 boxes of 4 pens: 3 * 4 = 12</think><answer>12</answer>"
        )

    @property
    def rules(self) -> str:
        """What to answer, how often, and in which form."""
        retries = (
            " A wrong answer may be tried again, for half the reward each time."
            if self.max_actions > 1
            else ""
        )
        form = " Answer in the simplest form." if self.answer_rule == "strict" else ""
        return f"Solve the math problem and answer with the final result only.{retries}{form}"

    @property
    def answer_form(self) -> str:
        """A result."""
        return "the final result, without words"

    @property
    def easier(self) -> Easier:
        """Generated problems of fewer steps."""
        steps = rising(1, self.num_steps if not self.data else 1)
        return tuple({"num_steps": num_steps} for num_steps in steps)

    def start(self, seed: int, luck: int) -> MathEpisode:
        """The question of ``seed``; nothing here depends on luck."""
        del luck
        if self.answer_rule == "math_verify":
            require_math_verify()
        if not self.data:
            return MathEpisode(self, draw_task(self.num_steps, self.max_number, self.types, seed))
        tasks = load_tasks(self.data, self.held_out_data, self.held_out_ratio, self.types)
        return MathEpisode(self, tasks.pick(seed))


@lru_cache(maxsize=4096)
def draw_task(
    num_steps: int, max_number: int, types: tuple[QuestionType, ...], seed: int
) -> MathTask:
    """A generated problem; held-out seeds and the others draw originals that never meet."""
    rng = stream("MetaMathQA", "problem", seed)
    for _ in range(MAX_DRAWS):
        problem = draw_problem(rng, num_steps, max_number=max_number, types=types)
        task = MathTask(
            problem.question, problem.answer, problem.type, problem.original, problem.working
        )
        if belongs(seed, task.names[0]):
            return task
    raise EnvError(f"no word problem for seed {seed} in {MAX_DRAWS} draws; raise max_number")


@lru_cache(maxsize=4)
def load_tasks(
    data: str, held_out_data: str, held_out_ratio: float, types: tuple[QuestionType, ...]
) -> TaskSet[MathTask]:
    """Tasks of record files in two parts that share neither a question nor an original question."""
    return load_task_set(
        lambda source: _read_tasks(source, types),
        lambda task: task.names,
        data=data,
        held_out_data=held_out_data,
        held_out_ratio=held_out_ratio,
    )


def _read_tasks(source: str, types: tuple[QuestionType, ...]) -> list[MathTask]:
    records = list(read_records(source))
    question_of_id = {
        record["id"]: _question(record, source)
        for record in records
        if isinstance(record.get("id"), str)
    }
    tasks = [_task(record, question_of_id, source) for record in records]
    answered = [task for task in tasks if same_answer(task.answer, task.answer)]
    if len(answered) < len(tasks):
        _LOG.warning(
            "%d of %d records of %s have no final answer and are left out",
            len(tasks) - len(answered),
            len(tasks),
            source,
        )
    wanted = [task for task in answered if task.type in types]
    if not wanted:
        raise EnvError(
            f"{source} has {len(answered)} answered questions, none of type {', '.join(types)}; "
            "give other data or other types"
        )
    return wanted


def _task(record: Record, question_of_id: dict[str, str], source: str) -> MathTask:
    question = _question(record, source)
    text = _first(record, _ANSWER_FIELDS, source)
    # A bare answer has its solution in another field; publishers' files write both as one text.
    has_both = "response" in record or "####" in text or "answer" not in record
    solution = text if has_both else str(record.get("solution") or "")
    original_id = str(record.get("original_id") or "")
    original = record.get("original_question") or question_of_id.get(original_id) or original_id
    return MathTask(
        question,
        final_answer(text),
        _type_of(str(record.get("type") or "")),
        str(original or question),
        _lines(solution),
    )


def _question(record: Record, source: str) -> str:
    return _first(record, _QUESTION_FIELDS, source)


def _first(record: Record, fields: tuple[str, ...], source: str) -> str:
    for field in fields:
        if record.get(field) not in (None, ""):
            return str(record[field]).strip()
    raise EnvError(
        f"a record of {source} has none of the fields {', '.join(fields)} filled, only "
        f"{', '.join(sorted(record))}; name its fields as MetaMathQA or GSM8K do"
    )


def _type_of(name: str) -> QuestionType:
    """The question type of a record; plain and answer-augmented questions are forward ones."""
    ending = name.lower().split("_", 1)[-1]
    return _TYPE_MARKS.get(ending, "forward")


def _lines(solution: str) -> tuple[str, ...]:
    """The last two lines of a solution, without calculator marks and the announced answer."""
    lines = (re.sub(r"<<[^<>]*>>", "", line).strip() for line in solution.splitlines())
    kept = [line for line in lines if line and not line.startswith(("####", "The answer is"))]
    return tuple(line.rstrip(".")[:200] for line in kept[-2:])


def _folded(question: str) -> str:
    return " ".join(question.lower().split())


def _printable(text: str) -> str:
    """One line of characters that any file and terminal can hold."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


_RULES: dict[str, Callable[[str, str], bool]] = {
    "value": same_answer,
    "strict": same_text,
    "math_verify": same_mathematics,
}


class MathEpisode(Episode):
    """Attempts at one question; only the right answer ends it."""

    def __init__(self, env: MetaMathQA, task: MathTask) -> None:
        self.env = env
        self.task = task
        self._num_wrong = 0
        self._last_wrong = ""
        self._solved = False

    @property
    def observation(self) -> str:
        """The question; after a wrong attempt also which answer was wrong."""
        if self._solved:
            return "That is right."
        if not self._num_wrong:
            return self.task.question
        return f"{self.task.question}\nThe answer {self._last_wrong} is wrong. Try again."

    def step(self, action: str) -> Step:
        """Pay 1, or half of it for each wrong attempt before; an empty answer is no attempt."""
        if self._solved:
            return Step(0.0, done=True, solved=True, effective=False)
        shown = _printable(action[: MAX_TEXT + 1])
        if not shown or len(action) > MAX_TEXT:
            return Step(0.0, done=False, valid=False, effective=False)
        if _RULES[self.env.answer_rule](action, self.task.answer):
            self._solved = True
            return Step(0.5**self._num_wrong, done=True, solved=True)
        self._num_wrong += 1
        self._last_wrong = shown if len(shown) <= 40 else f"{shown[:40]}..."
        return Step(0.0, done=False)

    def expert(self) -> tuple[str, ...]:
        """The right answer."""
        return () if self._solved else (self.task.answer,)

    def random_action(self, rng: np.random.Generator) -> str:
        """A whole number below a hundred."""
        return str(int(rng.integers(100)))

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """What is asked, the working, and the answer that follows."""
        answer = actions[0] if actions else self.task.answer
        parts = [pick(rng, "The problem:", "Given:", "I read:") + f" {self._gist()}"]
        if self._num_wrong:
            parts.append(f"{self._last_wrong} was wrong.")
        if self.task.working and same_answer(answer, self.task.answer):
            lead = pick(rng, "I work it out:", "Step by step:", "So")
            parts.append(f"{lead} {', '.join(self.task.working)}.")
        parts.append(f"{pick(rng, 'The answer is', 'That makes', 'Hence')} {answer}.")
        return " ".join(parts)

    def _gist(self) -> str:
        """The first sentence of the question, cut at a word: enough to know it again."""
        first = re.split(r"(?<=[.?!])\s", self.task.question, maxsplit=1)[0]
        return first if len(first) <= 100 else first[:100].rsplit(" ", 1)[0] + " ..."
