"""The 2048 board: sliding, new tiles, and a player that looks two moves ahead.

A board is a tuple of rows of tile values; 0 is an empty cell.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np

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
