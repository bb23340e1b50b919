"""Pictures of grid boards: tiles made of flat shapes, painted without blur at any size.

A tile is a list of marks, painted in order over a whole cell; lengths are fractions of the cell.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ragen2.envs.base import Episode
from ragen2.errors import EnvError

Colour = tuple[int, int, int]
Pixels = npt.NDArray[np.uint8]

BoardObservation = Literal["grid", "coord", "grid_coord", "image", "image+text"]
CellPixels = Annotated[int, Field(ge=10, le=256, description="pixels of a cell's side in an image")]
CellGauges = Annotated[
    bool,
    Field(
        description="whether each cell of an image shows its row and column as bars on its edges"
    ),
]

MAX_CELL_PIXELS = 1024
MAX_SIDE = 4096
"""Pixels of the longer side of an image that an agent is shown."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One flat shape of one colour; ``x`` and ``y`` are its centre, from the top left."""

    shape: Literal["rect", "disc", "diamond", "cross"]
    colour: Colour
    half_width: float = 0.5
    half_height: float = 0.5
    x: float = 0.5
    y: float = 0.5


Tile = tuple[Mark, ...]


class BoardSettings(Protocol):
    """What the settings of an environment say of the image of its board."""

    @property
    def shows_images(self) -> bool:
        """Whether the agent is shown the image."""

    @property
    def cell_px(self) -> int:
        """Pixels of a cell's side in the image that is shown."""

    @property
    def cell_gauges(self) -> bool:
        """Whether each cell shows its row and column."""


class BoardEpisode(Episode):
    """An episode on a board of tiles, which the agent is shown as an image where the settings say so."""

    env: BoardSettings

    @abstractmethod
    def board(self) -> Sequence[Sequence[Tile]]:
        """What each cell shows, row by row."""

    def image(self, cell_pixels: int = 28) -> Pixels:
        """The board seen from above."""
        board = self.board()
        return paint(with_gauges(board) if self.env.cell_gauges else board, cell_pixels)

    @property
    def shown_image(self) -> Pixels | None:
        """The board, where the settings show it as an image."""
        return self.image(self.env.cell_px) if self.env.shows_images else None


def ground(colour: Colour, edge: Colour) -> Tile:
    """A cell of one colour with a thin edge."""
    return Mark("rect", edge), Mark("rect", colour, 0.47, 0.47)


def figure(colour: Colour) -> Tile:
    """A round player with two eyes."""
    white, black = (255, 255, 255), (20, 20, 20)
    eyes = (
        mark
        for x in (0.39, 0.61)
        for mark in (
            Mark("disc", white, 0.085, 0.085, x, 0.42),
            Mark("disc", black, 0.045, 0.045, x, 0.42),
        )
    )
    return Mark("disc", black, 0.33, 0.33), Mark("disc", colour, 0.29, 0.29), *eyes


def crate(dark: Colour, light: Colour) -> Tile:
    """A box with crossed boards."""
    return (
        Mark("rect", dark, 0.42, 0.42),
        Mark("rect", light, 0.34, 0.34),
        Mark("cross", dark, 0.34, 0.34),
    )


def bricks(brick: Colour, mortar: Colour) -> Tile:
    """A wall of two courses."""
    courses = [Mark("rect", brick, 0.5, 0.21, 0.5, y) for y in (0.25, 0.75)]
    joints = [Mark("rect", mortar, 0.04, 0.21, x, y) for x, y in ((0.3, 0.25), (0.8, 0.75))]
    return Mark("rect", mortar), *courses, *joints


def with_gauges(board: Sequence[Sequence[Tile]]) -> list[list[Tile]]:
    """The board with each cell's row and column shown in it."""
    rows, columns = len(board), len(board[0])
    return [
        [(*tile, *gauges(row, column, rows, columns)) for column, tile in enumerate(line)]
        for row, line in enumerate(board)
    ]


def gauges(row: int, column: int, rows: int, columns: int) -> Tile:
    """Bars that say which cell this is: along its left edge for the row, along its top for the column.

    They are longer further down and further right, and missing in the first row and column.
    """
    dark, thick = (40, 40, 48), 0.045
    down, right = row / max(rows - 1, 1) / 2, column / max(columns - 1, 1) / 2
    return (
        *((Mark("rect", dark, thick, down, thick, down),) if row else ()),
        *((Mark("rect", dark, right, thick, right, thick),) if column else ()),
    )


def paint(board: Sequence[Sequence[Tile]], cell_pixels: int) -> Pixels:
    """The board as height x width x 3 bytes, each cell a square of ``cell_pixels``."""
    if not 1 <= cell_pixels <= MAX_CELL_PIXELS:
        raise EnvError(f"cell_pixels must be from 1 to {MAX_CELL_PIXELS}, got {cell_pixels}")
    rows = [np.concatenate([_paint_tile(tile, cell_pixels) for tile in row], 1) for row in board]
    return np.concatenate(rows)


def size_problem(columns: int, rows: int, cell_px: int) -> str:
    """Why a board of this size cannot be shown as an image; empty when it can."""
    longer = max(columns, rows)
    if longer * cell_px <= MAX_SIDE:
        return ""
    return (
        f"an image of {columns * cell_px} x {rows * cell_px} pixels is too large, its longer side may "
        f"have {MAX_SIDE}; set cell_px to {MAX_SIDE // longer} or less"
    )


@lru_cache(maxsize=4096)
def _paint_tile(tile: Tile, cell_pixels: int) -> Pixels:
    pixels = np.zeros((cell_pixels, cell_pixels, 3), np.uint8)
    centres = (np.arange(cell_pixels) + 0.5) / cell_pixels
    for mark in tile:
        pixels[_covers(mark, centres)] = mark.colour
    pixels.flags.writeable = False
    return pixels


def _covers(mark: Mark, centres: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which pixels a mark covers: those whose centre lies in it."""
    across = np.abs(centres - mark.x)[None, :] / mark.half_width
    down = np.abs(centres - mark.y)[:, None] / mark.half_height
    inside: npt.NDArray[np.bool_] = np.maximum(across, down) <= 1
    if mark.shape == "disc":
        inside = across**2 + down**2 <= 1
    elif mark.shape == "diamond":
        inside = across + down <= 1
    elif mark.shape == "cross":
        inside &= np.abs(across - down) <= 0.25
    return inside


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
