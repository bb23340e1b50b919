"""A family of programming problems: one statement, solution and answer, varied by parameters.

A family is written once as a function from arguments to an answer. Each of its variants becomes one
problem, asked for either as a function or as a program between standard input and output; the input
layout, the statement and the reading part of the reference solution follow from the argument types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any, Literal

import numpy as np

from ragen2.envs.deepcoder.cases import Case, Form, Problem
from ragen2.sandbox import Given
from ragen2.seeding import stream

Kind = Literal["int", "text", "ints", "words", "lines", "rows", "bool"]
Arguments = tuple[Any, ...]
Draw = Callable[[np.random.Generator, int], Arguments]

NUM_EXAMPLES = 2
NUM_DRAWN = 7
MAX_EXAMPLE_CHARACTERS = 240
_MAX_DRAWS = 60

_READ: dict[str, str] = {
    "int": "{name} = int(input())",
    "text": "{name} = input()",
    "ints": "{name} = list(map(int, input().split()))",
    "words": "{name} = input().split()",
    "lines": "{name} = [input() for _ in range(int(input()))]",
    "rows": "{name} = [list(map(int, input().split())) for _ in range(int(input()))]",
}
_LAYOUT: dict[str, str] = {
    "int": "{name} (an integer)",
    "text": "{name} (a line of text)",
    "ints": "{name} (integers on one line, perhaps none)",
    "words": "{name} (words on one line, perhaps none)",
    "lines": "{name} (a line with their number, then that many lines)",
    "rows": "{name} (a line with their number, then that many lines of integers)",
}
_TYPES: dict[str, str] = {
    "int": "int",
    "text": "str",
    "ints": "list of int",
    "words": "list of str",
    "lines": "list of str",
    "rows": "list of lists of int",
}
_PRINT: dict[str, str] = {
    "int": "print({call})",
    "bool": "print({call})",
    "text": "print({call})",
    "ints": "print(*{call})",
    "words": "print(*{call})",
    "lines": 'print("\\n".join({call}))',
    "rows": "for row in {call}:\n    print(*row)",
}
_PRINTED: dict[str, str] = {
    "ints": " Print the numbers on one line.",
    "words": " Print the words on one line.",
    "lines": " Print one line for each.",
    "rows": " Print one line for each.",
}


@dataclass(frozen=True, slots=True)
class Family:
    """Problems that differ in their parameters; ``$name`` in a text stands for a parameter."""

    name: str
    level: int
    takes: tuple[tuple[str, Kind], ...]
    gives: Kind
    wanted: str
    """A noun phrase: what the function returns."""
    solution: str
    """The function, as a solver would write it."""
    answer: Callable[..., Any]
    """The answer found in another way, from arguments and then parameters: the solution's check."""
    draw: Draw
    """Arguments at random, of about the given size."""
    edges: tuple[Arguments, ...]
    """Arguments that catch hasty programs."""
    idea: str
    note: str = ""
    variants: tuple[Mapping[str, Any], ...] = ({},)
    sizes: tuple[int, ...] = (3, 5, 8, 12, 20, 40, 60)

    def problem(self, index: int) -> Problem:
        """The problem of variant ``index``: odd ones are programs, even ones functions."""
        name = self.variant_name(index)
        values = self.variants[index]
        form: Form = "stdin" if _form_parity(self.name, index) else "call"
        examples, hidden = self._split_arguments(name, values)
        return Problem(
            name=name,
            statement=self._statement(form, values, examples),
            form=form,
            cases=tuple(self._case(form, arguments, values) for arguments in hidden),
            solution=self._solution(form, values),
            summary=Template(self.wanted).substitute(values),
            idea=Template(self.idea).substitute(values),
            level=self.level,
            entry=self.name if form == "call" else "",
        )

    def variant_name(self, index: int) -> str:
        """The family's name and its parameters."""
        return "-".join([self.name, *(str(value) for value in self.variants[index].values())])

    def expected(self, arguments: Arguments, values: Mapping[str, Any]) -> Any:
        """The right answer for ``arguments``."""
        return self.answer(*_copy(arguments), *values.values())

    def _split_arguments(
        self, name: str, values: Mapping[str, Any]
    ) -> tuple[list[Arguments], list[Arguments]]:
        """Examples to show, and others to test with: the edges and some of every size."""
        rng = stream("DeepCoder", "cases", name)
        seen = {json.dumps(edge) for edge in self.edges}
        examples = self._fresh(rng, [self.sizes[0]] * NUM_EXAMPLES, seen, values)
        hidden = self._fresh(rng, self.sizes, seen, values)
        return examples, [*self.edges, *hidden]

    def _fresh(
        self,
        rng: np.random.Generator,
        sizes: Sequence[int],
        seen: set[str],
        values: Mapping[str, Any],
    ) -> list[Arguments]:
        """Arguments unlike those seen; two examples have different answers if that can be."""
        found: list[Arguments] = []
        answers: set[str] = set()
        for size in sizes:
            for attempt in range(_MAX_DRAWS):
                arguments = self.draw(rng, size + attempt // 10)
                key = json.dumps(arguments)
                answer = json.dumps(self.expected(arguments, values))
                is_dull = len(sizes) == NUM_EXAMPLES and answer in answers
                if key not in seen and not (is_dull and attempt < _MAX_DRAWS // 2):
                    break
            if key not in seen:
                seen.add(key)
                answers.add(answer)
                found.append(arguments)
        return found

    def _statement(
        self, form: Form, values: Mapping[str, Any], examples: Sequence[Arguments]
    ) -> str:
        names = ", ".join(name for name, _ in self.takes)
        note = f" {self.note}" if self.note else ""
        if form == "call":
            types = ", ".join(f"{name}: {_TYPES[kind]}" for name, kind in self.takes)
            lines = [f"Write a function {self.name}({names}) that returns {self.wanted}.{note}"]
            lines.append(f"Arguments: {types}.")
        else:
            inputs = ", then ".join(_LAYOUT[kind].format(name=name) for name, kind in self.takes)
            printed = _PRINTED.get(self.gives, "")
            lines = [
                f"Write a program that reads {inputs} and prints {self.wanted}.{note}{printed}"
            ]
        text = Template("\n".join(lines)).substitute(values)
        shown = [self._example(form, arguments, values) for arguments in examples]
        return "\n".join([text, *(line for line in shown if len(line) <= MAX_EXAMPLE_CHARACTERS)])

    def _example(self, form: Form, arguments: Arguments, values: Mapping[str, Any]) -> str:
        answer = self.expected(arguments, values)
        if form == "call":
            given = ", ".join(map(repr, arguments))
            return f"Example: {self.name}({given}) == {answer!r}"
        shown = _printed(self.gives, answer)
        return f"Example input:\n{self._input(arguments)}Example output:\n{shown}"

    def _case(self, form: Form, arguments: Arguments, values: Mapping[str, Any]) -> Case:
        answer = self.expected(arguments, values)
        if form == "call":
            return Case(Given(probes=((self.name, list(arguments)),)), (answer,))
        return Case(Given(stdin=self._input(arguments)), (_printed(self.gives, answer),))

    def _input(self, arguments: Arguments) -> str:
        pairs = zip(self.takes, arguments, strict=True)
        return "".join(_layout(kind, value) for (_, kind), value in pairs)

    def _solution(self, form: Form, values: Mapping[str, Any]) -> str:
        function = Template(self.solution.strip("\n")).substitute(values)
        if form == "call":
            return function
        reads = [_READ[kind].format(name=name) for name, kind in self.takes]
        call = f"{self.name}({', '.join(name for name, _ in self.takes)})"
        return "\n".join([function, "", *reads, _PRINT[self.gives].format(call=call)])


def _form_parity(name: str, index: int) -> int:
    """Alternate the two forms over variants, starting with either by the family's name."""
    return (sum(name.encode()) + index) % 2


def _layout(kind: Kind, value: Any) -> str:
    if kind == "lines":
        return "".join(f"{line}\n" for line in [len(value), *value])
    if kind == "rows":
        return f"{len(value)}\n" + "".join(f"{' '.join(map(str, row))}\n" for row in value)
    return _printed(kind, value) + "\n"


def _printed(kind: Kind, value: Any) -> str:
    if kind in ("ints", "words"):
        return " ".join(map(str, value))
    if kind == "lines":
        return "\n".join(value)
    if kind == "rows":
        return "\n".join(" ".join(map(str, row)) for row in value)
    return str(value)


def _copy(arguments: Arguments) -> Any:
    """Arguments that the answer may change without touching the case."""
    return json.loads(json.dumps(arguments))
