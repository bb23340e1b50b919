"""Sudoku puzzles that have exactly one solution: a random full grid with holes dug into it.

A grid is its cells row by row; 0 is a blank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ragen2.envs.base import belongs
from ragen2.errors import EnvError
from ragen2.seeding import stream

Grid = tuple[int, ...]

BOX_SIDE = {4: 2, 9: 3}
MOST_BLANKS = {4: 10, 9: 54}
"""Most blanks a size may ask for: digging reaches them within a few grids."""
MAX_DRAWS = 200
RELABELLINGS = 24
"""Other numbers for a dug grid before the next is dug: digging is what takes the time."""


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Given numbers and the only way to complete them."""

    size: int
    given: Grid
    solution: Grid


@lru_cache(maxsize=4096)
def draw_puzzle(size: int, blanks: int, seed: int) -> Puzzle:
    """The puzzle called ``seed`` with exactly ``blanks`` blanks and one solution.

    Training seeds never give a puzzle that a held-out seed gives.
    """
    rng = stream("Sudoku", "puzzle", size, blanks, seed)
    for _ in range(MAX_DRAWS):
        solution = full_grid(size, rng)
        given = dig(solution, size, blanks, rng)
        if given is None:
            continue
        for _ in range(RELABELLINGS):
            names = (0, *(int(number) + 1 for number in rng.permutation(size)))
            renamed = tuple(names[number] for number in given)
            if belongs(seed, "Sudoku", *renamed):
                return Puzzle(size, renamed, tuple(names[number] for number in solution))
    raise EnvError(
        f"no {size}x{size} Sudoku with {blanks} blanks and one solution in {MAX_DRAWS} draws; "
        "lower blanks"
    )


def full_grid(size: int, rng: np.random.Generator) -> Grid:
    """A random grid that keeps all rules."""
    return next(solutions((0,) * size**2, size, rng))


def dig(solution: Grid, size: int, blanks: int, rng: np.random.Generator) -> Grid | None:
    """Blank cells in random order where the solution stays the only one; None if too few can be."""
    cells = list(solution)
    left = blanks
    for index in rng.permutation(size**2):
        cells[index] = 0
        left -= 1
        if has_one_solution(tuple(cells), size):
            if left == 0:
                return tuple(cells)
        else:
            cells[index] = solution[index]
            left += 1
    return None


def has_one_solution(grid: Grid, size: int) -> bool:
    """Whether there is exactly one way to fill the blanks."""
    found = solutions(grid, size)
    return next(found, None) is not None and next(found, None) is None


def solutions(grid: Grid, size: int, rng: np.random.Generator | None = None) -> Iterator[Grid]:
    """All ways to fill the blanks; with ``rng`` numbers are tried in random order."""
    cells = list(grid)
    houses = houses_of(size)
    used = [0] * (3 * size)
    for index, number in enumerate(cells):
        if number:
            for house in houses[index]:
                used[house] |= 1 << number
    blanks = [index for index, number in enumerate(cells) if not number]
    return _fill(cells, blanks, used, houses, rng)


@lru_cache(maxsize=2)
def houses_of(size: int) -> tuple[tuple[int, int, int], ...]:
    """For each cell its row, column and box, numbered on: first rows, then columns, then boxes."""
    side = BOX_SIDE[size]
    places = (divmod(index, size) for index in range(size**2))
    return tuple(
        (row, size + column, 2 * size + row // side * side + column // side)
        for row, column in places
    )


@lru_cache(maxsize=2)
def peers_of(size: int) -> tuple[tuple[int, ...], ...]:
    """For each cell the others in its row, column or box."""
    houses = houses_of(size)
    cells = range(size**2)
    return tuple(
        tuple(other for other in cells if other != cell and set(houses[cell]) & set(houses[other]))
        for cell in cells
    )


def _fill(
    cells: list[int],
    blanks: list[int],
    used: list[int],
    houses: tuple[tuple[int, int, int], ...],
    rng: np.random.Generator | None,
) -> Iterator[Grid]:
    """Depth-first over the blank with the fewest numbers left; ``used`` holds one bit per number."""
    if not blanks:
        yield tuple(cells)
        return
    index, free = _tightest(blanks, used, houses)
    rest = [other for other in blanks if other != index]
    numbers = [number for number in range(1, len(used) // 3 + 1) if free >> number & 1]
    if rng is not None:
        rng.shuffle(numbers)
    for number in numbers:
        cells[index] = number
        for house in houses[index]:
            used[house] |= 1 << number
        yield from _fill(cells, rest, used, houses, rng)
        for house in houses[index]:
            used[house] ^= 1 << number
    cells[index] = 0


def _tightest(
    blanks: list[int], used: list[int], houses: tuple[tuple[int, int, int], ...]
) -> tuple[int, int]:
    """The blank with the fewest free numbers, and those numbers as bits."""
    every = (1 << len(used) // 3 + 1) - 2
    fewest, best, best_free = 100, -1, 0
    for index in blanks:
        row, column, box = houses[index]
        free = every & ~(used[row] | used[column] | used[box])
        count = free.bit_count()
        if count < fewest:
            fewest, best, best_free = count, index, free
            if count <= 1:
                break
    return best, best_free
