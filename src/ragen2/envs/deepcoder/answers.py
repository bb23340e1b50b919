"""A programming problem, how a program is graded on it, and whether an answer is the expected one.

Answers are exact where it matters, lenient in the writing. Lenient: white space; tuples and lists; JSON and
Python literals (``true``, ``True``); keys of a dict that JSON turned into text; fractions of numbers up to
rounding. Exact: integers, text, order.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from ragen2.sandbox import Given, Members, Pairs, ProgramOutcome, Sandbox

Form = Literal["stdin", "call"]


@dataclass(frozen=True, slots=True)
class Case:
    """One hidden test: what the program is given, and the answers that count as right.

    A check judges by itself, in a process of its own, and has no answers.
    """

    given: Given
    accepted: tuple[Any, ...] = ()


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
    num_left_out: int = 0
    """Tests of the record that cannot be judged away from the program, and so do not count."""


@dataclass(frozen=True, slots=True)
class Grade:
    """How a program did."""

    passed: tuple[bool, ...]
    outcomes: tuple[ProgramOutcome, ...]

    @property
    def ratio(self) -> float:
        """Share of the tests passed."""
        return sum(self.passed) / len(self.passed)


def grade(program: str, cases: Sequence[Case], sandbox: Sandbox, prelude: str = "") -> Grade:
    """Run ``program`` on every case and compare its answers with the accepted ones here."""
    outcomes = sandbox.run(program, [case.given for case in cases], prelude)
    passed = [_is_right(case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]
    return Grade(tuple(passed), tuple(outcomes))


def _is_right(case: Case, outcome: ProgramOutcome) -> bool:
    if outcome.status != "ok":
        return False
    if case.given.check:
        return outcome.value is True
    if case.given.call:
        return any(same_value(answer, outcome.value) for answer in case.accepted)
    return any(same_text(answer, outcome.stdout) for answer in case.accepted)


TOLERANCE = 1e-6
"""Relative, or absolute near zero, as programming contests usually allow."""
MAX_LITERAL_CHARACTERS = 100_000
MAX_LITERAL_DEPTH = 50
MAX_NESTED_MEMBERS = 1000
_EXACT_IN_FLOAT = 1 << 53
_PLAIN_LITERAL = re.compile(
    r"""(?>[\[\](){},:\s]+|"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'"""
    r"""|-?\d++(?:\.\d*+)?(?:[eE][+-]?\d++)?|True|False|None)*+""",
    re.DOTALL,
)
"""Brackets, text, numbers and constants: nothing that leads a parser into deep recursion."""


def same_text(expected: str, found: str) -> bool:
    """Whether two outputs agree token by token, or as one literal: ``[1,2]`` and ``[1, 2]``."""
    expected_tokens, found_tokens = expected.split(), found.split()
    if len(expected_tokens) == len(found_tokens) and all(
        map(_same_token, expected_tokens, found_tokens)
    ):
        return True
    if len(found) > MAX_LITERAL_CHARACTERS:
        return False
    parsed_expected, parsed_found = parse_literal(expected), parse_literal(found)
    if isinstance(parsed_expected, str) or isinstance(parsed_found, str):
        return False
    return same_value(parsed_expected, parsed_found)


def same_value(expected: Any, found: Any) -> bool:
    """Whether a value is the expected one; ``found`` may hold anything a program can return."""
    try:
        return _same(expected, found)
    except (RecursionError, ArithmeticError, LookupError, TypeError, ValueError):
        return False


def parse_literal(text: str) -> Any:
    """The JSON or Python literal that ``text`` is, else the text itself without outer space."""
    stripped = text.strip()
    try:
        return json.loads(stripped)
    except (ValueError, RecursionError):
        pass
    is_plain = len(stripped) <= MAX_LITERAL_CHARACTERS and _PLAIN_LITERAL.fullmatch(stripped)
    if not is_plain or _depth(stripped) > MAX_LITERAL_DEPTH:
        return stripped
    try:
        return ast.literal_eval(stripped)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return stripped


def _same_token(expected: str, found: str) -> bool:
    if expected == found:
        return True
    if not (_looks_fractional(expected) or _looks_fractional(found)):
        return expected.lower() == found.lower() and expected.lower() in ("true", "false")
    try:
        wanted = float(expected) if _looks_fractional(expected) else int(expected)
        return _same_number(wanted, float(found))
    except ValueError:
        return False


def _looks_fractional(token: str) -> bool:
    return any(mark in token for mark in ".eE") and token[-1:] in "0123456789."


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, (bool, int, float, complex, Fraction, Decimal)):
        return _same_number(expected, found)
    if isinstance(expected, (str, bytes)) or expected is None:
        return type(found) is type(expected) and bool(found == expected)
    if isinstance(expected, (AbstractSet, Members)):
        return isinstance(found, Members) and _same_members(_items(expected), found.items)
    if isinstance(expected, (Mapping, Pairs)):
        return isinstance(found, (Pairs, Mapping)) and _same_pairs(_items(expected), _items(found))
    if isinstance(expected, Sequence):
        return (
            isinstance(found, (list, tuple))
            and len(found) == len(expected)
            and all(map(_same, expected, found))
        )
    return False


def _same_number(expected: Any, found: Any) -> bool:
    if not isinstance(found, (bool, int, float, complex, Fraction, Decimal)):
        return False
    if isinstance(expected, complex) or isinstance(found, complex):
        left, right = complex(expected), complex(found)
        return _close(left.real, right.real) and _close(left.imag, right.imag)
    if isinstance(expected, int) and isinstance(found, int):
        return int(expected) == int(found)
    if isinstance(expected, int) and abs(expected) >= _EXACT_IN_FLOAT:
        return bool(found == expected)  # a float may be millions off here and still look close
    if isinstance(expected, int):
        return abs(float(found) - expected) <= TOLERANCE
    return _close(float(expected), float(found))


def _close(expected: float, found: float) -> bool:
    if expected == found or (expected != expected and found != found):  # noqa: PLR0124 - both NaN
        return True
    return abs(expected - found) <= TOLERANCE * max(1.0, abs(expected)) and abs(found) < float(
        "inf"
    )


def _items(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (Members, Pairs)):
        return value.items
    return tuple(value.items()) if isinstance(value, Mapping) else tuple(value)


def _same_members(expected: tuple[Any, ...], found: tuple[Any, ...]) -> bool:
    """Whether two sets agree. Only expected members are hashed; the found ones are looked up."""
    if len(expected) != len(found):
        return False
    left = {_key(member) for member in expected}
    seen = left & {key for key in map(_key, found) if key in left}
    return len(seen) == len(left)


def _same_pairs(expected: tuple[Any, ...], found: tuple[Any, ...]) -> bool:
    """Whether two dicts agree; a text key stands for what prints the same, as JSON writes it."""
    if len(expected) != len(found):
        return False
    wanted = {_key(key): value for key, value in expected}
    for key, value in found:
        mark = _key(key)
        if mark not in wanted and isinstance(key, (int, float)):
            mark = str(key)
        if mark not in wanted or not _same(wanted.pop(mark), value):
            return False
    return not wanted


def _key(value: Any) -> Any:
    """A hashable stand-in under which equal members are equal, tuples and lists alike."""
    if isinstance(value, (list, tuple)):
        return tuple(_key(part) for part in value)
    if isinstance(value, (AbstractSet, Members)):
        members = _items(value)
        if len(members) > MAX_NESTED_MEMBERS:
            raise ValueError("too many members of a set within a set")
        return ("set", frozenset(map(_key, members)))
    return value


def _depth(text: str) -> int:
    """Greatest nesting of brackets, so that a parser is not led into deep recursion."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest
