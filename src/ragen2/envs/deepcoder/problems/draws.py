"""Random arguments for problems: plain Python numbers, texts and grids from a generator."""

from __future__ import annotations

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def integer(rng: np.random.Generator, low: int, high: int) -> int:
    """An integer from ``low`` to ``high``, both included."""
    return int(rng.integers(low, high + 1))


def integers(rng: np.random.Generator, count: int, low: int, high: int) -> list[int]:
    """A list of them."""
    return [int(value) for value in rng.integers(low, high + 1, size=count)]


def long_integer(rng: np.random.Generator, digits: int) -> int:
    """A positive integer of ``digits`` digits, however many."""
    text = "".join(map(str, integers(rng, digits, 0, 9)))
    return int("1" + text[1:])


def word(rng: np.random.Generator, length: int, alphabet: str = LETTERS) -> str:
    """A text of ``length`` characters out of ``alphabet``."""
    return "".join(alphabet[index] for index in integers(rng, length, 0, len(alphabet) - 1))


def words(rng: np.random.Generator, count: int, longest: int, alphabet: str = LETTERS) -> list[str]:
    """Texts of one to ``longest`` characters."""
    return [word(rng, integer(rng, 1, longest), alphabet) for _ in range(count)]


def grid(rng: np.random.Generator, rows: int, columns: int, wall_ratio: float) -> list[str]:
    """Rows of ``.`` and ``#``."""
    walls = rng.random((rows, columns)) < wall_ratio
    return ["".join("#" if wall else "." for wall in row) for row in walls]


def matrix(
    rng: np.random.Generator, rows: int, columns: int, low: int, high: int
) -> list[list[int]]:
    """Rows of integers."""
    return [integers(rng, columns, low, high) for _ in range(rows)]


def edges(rng: np.random.Generator, nodes: int, count: int) -> list[list[int]]:
    """Pairs of different nodes, each pair at most once, in either order."""
    found: dict[tuple[int, int], list[int]] = {}
    for _ in range(count):
        first, second = integers(rng, 2, 0, nodes - 1)
        if first != second:
            found.setdefault((min(first, second), max(first, second)), [first, second])
    return list(found.values())


def tree(rng: np.random.Generator, nodes: int) -> list[list[int]]:
    """Edges that connect ``nodes`` nodes without a cycle."""
    return [[integer(rng, max(0, node - 6), node - 1), node] for node in range(1, nodes)]
