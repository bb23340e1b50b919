"""What problems are composed of: parts that are English and Python at once, and trees of them.

A part is a pair of templates with the same holes: ``"x is divisible by {k}"`` and
``"x % {k} == 0"``. A hole is filled by a number or letter out of the part's ``choices``, or by
another part of the category that the hole names. So whatever is said in a statement is, word for
word, what the reference solution does.

In code, ``v`` is the list worked on, ``x`` and ``y`` are items of it, ``t`` is a running total.
``{fold:row}`` fills a hole with its variable renamed, ``{relation:v[i];y}`` with both renamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from string import Formatter
from typing import TypeVar

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
