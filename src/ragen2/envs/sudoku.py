"""Sudoku: fill the blanks of a grid that has exactly one solution.

The number of blanks is a setting and never exceeds the actions allowed, so every puzzle can be
solved within its budget. A cell pays once, when it is first filled, and only for the right number.

A puzzle is a random full grid with holes dug into it. A grid is its cells row by row; 0 is a blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ragen2.envs.base import Easier, Env, Episode, Step, belongs, normalise, rising
from ragen2.envs.toolkit.pixels import Colour, number_tile, paint
from ragen2.envs.toolkit.wording import pick
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


RIGHT_REWARD = 1.0
ILLEGAL_REWARD = -0.1
COMPLETION_BONUS = 10.0
MOST_ACTIONS = 200
MAX_ACTION_LENGTH = 60

_PAIR = (
    r"(?:\(? ?(?P<row>\d{1,2})(?: ?, ?| )(?P<column>\d{1,2}) ?\)?"
    r"|row (?P<row2>\d{1,2}),? col(?:umn)? (?P<column2>\d{1,2}))"
)
_PLACE = re.compile(rf"(?:place )?(?P<number>\d{{1,2}}) (?:at|in) {_PAIR}\.?", re.ASCII)
_CLEAR = re.compile(rf"clear {_PAIR}\.?", re.ASCII)
_TRIPLE = re.compile(
    r"\(? ?(?P<row>\d{1,2}) ?, ?(?P<column>\d{1,2}) ?, ?(?P<number>\d{1,2}) ?\)?", re.ASCII
)
_GIVEN_COLOUR: Colour = (214, 214, 222)
_FREE_COLOUR: Colour = (250, 250, 245)


class Sudoku(Env):
    """Place the missing numbers."""

    kind: Literal["Sudoku"] = "Sudoku"
    size: Literal[4, 9] = Field(4, description="rows, columns and numbers: 4 or 9")
    blanks: int = Field(
        6, ge=1, le=MOST_BLANKS[9], description="cells to fill; at most 10 on the 4x4 grid"
    )
    max_turns: int = Field(6, ge=1, description="replies the agent may write in one episode")
    max_actions: int = Field(
        12,
        ge=1,
        le=MOST_ACTIONS,
        description="actions the environment takes in one episode; at least as many as blanks",
    )

    reward_range: ClassVar[tuple[float, float]] = (
        ILLEGAL_REWARD * MOST_ACTIONS,
        RIGHT_REWARD * MOST_BLANKS[9] + COMPLETION_BONUS,
    )
    """For any settings; ``return_range`` is exact for these."""
    state_kind: ClassVar[Literal["grid", "text"]] = "grid"
    reward_kind: ClassVar[Literal["binary", "dense"]] = "dense"

    @model_validator(mode="after")
    def _can_be_solved(self) -> Self:
        if self.blanks > MOST_BLANKS[self.size]:
            raise ValueError(
                f"blanks must be at most {MOST_BLANKS[self.size]} for size {self.size}, "
                f"got {self.blanks}; lower blanks or set size=9"
            )
        if self.max_actions < self.blanks:
            raise ValueError(
                f"max_actions must be at least blanks ({self.blanks}), got {self.max_actions}; "
                "no agent could fill the grid"
            )
        return self

    @property
    def return_range(self) -> tuple[float, float]:
        """Least and greatest return with these settings; the expert reaches the greatest."""
        return ILLEGAL_REWARD * self.max_actions, RIGHT_REWARD * self.blanks + COMPLETION_BONUS

    @property
    def instruction(self) -> str:
        """Rules and a worked reply."""
        return (
            f"{self.rules} Actions: {', '.join(self.action_forms)}. "
            "Example: <think>row 1 lacks only 2, its blank is (1,3)</think>"
            "<answer>place 2 at (1,3)</answer>"
        )

    @property
    def rules(self) -> str:
        """What a full grid must be, and how cells are counted."""
        side = BOX_SIDE[self.size]
        return (
            f"Fill the {self.size}x{self.size} grid so that every row, column and {side}x{side} "
            f"box holds each of 1 to {self.size} once. A dot is a blank; rows and columns count "
            "from 1."
        )

    @property
    def action_forms(self) -> tuple[str, ...]:
        """Filling a cell and emptying it."""
        return ("place N at (row,column)", "clear (row,column)")

    def dearest_reply(self, num_actions: int) -> float:
        """Placements that break a rule."""
        return ILLEGAL_REWARD * num_actions

    @property
    def easier(self) -> Easier:
        """Fewer blanks."""
        return tuple({"blanks": blanks} for blanks in rising(1, self.blanks))

    def start(self, seed: int, luck: int) -> SudokuEpisode:
        """Puzzle from ``seed``; nothing depends on ``luck``."""
        del luck
        return SudokuEpisode(draw_puzzle(self.size, self.blanks, seed))


class SudokuEpisode(Episode):
    """One grid being filled."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle = puzzle
        self.cells = list(puzzle.given)
        self._tried: set[int] = set()

    @property
    def solved(self) -> bool:
        """Full and right, which is the same as full and without conflict."""
        return tuple(self.cells) == self.puzzle.solution

    @property
    def observation(self) -> str:
        """The grid with lines between boxes."""
        size, side = self.puzzle.size, BOX_SIDE[self.puzzle.size]
        lines = []
        for row in range(size):
            if row and row % side == 0:
                lines.append("-+-".join(["-" * (2 * side - 1)] * side))
            marks = [str(number or ".") for number in self.cells[row * size : (row + 1) * size]]
            boxes = [" ".join(marks[start : start + side]) for start in range(0, size, side)]
            lines.append(" | ".join(boxes))
        return "\n".join(lines)

    def step(self, action: str) -> Step:
        """Place or clear a number; a cell pays when its first number is right, the last one +10."""
        wanted = parse(action, self.puzzle.size)
        if self.solved:
            return Step(0.0, True, True, valid=wanted is not None, effective=False)
        if wanted is None:
            return Step(0.0, False, valid=False, effective=False)
        index, number = wanted
        if self.puzzle.given[index] or (number and number not in self._candidates(index)):
            return Step(ILLEGAL_REWARD, False, effective=False)
        changed = self.cells[index] != number
        self.cells[index] = number
        reward = 0.0
        if number and index not in self._tried:
            self._tried.add(index)
            reward += RIGHT_REWARD * (number == self.puzzle.solution[index])
        reward += COMPLETION_BONUS * self.solved
        return Step(reward, self.solved, self.solved, effective=changed)

    def expert(self) -> tuple[str, ...]:
        """Clear what is wrong, then fill the cells that follow most plainly first."""
        wrong = [
            index
            for index, number in enumerate(self.cells)
            if number not in (0, self.puzzle.solution[index])
        ]
        trial = SudokuEpisode(self.puzzle)
        trial.cells = [0 if index in wrong else number for index, number in enumerate(self.cells)]
        plan = [self._name(index, 0) for index in wrong]
        while not trial.solved:
            index = trial._plainest()
            trial.cells[index] = self.puzzle.solution[index]
            plan.append(self._name(index, trial.cells[index]))
        return tuple(plan)

    def random_action(self, rng: np.random.Generator) -> str:
        """A placement that breaks no rule; where there is none, a cell is cleared."""
        choices = [
            (index, number)
            for index in self._blank_cells()
            for number in sorted(self._candidates(index))
        ]
        choices = choices or [
            (index, 0) for index, number in enumerate(self.puzzle.given) if not number
        ]
        return self._name(*choices[int(rng.integers(len(choices)))])

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """Why the first action follows from the grid, and what comes after."""
        wanted = parse(actions[0], self.puzzle.size) if actions else None
        if wanted is None:
            return pick(rng, "the grid is full.", "every cell is filled.", "no blank is left.")
        plan = ", ".join(actions)
        closing = pick(rng, "so I", "then", "next:", "I")
        return f"{self._reason(*wanted, rng)} {closing} {plan}"

    def image(self, cell_pixels: int = 28) -> npt.NDArray[np.uint8]:
        """The grid; given cells are darker."""
        size = self.puzzle.size
        tiles = [
            number_tile(number, _GIVEN_COLOUR if given else _FREE_COLOUR)
            for number, given in zip(self.cells, self.puzzle.given, strict=True)
        ]
        return paint([tiles[row * size : (row + 1) * size] for row in range(size)], cell_pixels)

    def _reason(self, index: int, number: int, rng: np.random.Generator) -> str:
        place = self._place(index)
        row, column = divmod(index, self.puzzle.size)
        if number == 0:
            return f"{self.cells[index]} at {place} {pick(rng, 'is wrong', 'cannot stay')}."
        in_row, in_column, in_box = (self._house_numbers(house, index) for house in range(3))
        here = pick(
            rng,
            f"row {row + 1} has {in_row}, column {column + 1} has {in_column}, its box {in_box}.",
            f"{place} is blank; its row has {in_row}, column {in_column}, box {in_box}.",
            f"{in_row} in row {row + 1}, {in_column} in column {column + 1}, {in_box} in the box.",
        )
        if len(self._candidates(index)) == 1:
            return (
                f"{here} {pick(rng, f'only {number} fits {place}', f'{place} must be {number}')},"
            )
        return f"{here} {pick(rng, f'{number} belongs at {place}', f'{place} takes {number}')},"

    def _house_numbers(self, house: int, index: int) -> str:
        """The numbers in the row (0), column (1) or box (2) of a cell, in order."""
        houses = houses_of(self.puzzle.size)
        same = houses[index][house]
        found = sorted(
            number for other, number in enumerate(self.cells) if houses[other][house] == same
        )
        return " ".join(str(number) for number in found if number) or "nothing"

    def _blank_cells(self) -> list[int]:
        return [index for index, number in enumerate(self.cells) if not number]

    def _candidates(self, index: int) -> set[int]:
        """Numbers that no other cell in the row, column or box of ``index`` holds."""
        taken = {self.cells[other] for other in peers_of(self.puzzle.size)[index]}
        return set(range(1, self.puzzle.size + 1)) - taken

    def _plainest(self) -> int:
        """The blank with the fewest candidates."""
        return min(self._blank_cells(), key=lambda index: len(self._candidates(index)))

    def _place(self, index: int) -> str:
        row, column = divmod(index, self.puzzle.size)
        return f"({row + 1},{column + 1})"

    def _name(self, index: int, number: int) -> str:
        place = self._place(index)
        return f"place {number} at {place}" if number else f"clear {place}"


def parse(action: str, size: int) -> tuple[int, int] | None:
    """Cell index and number (0 clears) of an action, or None when it is not one.

    Known forms, rows and columns from 1: ``place 3 at (1,2)``, ``3 at 1,2``, ``place 3 at row 1
    col 2``, ``(1,2,3)`` and ``1,2,3`` with the number last, ``clear (1,2)``.
    """
    if len(action) > MAX_ACTION_LENGTH:
        return None
    text = normalise(action)
    found = _PLACE.fullmatch(text) or _TRIPLE.fullmatch(text) or _CLEAR.fullmatch(text)
    if found is None:
        return None
    parts = found.groupdict()
    row = int(parts["row"] or parts["row2"])
    column = int(parts["column"] or parts["column2"])
    number = int(parts["number"]) if "number" in parts else 0
    if not (1 <= row <= size and 1 <= column <= size and number <= size):
        return None
    if number == 0 and "number" in parts:
        return None
    return (row - 1) * size + column - 1, number
