"""Arithmetic expressions: read, write, evaluate and find them, exactly and without ``eval``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

OPERATIONS = "+-*/"
MAX_LENGTH = 300
"""Longest text that is read; bounds the size of every value."""
MAX_DEPTH = 40
"""Deepest nesting of brackets and signs that is read."""
_TOKEN = re.compile(r"\s*([0-9]+|[-+*/()])", re.ASCII)
_SPELLINGS = (
    *(
        ("×", "*"),
        ("·", "*"),
        ("∗", "*"),
        ("÷", "/"),
        ("−", "-"),
        ("–", "-"),
        ("x", "*"),
        ("X", "*"),
    ),
    *(("\\times", "*"), ("\\cdot", "*"), ("\\div", "/")),
)


class ExpressionError(ValueError):
    """A text is not an expression; says why in one phrase."""


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number as written."""

    value: int


@dataclass(frozen=True, slots=True)
class Negation:
    """A minus sign before an operand."""

    inner: Expression


@dataclass(frozen=True, slots=True)
class Operation:
    """Two operands joined by one of ``+ - * /``."""

    symbol: str
    left: Expression
    right: Expression


Expression = Number | Negation | Operation


def parse(text: str) -> Expression:
    r"""Read an expression of whole numbers, ``+ - * /``, signs and round brackets.

    ``×``, ``x``, ``\times`` and their like count as the plain symbol. Anything else, a text over
    ``MAX_LENGTH`` or nesting over ``MAX_DEPTH`` is an ``ExpressionError``.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    for spelling, symbol in sorted(_SPELLINGS, key=lambda pair: -len(pair[0])):
        text = text.replace(spelling, symbol)
    return _Parser(_tokens(text)).whole()


def evaluate(expression: Expression) -> Fraction:
    """The exact value; ``ZeroDivisionError`` where there is none."""
    if isinstance(expression, Number):
        return Fraction(expression.value)
    if isinstance(expression, Negation):
        return -evaluate(expression.inner)
    return _apply(expression.symbol, evaluate(expression.left), evaluate(expression.right))


def numbers(expression: Expression) -> list[int]:
    """The numbers as they stand in the expression, from left to right."""
    if isinstance(expression, Number):
        return [expression.value]
    if isinstance(expression, Negation):
        return numbers(expression.inner)
    return numbers(expression.left) + numbers(expression.right)


def symbols(expression: Expression) -> set[str]:
    """The operations used; a sign counts as subtraction."""
    if isinstance(expression, Number):
        return set()
    if isinstance(expression, Negation):
        return {"-"} | symbols(expression.inner)
    return {expression.symbol} | symbols(expression.left) | symbols(expression.right)


def write(expression: Expression) -> str:
    """The expression with as few brackets as give back the same tree: ``35 + (44 + 19)``."""
    if isinstance(expression, Number):
        return str(expression.value)
    if isinstance(expression, Negation):
        inner = write(expression.inner)
        return f"-({inner})" if isinstance(expression.inner, Operation) else f"-{inner}"
    left, right = write(expression.left), write(expression.right)
    if _binding(expression.left) < _binding(expression):
        left = f"({left})"
    if _binding(expression.right) <= _binding(expression):
        right = f"({right})"
    return f"{left} {expression.symbol} {right}"


def working(expression: Expression) -> list[str]:
    """One line an operation, in the order one would compute: ``["44 + 19 = 63", ...]``."""
    if isinstance(expression, Number):
        return []
    if isinstance(expression, Negation):
        return working(expression.inner)
    left, right = evaluate(expression.left), evaluate(expression.right)
    value = _apply(expression.symbol, left, right)
    line = f"{_operand(left)} {expression.symbol} {_operand(right)} = {value}"
    return [*working(expression.left), *working(expression.right), line]


def find(values: tuple[int, ...], target: int, operations: str = OPERATIONS) -> Expression | None:
    """An expression that uses each of ``values`` once and equals ``target``; None if there is none.

    The search is exhaustive over the rationals: below a millisecond for four numbers, below a
    second for six.
    """
    return _Search(values, operations).reach((1 << len(values)) - 1, Fraction(target))


def _tokens(text: str) -> list[str]:
    tokens = []
    place = 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ExpressionError(f"{text[place:].strip()[:1]!r} is not part of an expression")
        tokens.append(match[1])
        place = match.end()
    return tokens


class _Parser:
    """Recursive descent over tokens: whole > sum > product > signed > operand."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = [*tokens, ""]
        self._place = 0

    def whole(self) -> Expression:
        expression = self._sum(0)
        if self._next:
            raise ExpressionError(f"{self._next!r} after the end")
        return expression

    def _sum(self, depth: int) -> Expression:
        left = self._product(depth)
        while self._next in ("+", "-"):
            left = Operation(self._take(), left, self._product(depth))
        return left

    def _product(self, depth: int) -> Expression:
        left = self._signed(depth)
        while self._next in ("*", "/"):
            left = Operation(self._take(), left, self._signed(depth))
        return left

    def _signed(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"nested deeper than {MAX_DEPTH}")
        if self._next in ("+", "-"):
            sign = self._take()
            inner = self._signed(depth + 1)
            return Negation(inner) if sign == "-" else inner
        return self._operand(depth)

    def _operand(self, depth: int) -> Expression:
        if self._next.isdigit():
            return Number(int(self._take()))
        if self._next != "(":
            raise ExpressionError(f"a number is missing before {self._next or 'the end'!r}")
        self._take()
        inner = self._sum(depth + 1)
        if self._next != ")":
            raise ExpressionError("a bracket is not closed")
        self._take()
        return inner

    @property
    def _next(self) -> str:
        return self._tokens[self._place]

    def _take(self) -> str:
        self._place += 1
        return self._tokens[self._place - 1]


class _Search:
    """Search over subsets of the given numbers, each subset a bit mask.

    Subsets of up to three numbers have all their values listed. A larger one is split in two: each
    value of the smaller part leaves a few values the larger part would have to take.
    """

    def __init__(self, values: tuple[int, ...], operations: str) -> None:
        self._values = values
        self._operations = operations
        self._listed: dict[int, dict[Fraction, Expression]] = {}
        self._reached: dict[tuple[int, Fraction], Expression | None] = {}

    def reach(self, mask: int, wanted: Fraction) -> Expression | None:
        if mask.bit_count() <= 3:
            return self._list(mask).get(wanted)
        if (mask, wanted) not in self._reached:
            self._reached[mask, wanted] = next(self._ways(mask, wanted), None)
        return self._reached[mask, wanted]

    def _ways(self, mask: int, wanted: Fraction) -> Iterator[Expression]:
        for small, large in _splits(mask):
            for value, expression in self._list(small).items():
                for symbol, other, is_left in self._missing(value, wanted):
                    found = self.reach(large, other)
                    if found is not None:
                        pair = (expression, found) if is_left else (found, expression)
                        yield Operation(symbol, *pair)
                if value == wanted == 0:
                    yield from self._nothing(expression, large)

    def _missing(self, value: Fraction, wanted: Fraction) -> Iterator[tuple[str, Fraction, bool]]:
        """Which other operand makes ``wanted`` of ``value``; the flag: is ``value`` on the left."""
        if "+" in self._operations:
            yield "+", wanted - value, True
        if "-" in self._operations:
            yield "-", value - wanted, True
            yield "-", wanted + value, False
        if value and "*" in self._operations:
            yield "*", wanted / value, True
        if value and "/" in self._operations:
            yield "/", wanted * value, False
            if wanted:
                yield "/", value / wanted, True

    def _nothing(self, zero: Expression, mask: int) -> Iterator[Expression]:
        """Zero times anything, or zero over anything that is not zero, is zero."""
        if "*" in self._operations:
            rest: Expression = zero
            for index in _indices(mask):
                rest = Operation("*", rest, Number(self._values[index]))
            yield rest
        elif "/" in self._operations:
            rests = (rest for value, rest in self._list(mask).items() if value)
            yield from (Operation("/", zero, rest) for rest in rests)

    def _list(self, mask: int) -> dict[Fraction, Expression]:
        if mask not in self._listed:
            if mask.bit_count() == 1:
                number = self._values[mask.bit_length() - 1]
                self._listed[mask] = {Fraction(number): Number(number)}
            else:
                self._listed[mask] = self._joined(mask)
        return self._listed[mask]

    def _joined(self, mask: int) -> dict[Fraction, Expression]:
        found: dict[Fraction, Expression] = {}
        for one, other in _splits(mask):
            for a, left in self._list(one).items():
                for b, right in self._list(other).items():
                    for symbol in self._operations:
                        if symbol != "/" or b:
                            found.setdefault(_apply(symbol, a, b), Operation(symbol, left, right))
                        if symbol == "-" or (symbol == "/" and a):
                            found.setdefault(_apply(symbol, b, a), Operation(symbol, right, left))
        return found


def _splits(mask: int) -> Iterator[tuple[int, int]]:
    """All ways to cut a set in two, the part that is not larger first."""
    part = (mask - 1) & mask
    while part:
        if (part.bit_count(), part) <= ((mask ^ part).bit_count(), mask ^ part):
            yield part, mask ^ part
        part = (part - 1) & mask


def _indices(mask: int) -> Iterator[int]:
    return (index for index in range(mask.bit_length()) if mask >> index & 1)


def _apply(symbol: str, left: Fraction, right: Fraction) -> Fraction:
    if symbol == "+":
        return left + right
    if symbol == "-":
        return left - right
    return left * right if symbol == "*" else left / right


def _binding(expression: Expression) -> int:
    if isinstance(expression, Operation):
        return 1 if expression.symbol in "+-" else 2
    return 3


def _operand(value: Fraction) -> str:
    return str(value) if value >= 0 and value.denominator == 1 else f"({value})"
