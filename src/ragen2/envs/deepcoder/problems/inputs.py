"""Arguments of problems: how they are named, drawn, written on standard input and read from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ragen2.envs.deepcoder.problems.parts import ARGUMENT, pick

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
