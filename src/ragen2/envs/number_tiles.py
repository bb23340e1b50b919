"""Tiles with a number on them, for pictures of boards of numbers."""

from __future__ import annotations

from functools import lru_cache

from ragen2.envs.pixels import Colour, Mark, Tile, ground

INK: Colour = (30, 30, 30)
EDGE: Colour = (120, 120, 120)
_WIDEST = 0.8
"""Share of the cell that a number may take, across or down."""
_DOTS = {
    "0": "111 101 101 101 111",
    "1": "010 110 010 010 111",
    "2": "111 001 111 100 111",
    "3": "111 001 111 001 111",
    "4": "101 101 111 001 001",
    "5": "111 100 111 001 111",
    "6": "111 100 111 101 111",
    "7": "111 001 010 010 010",
    "8": "111 101 111 101 111",
    "9": "111 101 111 001 111",
}
"""Each digit as five rows of three dots."""


@lru_cache(maxsize=1024)
def number_tile(number: int, colour: Colour) -> Tile:
    """A cell of one colour with ``number`` written on it; 0 leaves it plain."""
    if number == 0:
        return ground(colour, EDGE)
    rows = ["0".join(parts) for parts in zip(*(_DOTS[d].split() for d in str(number)), strict=True)]
    dot = min(_WIDEST / len(rows[0]), _WIDEST / len(rows))
    left, top = 0.5 - dot * len(rows[0]) / 2, 0.5 - dot * len(rows) / 2
    dots = (
        Mark("rect", INK, dot / 2, dot / 2, left + dot * (column + 0.5), top + dot * (row + 0.5))
        for row, line in enumerate(rows)
        for column, mark in enumerate(line)
        if mark == "1"
    )
    return *ground(colour, EDGE), *dots
