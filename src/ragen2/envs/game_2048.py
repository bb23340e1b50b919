"""2048: slide equal tiles together until one reaches the target; each move adds a new tile.

The seed fixes the board at the start, the luck fixes where new tiles appear and which are a 4. A board is a
tuple of rows of tile values; 0 is an empty cell. The expert looks two moves ahead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ragen2.envs.base import Easier, Env, Episode, Step, belongs, normalise
from ragen2.envs.toolkit.pixels import Colour, number_tile, paint
from ragen2.envs.toolkit.wording import DIRECTIONS, pick
from ragen2.seeding import stream

Line = tuple[int, ...]
Board = tuple[Line, ...]

MOVES = ("up", "right", "down", "left")
_ROOMY = 10
"""With more empty cells than this a new tile hardly hurts, so the player does not look further."""
_LOST = -1000.0
"""Value of a board without a move; below that of any other."""


@lru_cache(maxsize=200_000)
def slide_line(line: Line) -> tuple[Line, Line]:
    """A line after its tiles moved to its start, and the tiles that merging made.

    Each tile merges once: 2 2 4 becomes 4 4.
    """
    tiles = [tile for tile in line if tile]
    out: list[int] = []
    merged: list[int] = []
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tile += tiles.pop(0)
            merged.append(tile)
        out.append(tile)
    return tuple(out + [0] * (len(line) - len(out))), tuple(merged)


def slide(board: Board, move: str) -> tuple[Board, Line]:
    """The board after a move, before the new tile, and the tiles that merging made."""
    lines = tuple(zip(*board, strict=True)) if move in ("up", "down") else board
    if move in ("right", "down"):
        lines = tuple(line[::-1] for line in lines)
    moved = [slide_line(line) for line in lines]
    lines = tuple(line for line, _ in moved)
    if move in ("right", "down"):
        lines = tuple(line[::-1] for line in lines)
    if move in ("up", "down"):
        lines = tuple(zip(*lines, strict=True))
    return lines, tuple(tile for _, merged in moved for tile in merged)


def legal_moves(board: Board) -> tuple[str, ...]:
    """The moves that change the board."""
    return tuple(move for move in MOVES if slide(board, move)[0] != board)


def empty_cells(board: Board) -> list[tuple[int, int]]:
    """(row, column) of every empty cell."""
    return [
        (row, column)
        for row, line in enumerate(board)
        for column, tile in enumerate(line)
        if not tile
    ]


def with_tile(board: Board, cell: tuple[int, int], tile: int) -> Board:
    """The board with ``tile`` put on an empty cell."""
    row, column = cell
    line = (*board[row][:column], tile, *board[row][column + 1 :])
    return (*board[:row], line, *board[row + 1 :])


def spawn(board: Board, four_chance: float, rng: np.random.Generator) -> Board:
    """The board with a new 2 or 4 on a random empty cell."""
    cells = empty_cells(board)
    cell = cells[int(rng.integers(len(cells)))]
    return with_tile(board, cell, 4 if rng.random() < four_chance else 2)


def best_move(board: Board) -> str:
    """The legal move that looks best on average over where a new 2 may appear, one reply on."""
    values = {move: _value_after(slide(board, move)[0]) for move in legal_moves(board)}
    return max(values, key=lambda move: values[move])


def _value_after(board: Board) -> float:
    cells = empty_cells(board)
    if len(cells) > _ROOMY:
        return board_value(board)
    boards = [with_tile(board, cell, 2) for cell in cells]
    return sum(_best_reply(after) for after in boards) / len(boards)


def _best_reply(board: Board) -> float:
    values = []
    for move in MOVES:
        after, _ = slide(board, move)
        if after != board:
            values.append(board_value(after))
    return max(values, default=_LOST)


def board_value(board: Board) -> float:
    """How good a board looks: empty cells, ordered lines, equal neighbours."""
    return sum(line_value(line) for line in board) + sum(
        line_value(line) for line in zip(*board, strict=True)
    )


@lru_cache(maxsize=200_000)
def line_value(line: Line) -> float:
    """Empty cells and equal neighbours count for a line, tiles out of order against it."""
    levels = [tile.bit_length() for tile in line]
    steps = [after - before for before, after in pairwise(levels)]
    rises = sum(step**2 for step in steps if step > 0)
    falls = sum(step**2 for step in steps if step < 0)
    tiles = [tile for tile in line if tile]
    pairs = sum(a == b for a, b in pairwise(tiles))
    # Weights of a heuristic: a test holds the player to the default target on each of 100 tasks.
    return 3.0 * line.count(0) + 2.0 * pairs - 0.5 * min(rises, falls)


NO_CHANGE_REWARD = -0.1
MOST_ACTIONS = 2000
START_TILES = 2
MAX_DRAWS = 10_000
_EMPTY_COLOUR: Colour = (205, 193, 180)


def _most_reward() -> float:
    """No play of ``MOST_ACTIONS`` moves pays more than this.

    A move adds at most 4 to the board, and making a tile of 2**k out of 2s merges k - 1 times its
    value. So all merges together make at most 10 times the sum of the board, and the reward,
    concave in what one move merges, is greatest when that is spread evenly.
    """
    merged = 10 * 4 * (MOST_ACTIONS + START_TILES)
    return MOST_ACTIONS * move_reward(merged / MOST_ACTIONS)


def move_reward(merged: float) -> float:
    """A tenth of the binary logarithm of one more than the sum of the tiles a move made."""
    return 0.1 * math.log2(merged + 1)


class Game2048(Env):
    """Join tiles until one shows the target."""

    kind: Literal["Game2048"] = "Game2048"
    size: int = Field(4, ge=3, le=6, description="rows and columns of the board")
    target_tile: int = Field(64, ge=8, le=2048, description="tile that solves the game, power of 2")
    four_chance: float = Field(0.1, ge=0.0, le=1.0, description="chance that a new tile is a 4")
    max_turns: int = Field(40, ge=1, description="replies the agent may write in one episode")
    max_actions: int = Field(
        80, ge=1, le=MOST_ACTIONS, description="actions the environment takes in one episode"
    )

    reward_range: ClassVar[tuple[float, float]] = (NO_CHANGE_REWARD * MOST_ACTIONS, _most_reward())
    """For any settings; the upper end is a bound, not a score that can be had."""
    stochastic: ClassVar[bool] = True
    state_kind: ClassVar[Literal["grid", "text"]] = "grid"
    reward_kind: ClassVar[Literal["binary", "dense"]] = "dense"
    has_fixed_actions: ClassVar[bool] = True
    synonyms: ClassVar[Mapping[str, str]] = DIRECTIONS

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.target_tile & (self.target_tile - 1):
            raise ValueError(f"target_tile must be a power of 2, got {self.target_tile}")
        if self.target_tile > 2 ** (self.size**2 + 1):
            raise ValueError(
                f"target_tile {self.target_tile} does not fit a {self.size}x{self.size} board; "
                f"lower it to at most {2 ** (self.size**2 + 1)} or raise size"
            )
        # A move adds at least 2 to the sum of the board, which must hold the target.
        needed = self.target_tile // 2 - START_TILES
        if self.max_actions < needed:
            raise ValueError(
                f"max_actions must be at least {needed} for target_tile {self.target_tile}, got "
                f"{self.max_actions}; raise it or lower target_tile"
            )
        return self

    @property
    def instruction(self) -> str:
        """Rules and a worked reply."""
        return (
            f"{self.rules} Actions: {', '.join(self.action_forms)}. "
            "Example: <think>two 4s touch in row 1</think><answer>Left</answer>"
        )

    @property
    def rules(self) -> str:
        """How tiles move and join, and what to make of them."""
        return (
            f"This is 2048 on a {self.size}x{self.size} board; a dot is an empty cell. A move "
            "slides all tiles; two equal tiles that meet become one of twice the value, then a new "
            f"2 or 4 appears. Make a tile of {self.target_tile}. A move that changes nothing costs "
            f"{-NO_CHANGE_REWARD}."
        )

    @property
    def action_forms(self) -> tuple[str, ...]:
        """The four moves."""
        return tuple(move.capitalize() for move in MOVES)

    def dearest_reply(self, num_actions: int) -> float:
        """Moves that change nothing."""
        return NO_CHANGE_REWARD * num_actions

    @property
    def easier(self) -> Easier:
        """Lower targets."""
        return tuple(
            {"target_tile": 2**power} for power in range(3, self.target_tile.bit_length() - 1)
        )

    def start(self, seed: int, luck: int) -> Game2048Episode:
        """Board from ``seed`` alone; new tiles from ``seed`` and ``luck``."""
        board = self._first_board(seed)
        return Game2048Episode(self, board, stream("Game2048", "spawn", seed, luck))

    def _first_board(self, seed: int) -> Board:
        """Two tiles; training seeds never give a board that a held-out seed gives."""
        rng = stream("Game2048", "board", seed)
        for _ in range(MAX_DRAWS):
            board: Board = ((0,) * self.size,) * self.size
            for _ in range(START_TILES):
                board = spawn(board, self.four_chance, rng)
            if belongs(seed, "Game2048", *(tile for row in board for tile in row)):
                return board
        raise AssertionError("one board in five is held out, so a draw cannot fail this often")


class Game2048Episode(Episode):
    """One game."""

    def __init__(self, env: Game2048, board: Board, spawns: np.random.Generator) -> None:
        self.env = env
        self.board = board
        self._spawns = spawns

    @property
    def highest(self) -> int:
        """The greatest tile."""
        return max(tile for row in self.board for tile in row)

    @property
    def solved(self) -> bool:
        """The target is on the board."""
        return self.highest >= self.env.target_tile

    @property
    def done(self) -> bool:
        """Solved, or no move changes the board."""
        return self.solved or not legal_moves(self.board)

    @property
    def observation(self) -> str:
        """The board row by row, columns aligned."""
        width = len(str(self.highest))
        return "\n".join(
            " ".join(str(tile or ".").rjust(width) for tile in row) for row in self.board
        )

    def step(self, action: str) -> Step:
        """Slide all tiles; what they merge into is the reward."""
        move = normalise(action)
        if self.done:
            return Step(0.0, True, self.solved, valid=move in MOVES, effective=False)
        if move not in MOVES:
            return Step(0.0, False, valid=False, effective=False)
        board, merged = slide(self.board, move)
        if board == self.board:
            return Step(NO_CHANGE_REWARD, False, effective=False)
        self.board = spawn(board, self.env.four_chance, self._spawns)
        return Step(move_reward(sum(merged)), self.done, self.solved)

    def expert(self) -> tuple[str, ...]:
        """The move that looks best two moves ahead; one only, as the next tile is unknown."""
        return () if self.done else (best_move(self.board).capitalize(),)

    def random_action(self, rng: np.random.Generator) -> str:
        """A move that changes the board; any move when there is none."""
        moves = legal_moves(self.board) or MOVES
        return moves[int(rng.integers(len(moves)))].capitalize()

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """Where the greatest tile is, what the move joins, and the move."""
        row = next(number for number, line in enumerate(self.board) if self.highest in line)
        column = self.board[row].index(self.highest)
        where = f"row {row + 1} column {column + 1}"
        free = sum(tile == 0 for line in self.board for tile in line)
        here = pick(
            rng,
            f"the largest tile is {self.highest} at {where}, {free} cells are free.",
            f"{self.highest} leads at {where} with {free} empty cells.",
            f"best tile {self.highest} in {where}; {free} cells empty.",
        )
        if not actions or normalise(actions[0]) not in MOVES:
            return f"{here} {pick(rng, 'the game is over', 'nothing is left to do')}"
        move = normalise(actions[0])
        _, merged = slide(self.board, move)
        joined = " and ".join(f"{tile // 2}+{tile // 2}" for tile in merged)
        effect = (
            pick(rng, f"{move} joins {joined},", f"{joined} meet going {move},")
            if merged
            else pick(rng, f"{move} keeps the order,", f"{move} brings tiles together,")
        )
        return f"{here} {effect} {pick(rng, 'so', 'I go', 'move')} {' '.join(actions).lower()}"

    def image(self, cell_pixels: int = 28) -> npt.NDArray[np.uint8]:
        """The board; warmer colours are greater tiles."""
        return paint(
            [[number_tile(tile, _colour(tile)) for tile in row] for row in self.board], cell_pixels
        )


def _colour(tile: int) -> Colour:
    if not tile:
        return _EMPTY_COLOUR
    warmth = min(tile.bit_length() - 1, 11)
    return 240, 235 - 12 * warmth, 220 - 18 * warmth
