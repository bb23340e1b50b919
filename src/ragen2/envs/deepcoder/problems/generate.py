"""Programming problems without end: drawn from a grammar, each with a solution and hidden tests.

A plan is a start, some steps and a goal; statement and reference solution are the two sides of it.
A plan becomes a problem if its hidden tests can tell it from its neighbours: the same plan without
one of the steps, with one number larger by one, or with one condition or quantity exchanged for the
next in the grammar. So no step is idle and no test set is blind to an error of one. What is held
out is decided by what a plan computes, not by how it is worded.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any

import numpy as np

from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.deepcoder.answers import Case, Form, Problem
from ragen2.envs.deepcoder.problems.parts import (
    ARGUMENT,
    ARGUMENT_TYPES,
    EDGES,
    TYPES,
    FilledPart,
    Grammar,
    GrammarPart,
    Kind,
    Value,
    draw_arguments,
    draw_part,
    pick,
    written,
)
from ragen2.sandbox import Given
from ragen2.seeding import stream, stream_key

MODULUS = 1_000_007
"""Where a number of ways may be large, the grammar asks for it modulo this."""
_LISTS = "ints words letters rows"


def read_grammar(text: str) -> Grammar:
    """The grammar that ``text`` describes, in the format that its first lines explain."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    sections: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("== "):
            section = sections.setdefault(line[3:], [])
        else:
            section.append(line)
    expressions: dict[tuple[Kind, str], tuple[GrammarPart, ...]] = {}
    for title, body in sections.items():
        category, _, kinds = title.partition(" of ")
        kind, _, other = kinds.partition(" with ")
        if kind:
            included = expressions[kind, other] if other else ()
            expressions[kind, category] = (*included, *map(_expression, body))
    starts, steps, goals = (
        tuple(_read_parts(sections[title])) for title in ("starts", "steps", "goals")
    )
    return Grammar(starts, steps, goals, expressions)


def _expression(line: str) -> GrammarPart:
    cost, text, code, *rest = line.split(" :: ")
    words = rest[0].split() if rest else []
    choices = _choices(word for word in words if word != "grows")
    return GrammarPart(text, code, int(cost), grows="grows" in words, choices=choices)


def _read_parts(lines: Sequence[str]) -> Iterator[GrammarPart]:
    """One part for every line of English; the Python after it may be shared with those before."""
    header = ""
    texts: list[str] = []
    code: list[str] = []
    for line in [*lines, "->"]:
        is_code = line.startswith("    ")
        if not is_code and (code or " -> " in line or line == "->"):
            yield from (_part(header, text, code) for text in texts)
            texts, code = [], []
        if is_code:
            code.append(line[4:])
        elif "->" in line and "=>" not in line:
            header = line
        else:
            texts.append(line)


def _part(header: str, text: str, code: Sequence[str]) -> GrammarPart:
    kinds, _, idea = header.partition(" | ")
    takes, _, rest = kinds.partition(" -> ")
    gives, cost, *choices = rest.split(", ")
    text, _, answer = text.partition(" => ")
    lines = [*code, f"return {answer}"] if answer else code
    return GrammarPart(
        text=text,
        code="\n".join(lines),
        cost=int(cost),
        takes=takes.replace("lists", _LISTS),
        gives=gives if gives != "same" else "",
        idea=idea,
        choices=_choices(choices[0].split() if choices else ()),
    )


def _choices(words: Iterator[str] | Sequence[str]) -> dict[str, Sequence[Value]]:
    """``c=1..4`` is a range, ``c=2,3,5`` a list of numbers, ``c=abc`` a list of letters."""
    found: dict[str, Sequence[Value]] = {}
    for word in words:
        name, _, values = word.partition("=")
        first, dots, last = values.partition("..")
        if dots:
            found[name] = range(int(first), int(last) + 1)
        else:
            found[name] = tuple(map(int, values.split(","))) if "," in values else values
    return found


GRAMMAR = read_grammar(
    resources.files(__package__).joinpath("grammar.txt").read_text(encoding="utf-8")
)


ENTRY = "solve"
NUM_EXAMPLES = 2
MAX_STATEMENT_CHARACTERS = 800
_SIZES = (4, 6, 9, 13, 20, 35, 60)
"""Of the drawn hidden tests. Large enough that trying all of exponentially many choices fails."""
_EXAMPLE_SIZES = (5, 7)
_NUM_QUESTIONS = 14
_LEVEL_COSTS = (2, 4, 7, 10)
"""The greatest cost of levels 1 to 4."""
_LEVEL_STEPS = ((0, 1), (0, 2), (0, 3), (1, 4), (1, 4))
"""The fewest and most steps to try for a level."""
_ARGUMENT_RATIO = 0.25
_MAX_COMMON_RATIO = 0.4
"""Greatest share of hidden tests with one and the same answer."""
_RETURNS = {
    "int": "an integer",
    "ints": "a list of integers",
    "words": "a list of words",
    "text": "a text",
}
_PRINT = {"ints": "print(*{})", "words": "print(*{})"}
_MODULO_NOTE = "p modulo q is the remainder from 0 to q - 1, also for negative p."

Arguments = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ProblemPlan:
    """What a problem computes: a start, then steps, then a goal."""

    start: FilledPart
    steps: tuple[FilledPart, ...]
    goal: FilledPart
    choices: tuple[int, ...] = ()
    """Values for the argument ``k``, where one takes the place of a number."""

    @property
    def nodes(self) -> tuple[FilledPart, ...]:
        """Its parts in order."""
        return (self.start, *self.steps, self.goal)

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments."""
        names = self.start.part.takes.split()
        return (*names, ARGUMENT) if self.choices else tuple(names)

    @property
    def level(self) -> int:
        """1 to 5, by the cost of all parts."""
        cost = sum(node.cost for node in self.nodes)
        return 1 + sum(cost > bound for bound in _LEVEL_COSTS)

    def source(self) -> str:
        """The reference solution, a function."""
        body = "\n".join(f"    {line}" for node in self.nodes for line in node.code().split("\n"))
        imports = "import math\n\n" if "math." in body else ""
        return f"{imports}def {ENTRY}({', '.join(self.names)}):\n{body}"

    def compiled(self) -> Callable[..., Any]:
        """The reference solution, ready to be called."""
        space: dict[str, Any] = {}
        exec(self.source(), space)  # noqa: S102 - composed of our own parts
        return space[ENTRY]  # type: ignore[no-any-return]

    def neighbours(self) -> Iterator[ProblemPlan]:
        """Plans that are wrong by one step, number, condition or quantity."""
        for index, step in enumerate(self.steps):
            if not step.part.gives:
                yield replace(self, steps=self.steps[:index] + self.steps[index + 1 :])
        for index, node in enumerate(self.nodes):
            yield from (self._with_node(index, other) for other in node.neighbours(GRAMMAR))

    def with_argument(self, rng: np.random.Generator) -> ProblemPlan:
        """The same with one of its numbers turned into an argument, if it has any."""
        places = [
            (index, *number) for index, node in enumerate(self.nodes) for number in node.numbers()
        ]
        if not places:
            return self
        index, path, choices = pick(rng, places)
        changed = self._with_node(index, self.nodes[index].with_number(path, ARGUMENT))
        return replace(changed, choices=tuple(map(int, choices)))

    def _with_node(self, index: int, node: FilledPart) -> ProblemPlan:
        nodes = (*self.nodes[:index], node, *self.nodes[index + 1 :])
        return replace(self, start=nodes[0], steps=nodes[1:-1], goal=nodes[-1])


@lru_cache(maxsize=2048)
def own_problem(
    seed: int, held_out_ratio: float = 0.2, form: str = "any", levels: tuple[int, int] = (1, 5)
) -> Problem:
    """The problem of ``seed``, of a level and form that the seed draws from those wanted."""
    held_out = seed < HELD_OUT_SEEDS
    rng = stream("DeepCoder", "problem", seed)
    level = int(rng.integers(levels[0], levels[1] + 1))
    drawn = pick(rng, ("stdin", "call"))
    while True:
        plan = draw_plan(rng, level)
        if plan is None:
            continue
        key = fingerprint(plan)
        if (key / 2**128 < held_out_ratio) == held_out:
            problem = _problem(plan, f"{key:032x}", drawn if form == "any" else form, rng)
            if problem is not None:
                return problem


def draw_plan(rng: np.random.Generator, level: int) -> ProblemPlan | None:
    """A plan at random; ``None`` when the draw is not of this level or makes no sense."""
    fewest, most = _LEVEL_STEPS[level - 1]
    budget = (*_LEVEL_COSTS, math.inf)[level - 1]
    start = draw_part(rng, pick(rng, GRAMMAR.starts), "ints", GRAMMAR)
    kind = start.part.gives
    steps: list[FilledPart] = []
    for _ in range(int(rng.integers(fewest, most + 1))):
        step = draw_part(rng, pick(rng, _parts(GRAMMAR.steps, kind)), kind, GRAMMAR)
        steps.append(step)
        kind = step.part.gives or kind
    spent = sum(node.cost for node in (start, *steps))
    goals = [goal for goal in _parts(GRAMMAR.goals, kind) if spent + goal.cost <= budget]
    if not goals:
        return None
    goal = draw_part(rng, pick(rng, goals), kind, GRAMMAR)
    plan = ProblemPlan(start, tuple(steps), goal)
    grown = sum(inner.part.grows for node in plan.nodes for inner in node.walk())
    if plan.level != level or grown > 1 or (not steps and start.cost + goal.cost == 0):
        return None
    return plan.with_argument(rng) if rng.random() < _ARGUMENT_RATIO else plan


@cache
def _parts(parts: tuple[GrammarPart, ...], kind: str) -> tuple[GrammarPart, ...]:
    return tuple(part for part in parts if kind in part.takes.split())


def fingerprint(plan: ProblemPlan) -> int:
    """128 bits that plans share if they take the same arguments and answer fixed questions alike.

    Plans that compute the same have the same one, however they are worded.
    """
    rng = stream("DeepCoder", "choices", *plan.names)
    function = plan.compiled()
    answers = [function(*_with_choice(rng, q, plan)) for q in _questions(plan.start.part.takes)]
    return stream_key(*plan.names, json.dumps(answers))


@cache
def _questions(takes: str) -> tuple[Arguments, ...]:
    rng = stream("DeepCoder", "questions", takes)
    sizes = itertools.islice(itertools.cycle((5, 8, 12)), _NUM_QUESTIONS)
    return (*EDGES[takes], *(draw_arguments(rng, takes, size) for size in sizes))


def _problem(plan: ProblemPlan, name: str, form: Any, rng: np.random.Generator) -> Problem | None:
    """The plan as a problem; ``None`` if its hidden tests would be blind or its text too long."""
    examples, hidden = _draw_tests(plan, rng)
    function = plan.compiled()
    answers = [function(*arguments) for arguments in hidden]
    if not _can_tell(plan, hidden, answers):
        return None
    statement = _statement(plan, form, [(given, function(*given)) for given in examples])
    if len(statement) > MAX_STATEMENT_CHARACTERS:
        return None
    pairs = zip(hidden, answers, strict=True)
    ideas = [node.text().rstrip(".") for node in (plan.start, *plan.steps)]
    ideas.append(plan.goal.part.idea or "read off the answer")
    return Problem(
        name=name,
        statement=statement,
        form=form,
        cases=tuple(_case(plan, form, given, answer) for given, answer in pairs),
        solution=_solution(plan, form),
        summary=plan.goal.text(),
        idea=", ".join(f"({number}) {_lower(step)}" for number, step in enumerate(ideas, 1)),
        level=plan.level,
        entry=ENTRY if form == "call" else "",
    )


def _draw_tests(
    plan: ProblemPlan, rng: np.random.Generator
) -> tuple[list[Arguments], list[Arguments]]:
    """Examples to show, and others to test with: edges and some of every size."""
    takes = plan.start.part.takes
    drawn = [draw_arguments(rng, takes, size) for size in (*_EXAMPLE_SIZES, *_SIZES)]
    found = {json.dumps(given): given for given in (*drawn[:NUM_EXAMPLES], *EDGES[takes], *drawn)}
    whole = [_with_choice(rng, given, plan) for given in found.values()]
    return whole[:NUM_EXAMPLES], whole[NUM_EXAMPLES:]


def _with_choice(rng: np.random.Generator, given: Arguments, plan: ProblemPlan) -> Arguments:
    return (*given, pick(rng, plan.choices)) if plan.choices else given


def _can_tell(plan: ProblemPlan, hidden: Sequence[Arguments], answers: Sequence[Any]) -> bool:
    """Whether the tests refuse a constant, the argument itself and every neighbour of the plan."""
    commonest = Counter(map(json.dumps, answers)).most_common(1)[0][1]
    if commonest > _MAX_COMMON_RATIO * len(answers) or len(hidden) < 8:
        return False
    if sum(given[0] == answer for given, answer in zip(hidden, answers, strict=True)) > 3:
        return False
    return not any(_agrees(other, hidden, answers) for other in plan.neighbours())


def _agrees(plan: ProblemPlan, hidden: Sequence[Arguments], answers: Sequence[Any]) -> bool:
    function = plan.compiled()
    try:
        return all(function(*g) == answer for g, answer in zip(hidden, answers, strict=True))
    except (ArithmeticError, IndexError, ValueError):  # a number too large by one may be no choice
        return False


def _statement(plan: ProblemPlan, form: Form, examples: Sequence[tuple[Arguments, Any]]) -> str:
    gives = plan.goal.part.gives
    typed = [(name, ARGUMENT_TYPES[TYPES[name]]) for name in plan.names]
    if form == "call":
        lines = [
            f"Write a function {ENTRY}({', '.join(plan.names)}) that returns {_RETURNS[gives]}."
        ]
        lines.append(f"Arguments: {', '.join(f'{name}: {shape.python}' for name, shape in typed)}.")
        verb = "Return"
    else:
        inputs = ", then ".join(f"{name} ({shape.layout})" for name, shape in typed)
        lines = [f"Write a program that reads {inputs}, and prints {_RETURNS[gives]}."]
        if gives in _PRINT:
            lines[0] = f"{lines[0][:-1]}, all on one line."
        verb = "Print"
    lines += [node.text() for node in (plan.start, *plan.steps)]
    lines.append(f"{verb} {plan.goal.text()}.")
    text = "\n".join(lines)
    notes = [_MODULO_NOTE] if "modulo" in text.replace(f"modulo {MODULUS}", "") else []
    return "\n".join([text, *notes, *(_example(plan, form, *example) for example in examples)])


def _example(plan: ProblemPlan, form: Form, given: Arguments, answer: Any) -> str:
    if form == "call":
        return f"Example: {ENTRY}({', '.join(map(repr, given))}) == {answer!r}"
    shown = ARGUMENT_TYPES[plan.goal.part.gives].printed(answer)
    return f"Example input:\n{_standard_input(plan, given)}Example output:\n{shown}"


def _case(plan: ProblemPlan, form: Form, given: Arguments, answer: Any) -> Case:
    if form == "call":
        return Case(Given(call=(ENTRY, list(given))), (answer,))
    return Case(
        Given(stdin=_standard_input(plan, given)),
        (ARGUMENT_TYPES[plan.goal.part.gives].printed(answer),),
    )


def _standard_input(plan: ProblemPlan, given: Arguments) -> str:
    return "".join(written(name, value) for name, value in zip(plan.names, given, strict=True))


def _solution(plan: ProblemPlan, form: Form) -> str:
    if form == "call":
        return plan.source()
    reads = [f"{name} = {ARGUMENT_TYPES[TYPES[name]].read}" for name in plan.names]
    call = f"{ENTRY}({', '.join(plan.names)})"
    return "\n".join(
        [plan.source(), "", *reads, _PRINT.get(plan.goal.part.gives, "print({})").format(call)]
    )


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
