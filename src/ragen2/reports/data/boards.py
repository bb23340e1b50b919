"""Boards from observations: rows of symbols, read by the environment's own signs and settings.

An environment writes its board as text for the agent; a page draws it. Where the agent gets
coordinates instead, the board is put together from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Rows = list[list[str]]
Legend = dict[str, tuple[str, str]]
"""Symbol -> (kind that the page draws, name)."""

LAKE: Legend = {
    "_": ("ice", "ice"),
    "O": ("hole", "hole"),
    "G": ("goal", "goal"),
    "P": ("player", "you"),
    "X": ("player_on_hole", "you in a hole"),
    "√": ("player_on_goal", "you on the goal"),
}
SOKOBAN = (
    ("wall", "wall"),
    ("floor", "floor"),
    ("target", "target"),
    ("box_on_target", "box on target"),
    ("box", "box"),
    ("player", "you"),
    ("player_on_target", "you on a target"),
)
"""In the order of the setting ``symbols``."""
SOKOBAN_SYMBOLS = "#_O√XPS"
CELL = re.compile(r"\((\d+), ?(\d+)\)")
FELL = re.compile(r"You fell into the hole at \((\d+),(\d+)\)")
ROOM = re.compile(r"Room (\d+) x (\d+)")
LARGEST = 64
"""Rows and columns of a board that is drawn; text can say anything."""

Cell = tuple[int, int]
BoardReader = Callable[[str, Rows | None], Rows | None]


class Boards:
    """Reads the boards of one episode in order; what a text leaves out is taken from the board before."""

    def __init__(self, env: str, settings: Mapping[str, Any]) -> None:
        self.legend: Legend = {}
        self._read: BoardReader = lambda text, before: None
        self._before: Rows | None = None
        if env == "FrozenLake":
            size = settings.get("size", 4)
            self.legend = LAKE
            if isinstance(size, int):
                self._read = lambda text, before: _lake(text, before, size)
        elif env == "Sokoban":
            symbols = str(settings.get("symbols", SOKOBAN_SYMBOLS))
            self.legend = dict(zip(symbols, SOKOBAN, strict=False))
            self._read = lambda text, before: _grid(text, symbols) or _room(text, symbols)
        elif env in ("Game2048", "Sudoku"):
            self._read = lambda text, before: _tiles(text)

    def read(self, text: str) -> dict[str, Any] | None:
        """The board of an observation as the page takes it; None where there is none."""
        rows = self._read(text, self._before)
        if rows is None:
            return None
        self._before = rows
        seen = sorted({symbol for row in rows for symbol in row})
        known = [symbol for symbol in self.legend if symbol in seen]
        return {
            "rows": rows,
            "legend": [
                {"symbol": symbol, "kind": self.legend[symbol][0], "name": self.legend[symbol][1]}
                for symbol in known
            ],
        }


def boards_of(settings: Mapping[str, Any]) -> Callable[[str], dict[str, Any] | None]:
    """Reads the board off one text of a run with these settings."""
    env = settings.get("env", {})
    named = env if isinstance(env, dict) else {}
    return lambda text: Boards(str(named.get("kind", "")), named).read(text)


def _grid(text: str, symbols: str) -> Rows | None:
    """The first block of equally long lines that are made of symbols alone."""
    block: Rows = []
    for line in [*text.splitlines(), ""]:
        is_row = bool(line) and all(symbol in symbols for symbol in line)
        if is_row and (not block or len(block[0]) == len(line)):
            block.append(list(line))
        elif len(block) > 1:
            return block
        else:
            block = [list(line)] if is_row else []
    return None


def _lake(text: str, before: Rows | None, size: int) -> Rows | None:
    grid = _grid(text, "".join(LAKE))
    if grid is not None:
        return grid
    fell = FELL.search(text)
    if fell and before is not None:
        rows = [[_without_player(symbol) for symbol in row] for row in before]
        return _put(rows, [(int(fell[1]), int(fell[2]))], "X")
    parts = re.search(r"You (\(.*?\)) Goal (\(.*?\)) Holes (.*)", text)
    if parts is None or size > LARGEST:
        return None
    you, goal = _cells(parts[1])[0], _cells(parts[2])[0]
    rows = [["_"] * size for _ in range(size)]
    rows = _put(_put(rows, _cells(parts[3]), "O"), [goal], "G")
    return _put(rows, [you], "√" if you == goal else "P")


def _without_player(symbol: str) -> str:
    return {"P": "_", "X": "O", "√": "G"}.get(symbol, symbol)


def _room(text: str, symbols: str) -> Rows | None:
    """A Sokoban room given in coordinates; the border is wall."""
    wall, floor, target, box_on, box, player, player_on = list(symbols)
    size = ROOM.search(text)
    parts = re.search(r"You (.*?) Boxes (.*?) Targets (.*?)(?: Walls (.*))?$", text, re.MULTILINE)
    if size is None or parts is None or max(int(size[1]), int(size[2])) > LARGEST:
        return None
    height, width = int(size[1]), int(size[2])
    rows = [
        [wall if r in (0, height - 1) or c in (0, width - 1) else floor for c in range(width)]
        for r in range(height)
    ]
    boxes, targets, you = _cells(parts[2]), _cells(parts[3]), _cells(parts[1])
    rows = _put(_put(rows, _cells(parts[4] or ""), wall), targets, target)
    rows = _put(rows, [cell for cell in boxes if cell not in targets], box)
    rows = _put(rows, [cell for cell in boxes if cell in targets], box_on)
    return _put(rows, you, player_on if you and you[0] in targets else player)


def _tiles(text: str) -> Rows | None:
    """Rows of numbers and dots, as 2048 and Sudoku show them; rules between boxes are left out."""
    block: Rows = []
    for line in [*text.splitlines(), ""]:
        cells = [cell for cell in line.split() if cell != "|"]
        is_row = len(cells) > 1 and all(cell == "." or cell.isdecimal() for cell in cells)
        if is_row and (not block or len(block[0]) == len(cells)):
            block.append(cells)
        elif block and line and not line.strip("-+ "):
            continue
        elif len(block) > 1:
            return block
        else:
            block = [cells] if is_row else []
    return None


def _cells(text: str) -> list[Cell]:
    return [(int(row), int(column)) for row, column in CELL.findall(text)]


def _put(rows: Rows, cells: list[Cell], symbol: str) -> Rows:
    """The rows with a symbol in some cells; cells outside are left out."""
    found = [list(row) for row in rows]
    for row, column in cells:
        if row < len(found) and column < len(found[row]):
            found[row][column] = symbol
    return found
