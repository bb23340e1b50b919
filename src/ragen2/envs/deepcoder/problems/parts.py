"""What problems are composed of: parts that are English and Python at once, trees of them, and arguments.

A part is a pair of templates with the same holes: ``"x is divisible by {k}"`` and
``"x % {k} == 0"``. A hole is filled by a number or letter out of the part's ``choices``, or by
another part of the category that the hole names. So whatever is said in a statement is, word for
word, what the reference solution does.

In code, ``v`` is the list worked on, ``x`` and ``y`` are items of it, ``t`` is a running total.
``{fold:row}`` fills a hole with its variable renamed, ``{relation:v[i];y}`` with both renamed.

Arguments of a problem are named, drawn, written on standard input and read from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from string import Formatter
from typing import Any, NamedTuple, TypeVar

import numpy as np

Kind = str
"""What is worked on: ``ints``, ``words``, ``letters``, ``rows`` (lists of integers), ``matrix``
(rows of one length) or ``pair`` (two lists of integers)."""
Value = int | str
Item = TypeVar("Item")

ARGUMENT = "k"
"""The argument that may take the place of a number in a problem."""
ITEM_NAMES = {"ints": "value", "words": "word", "letters": "letter", "rows": "row"}


@dataclass(frozen=True, slots=True, eq=False)
class GrammarPart:
    """A piece of a problem; ``{item}`` in its text is what the list at hand is made of."""

    text: str
    code: str
    cost: int = 1
    """How much harder it makes a problem."""
    takes: str = ""
    """Kinds that a step or goal works on, separated by spaces."""
    gives: str = ""
    """The kind that it leaves (empty: the one it got) or the type of the answer."""
    idea: str = ""
    """How to compute a goal, where that takes an idea."""
    grows: bool = False
    """Whether it makes numbers much larger; once per problem is enough."""
    choices: Mapping[str, Sequence[Value]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grammar:
    """All parts: where a problem may start, go on and end, and the expressions within."""

    starts: tuple[GrammarPart, ...]
    steps: tuple[GrammarPart, ...]
    goals: tuple[GrammarPart, ...]
    expressions: Mapping[tuple[Kind, str], tuple[GrammarPart, ...]]
    """By kind and category; a category that a kind lacks is the one of ``ints``."""


@dataclass(frozen=True, slots=True)
class FilledPart:
    """A part with its holes filled."""

    part: GrammarPart
    kind: Kind
    values: tuple[tuple[str, FilledPart | Value], ...] = ()

    @property
    def cost(self) -> int:
        """Its own and that of all parts within."""
        return sum(node.part.cost for node in self.walk())

    def text(self) -> str:
        """In English."""
        item = ITEM_NAMES.get(self.kind, "")
        words = {
            name: _Renamable(value.text()) if isinstance(value, FilledPart) else value
            for name, value in self.values
        }
        return self.part.text.format(item=item, items=f"{item}s", **words)

    def code(self) -> str:
        """In Python."""
        parts = {
            name: _Renamable(value.code()) if isinstance(value, FilledPart) else value
            for name, value in self.values
        }
        return self.part.code.format(**parts)

    def walk(self) -> Iterator[FilledPart]:
        """This node and all within."""
        yield self
        for _, value in self.values:
            if isinstance(value, FilledPart):
                yield from value.walk()

    def with_value(self, name: str, value: FilledPart | Value) -> FilledPart:
        """The same with one hole filled otherwise."""
        pairs = ((key, value if key == name else old) for key, old in self.values)
        return replace(self, values=tuple(pairs))

    def numbers(self) -> Iterator[tuple[tuple[str, ...], Sequence[Value]]]:
        """Where every number within is, as the holes that lead to it, and what it is one of."""
        for name, value in self.values:
            if isinstance(value, FilledPart):
                yield from (((name, *path), choices) for path, choices in value.numbers())
            elif isinstance(value, int):
                yield (name,), self.part.choices[name]

    def with_number(self, path: tuple[str, ...], value: Value) -> FilledPart:
        """The same with the number at ``path`` exchanged."""
        inner = dict(self.values)[path[0]]
        if isinstance(inner, FilledPart):
            return self.with_value(path[0], inner.with_number(path[1:], value))
        return self.with_value(path[0], value)

    def neighbours(self, grammar: Grammar) -> Iterator[FilledPart]:
        """The same with one number greater by one, one letter later, or one part the next."""
        for name, value in self.values:
            if isinstance(value, FilledPart):
                others = [*value.neighbours(grammar), value.successor(_category(name), grammar)]
                yield from (self.with_value(name, other) for other in others if other != value)
            else:
                yield self.with_value(name, _next(value))

    def successor(self, category: str, grammar: Grammar) -> FilledPart:
        """The part after this one in the grammar, its holes filled as here where it has the same."""
        parts = grammar.expressions[self.kind, category]
        part = parts[(parts.index(self.part) + 1) % len(parts)]
        old = dict(self.values)
        values = {
            name: old[name] if name in old and _fits(old[name], first) else first
            for name, first in _first_values(part, self.kind, grammar)
        }
        return FilledPart(part, self.kind, tuple(values.items()))


def draw_part(
    rng: np.random.Generator, part: GrammarPart, kind: Kind, grammar: Grammar
) -> FilledPart:
    """``part`` with its holes filled at random, no two of one category with the same."""
    values: dict[str, FilledPart | Value] = {}
    for name in _holes(part):
        if name in part.choices:
            values[name] = pick(rng, part.choices[name])
            continue
        owner = _owner(kind, name, grammar)
        while name not in values or list(values.values()).count(values[name]) > 1:
            inner = pick(rng, grammar.expressions[owner, _category(name)])
            values[name] = draw_part(rng, inner, owner, grammar)
    return FilledPart(part, kind, tuple(values.items()))


def _first_values(
    part: GrammarPart, kind: Kind, grammar: Grammar
) -> Iterator[tuple[str, FilledPart | Value]]:
    for name in _holes(part):
        if name in part.choices:
            yield name, part.choices[name][0]
        else:
            owner = _owner(kind, name, grammar)
            inner = grammar.expressions[owner, _category(name)][0]
            yield name, FilledPart(inner, owner, tuple(_first_values(inner, owner, grammar)))


def _fits(value: FilledPart | Value, example: FilledPart | Value) -> bool:
    """Whether ``value`` may stand where ``example`` does: an expression, a number or a letter."""
    if isinstance(value, FilledPart):
        return isinstance(example, FilledPart) and value.kind == example.kind
    return isinstance(example, int) if value == ARGUMENT else type(value) is type(example)


def _category(hole: str) -> str:
    """``simple2`` is a second hole for a ``simple``."""
    return hole.rstrip("0123456789")


def _owner(kind: Kind, hole: str, grammar: Grammar) -> Kind:
    return kind if (kind, _category(hole)) in grammar.expressions else "ints"


def pick(rng: np.random.Generator, items: Sequence[Item]) -> Item:
    """One of ``items``, each as likely."""
    return items[int(rng.integers(len(items)))]


@cache
def _holes(part: GrammarPart) -> list[str]:
    names = [name for _, name, _, _ in Formatter().parse(part.text + part.code) if name]
    return [name for name in dict.fromkeys(names) if name not in ("item", "items")]


def _next(value: Value) -> Value:
    """One more, or the next letter; an argument plus one."""
    if isinstance(value, int):
        return value + 1
    return f"({ARGUMENT} + 1)" if value == ARGUMENT else chr(ord(value) + 1)


class _Renamable(str):
    """A text whose variables a format specification renames: ``{fold:row}``, ``{relation:x;v[i]}``."""

    __slots__ = ()

    def __format__(self, names: str) -> str:
        if not names:
            return str(self)
        new = names.split(";")
        old = ("x", "y") if len(new) == 2 else ("v",)
        renamed = dict(zip(old, new, strict=True))
        return re.sub(rf"\b({'|'.join(old)})\b", lambda match: renamed[match[1]], self)


_RANGES = ((-20, 40), (0, 9), (-6, 6), (1, 30), (0, 99))
"""Narrow ones give repeats and neighbours that are close; wide ones do not."""
_ALPHABETS = ("abcde", "abcdefghijklmnopqrstuvwxyz", "aeioustrn")


class ArgumentType(NamedTuple):
    """Values of one type: in words, in a statement, in code, and as they are printed."""

    python: str
    layout: str
    read: str
    printed: Callable[[Any], str]


ARGUMENT_TYPES = {
    "int": ArgumentType("int", "an integer", "int(input())", str),
    "positive": ArgumentType("int, at least 1", "an integer, at least 1", "int(input())", str),
    "ints": ArgumentType(
        "list of int",
        "integers on one line, perhaps none",
        "list(map(int, input().split()))",
        lambda value: " ".join(map(str, value)),
    ),
    "words": ArgumentType(
        "list of lowercase words",
        "lowercase words on one line, perhaps none",
        "input().split()",
        " ".join,
    ),
    "text": ArgumentType(
        "str of lowercase letters", "a line of lowercase letters, perhaps none", "input()", str
    ),
    "rows": ArgumentType(
        "list of one or more lists of int, all of one length, not empty",
        "a line with the number of rows, then the rows, one per line",
        "[list(map(int, input().split())) for _ in range(int(input()))]",
        lambda rows: "\n".join([str(len(rows)), *(" ".join(map(str, row)) for row in rows)]),
    ),
}
TYPES = {
    "a": "ints",
    "b": "ints",
    "w": "words",
    "s": "text",
    "m": "rows",
    "n": "positive",
    "number": "positive",
    ARGUMENT: "int",
}
"""The type of each argument, by its name."""


def _integer(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def _integers(rng: np.random.Generator, size: int) -> list[int]:
    low, high = pick(rng, _RANGES)
    return [int(value) for value in rng.integers(low, high + 1, size=size)]


def _word(rng: np.random.Generator, length: int, alphabet: str) -> str:
    return "".join(alphabet[index] for index in rng.integers(len(alphabet), size=length))


def _words(rng: np.random.Generator, size: int) -> list[str]:
    """Some short words and, as palindromes are rare, now and then one made into a palindrome."""
    alphabet = pick(rng, _ALPHABETS)
    words = [_word(rng, _integer(rng, 1, 7), alphabet) for _ in range(size)]
    return [word + word[::-1] if rng.random() < 0.1 else word for word in words]


def _matrix(rng: np.random.Generator, size: int) -> list[list[int]]:
    rows = _integer(rng, 1, max(3, size // 4))
    columns = _integer(rng, 1, max(3, size // 4))
    values = iter(_integers(rng, rows * columns))
    return [[next(values) for _ in range(columns)] for _ in range(rows)]


_DRAWS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "a": _integers,
    "b": lambda rng, size: _integers(rng, _integer(rng, max(1, size // 2), size + 2)),
    "w": _words,
    "s": lambda rng, size: _word(rng, size, pick(rng, _ALPHABETS)),
    "m": _matrix,
    "n": lambda rng, size: _integer(rng, 2, 3 * size),
    "number": lambda rng, size: int("1" + "".join(map(str, rng.integers(10, size=size)))),
}
EDGES: dict[str, tuple[tuple[Any, ...], ...]] = {
    "a": (([],), ([7],), ([3, 3, 3, 3],), ([-5, 0, 5, 10, -10],), ([9, 8, 7, 6, 5, 4, 3, 2, 1],)),
    "a b": (([], [1, 2]), ([4, 4], [4, 4, 4]), ([5, -5, 0], [0, 5]), ([1, 2, 3], [3, 2, 1, 0])),
    "w": (
        ([],),
        (["a"],),
        (["moon", "noon", "moon"],),
        (["level", "bee", "apple", "tea"],),
        (["zebra", "yes", "x"],),
    ),
    "s": (("",), ("a",), ("zzzz",), ("abcabc",), ("noonlevel",)),
    "m": (([[5]],), ([[1, 2, 3, 4]],), ([[0], [3], [-3]],), ([[2, 2], [2, 2]],)),
    "n": ((1,), (2,), (97,), (64,), (120,)),
    "number": ((1,), (10,), (99999,), (1002003,), (123456789,)),
}
"""Arguments that catch hasty programs: nothing, one, all equal, zeros, downwards, overlapping."""


def draw_arguments(rng: np.random.Generator, takes: str, size: int) -> tuple[Any, ...]:
    """Arguments of about ``size`` items for the names in ``takes``."""
    return tuple(_DRAWS[name](rng, size) for name in takes.split())


def written(name: str, value: Any) -> str:
    """An argument as standard input gives it."""
    return ARGUMENT_TYPES[TYPES[name]].printed(value) + "\n"
