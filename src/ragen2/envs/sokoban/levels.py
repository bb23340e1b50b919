"""Where Sokoban rooms come from: drawn by playing backwards from the solution, or read from files.

Reverse play: put the boxes on the targets and pull them away. The pulls, read backwards, are a
solution, so every drawn room can be solved, in at most as many moves as the reverse play took.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from ragen2.errors import EnvError
from ragen2.reading import open_unpacked, parse_json
from ragen2.seeding import stream

T = TypeVar("T")
Grid = tuple[str, ...]

PLAYER, PLAYER_ON, BOX, BOX_ON, TARGET, WALL = "@+$*.#"
FLOORS = " -_"
_LEVEL_SYMBOLS = frozenset(PLAYER + PLAYER_ON + BOX + BOX_ON + TARGET + WALL + FLOORS)
LEVEL_FILES = (".txt", ".xsb", ".sok", ".jsonl", ".jsonl.gz")

MAX_DRAWS = 5000
MAX_DRAWN_CELLS = 400_000
LONGEST_PULL = 3
MOVES_PER_BOX = 4
"""With fewer moves than this left for each box on a target, reverse play hurries."""
_STAMPS = ((1, 3), (3, 1), (2, 2), (2, 3), (3, 2))


@dataclass(frozen=True, slots=True)
class Room:
    """A board at one moment. Cells are numbered row by row; every cell of the border is a wall."""

    width: int
    height: int
    walls: frozenset[int]
    targets: frozenset[int]
    boxes: frozenset[int]
    player: int

    @property
    def floor(self) -> frozenset[int]:
        """Every cell that is not a wall."""
        return frozenset(range(self.width * self.height)) - self.walls

    @property
    def solved(self) -> bool:
        """Every box is on a target."""
        return self.boxes == self.targets

    @property
    def key(self) -> tuple[int, ...]:
        """Numbers that tell this room from every other of its width."""
        parts = (self.walls, self.targets, self.boxes)
        bits = (sum(1 << cell for cell in part) for part in parts)
        return self.height, self.player, *bits

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """What Up, Down, Left and Right add to a cell's number."""
        return -self.width, self.width, -1, 1


class Dice:
    """Cheap draws from a stream: only ``random``, whose numbers numpy does not change."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._numbers: list[float] = []

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._next() < probability

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, each as likely."""
        return options[int(self._next() * len(options))]

    def several(self, options: Iterable[T], count: int) -> list[T]:
        """So many different options."""
        rest = list(options)
        return [rest.pop(int(self._next() * len(rest))) for _ in range(count)]

    def _next(self) -> float:
        if not self._numbers:
            self._numbers = self._rng.random(64).tolist()
        return self._numbers.pop()


def draw_rooms(width: int, height: int, boxes: int, moves: int, seed: int) -> Iterator[Room]:
    """Draw rooms with every box off target that can be solved in so many moves.

    The draws end some time: not every size has room for so many boxes in so few moves.
    """
    dice = Dice(stream("Sokoban", "room", width, height, boxes, seed))
    for _ in range(min(MAX_DRAWS, MAX_DRAWN_CELLS // (width * height))):
        floor = _carve(width, height, boxes, dice)
        walls = frozenset(range(width * height)).difference(floor)
        targets = frozenset(dice.several(floor, boxes))
        room = _play_backwards(Room(width, height, walls, targets, targets, -1), moves, dice)
        if room is not None:
            yield room


def _carve(width: int, height: int, boxes: int, dice: Dice) -> list[int]:
    """Grow one connected floor from small overlapping rectangles."""
    rows, columns = height - 2, width - 2
    wanted = max(int(rows * columns * dice.pick((0.5, 0.6, 0.7, 0.8))), 4 * boxes)
    wanted = min(wanted, rows * columns)
    cells = [(1 + dice.pick(range(rows))) * width + 1 + dice.pick(range(columns))]
    floor = set(cells)
    while len(cells) < wanted:
        row, column = divmod(dice.pick(cells), width)
        tall, wide = dice.pick(_STAMPS)
        top = row - dice.pick(range(tall))
        left = column - dice.pick(range(wide))
        for stamped in range(max(top, 1), min(top + tall, height - 1)):
            for cell in range(
                stamped * width + max(left, 1), stamped * width + min(left + wide, width - 1)
            ):
                if cell not in floor:
                    floor.add(cell)
                    cells.append(cell)
    return cells


def _play_backwards(room: Room, moves: int, dice: Dice) -> Room | None:
    """Pull every box off the targets within so many moves, or None where that fails."""
    left = moves
    while left > 0:
        on_target = room.boxes & room.targets
        if not on_target and dice.chance(0.1):
            break
        pulls = [*_pulls(room, on_target, left)] or [*_pulls(room, room.boxes, left)]
        if not pulls:
            break
        is_late = left < MOVES_PER_BOX * len(on_target)
        # The nearest of a few, so that plans are made of pushes more than of walks.
        tries = [dice.pick(pulls) for _ in range(6 if is_late else 2)]
        walked, box, step = min(tries, key=lambda pull: pull[0])
        left -= walked
        for _ in range(1 if is_late else dice.pick(range(1, LONGEST_PULL + 1))):
            room = replace(room, boxes=room.boxes - {box} | {box - step}, player=box - 2 * step)
            left, box = left - 1, box - step
            behind = box - 2 * step
            if left == 0 or behind in room.walls or behind in room.boxes:
                break
    if room.boxes & room.targets:
        return None
    return _walk_away(room, min(left, 3), dice)


def _pulls(room: Room, boxes: frozenset[int], moves: int) -> Iterator[tuple[int, int, int]]:
    """(moves to get there, box, push direction undone) of every pull that so many moves allow."""
    blocked = room.walls | room.boxes
    walks = _walks(room, blocked, moves - 1) if room.player >= 0 else None
    for box in sorted(boxes):
        for step in room.steps:
            beside, behind = box - step, box - 2 * step
            if beside in blocked or behind in blocked:
                continue
            walked = 0 if walks is None else walks.get(beside)
            if walked is not None:
                yield walked, box, step


def _walks(room: Room, blocked: frozenset[int], moves: int) -> dict[int, int]:
    """Moves from the player to every cell within reach."""
    found = {room.player: 0}
    queue = deque(found)
    while queue:
        cell = queue.popleft()
        if found[cell] == moves:
            break
        for step in room.steps:
            if cell + step not in found and cell + step not in blocked:
                found[cell + step] = found[cell] + 1
                queue.append(cell + step)
    return found


def _walk_away(room: Room, moves: int, dice: Dice) -> Room:
    blocked = room.walls | room.boxes
    cell = room.player
    for _ in range(moves):
        around = [cell + step for step in room.steps if cell + step not in blocked]
        if around and dice.chance(0.5):
            cell = dice.pick(around)
    return replace(room, player=cell)


def parse_room(grid: Sequence[str]) -> Room:
    """The room that a level's rows show; rows may differ in length, a missing border is added."""
    width = max(len(row) for row in grid)
    rows = [row.ljust(width, WALL) for row in grid]
    edge = rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)
    if edge.strip(WALL):
        width += 2
        rows = [WALL * width, *(WALL + row + WALL for row in rows), WALL * width]
    symbols = "".join(rows)

    def cells(*which: str) -> frozenset[int]:
        return frozenset(cell for cell, symbol in enumerate(symbols) if symbol in which)

    (player,) = cells(PLAYER, PLAYER_ON)
    targets = cells(TARGET, BOX_ON, PLAYER_ON)
    return Room(width, len(rows), cells(WALL), targets, cells(BOX, BOX_ON), player)


@lru_cache(maxsize=8)
def load_levels(path: str) -> tuple[Grid, ...]:
    """The different levels of a file, or of every level file below a folder, in file order.

    Text files hold rows of ``#@$.*+`` and spaces; a blank line or one that starts with ``;`` parts
    two levels (the form of boxoban-levels). JSON lines (.jsonl, .jsonl.gz) hold them in ``grid``.
    """
    root = Path(os.path.expanduser(path))
    if not root.exists():
        raise EnvError(f"levels {path} does not exist; give a level file or a folder of them")
    files = [root]
    if root.is_dir():
        files = sorted(file for file in root.rglob("*") if file.name.endswith(LEVEL_FILES))
    grids = dict.fromkeys(grid for file in files for grid in _checked_levels(file))
    if len(grids) < 2:
        raise EnvError(
            f"levels {path} holds {len(grids)} different levels; give at least 2, since evaluation "
            "and training never share one"
        )
    return tuple(grids)


def _checked_levels(file: Path) -> Iterator[Grid]:
    is_records = file.name.endswith((".jsonl", ".jsonl.gz"))
    try:
        with io.TextIOWrapper(open_unpacked(file), "utf-8") as lines:
            levels = (_record_grids if is_records else _text_grids)(lines)
            for number, grid in enumerate(levels, start=1):
                problem = _level_problem(grid)
                if problem:
                    raise EnvError(f"{file}, level {number}: {problem}")
                yield grid
    except (OSError, UnicodeDecodeError) as error:
        raise EnvError(f"{file} cannot be read as levels ({error}); give another file") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EnvError(
            f"{file} has a line that is no JSON record with a grid ({error}); mend or remove it"
        ) from error


def _text_grids(lines: Iterable[str]) -> Iterator[Grid]:
    rows: list[str] = []
    for line in (*lines, ""):
        if line.strip() and not line.startswith(";"):
            rows.append(line.rstrip("\r\n"))
        elif rows:
            yield tuple(rows)
            rows = []


def _record_grids(lines: Iterable[str]) -> Iterator[Grid]:
    for line in lines:
        if line.strip():
            grid = parse_json(line)["grid"]
            yield tuple(grid.split("\n") if isinstance(grid, str) else grid)


def _level_problem(grid: Grid) -> str:
    symbols = "".join(grid)
    unknown = set(symbols) - _LEVEL_SYMBOLS
    if unknown:
        return (
            f"{min(unknown)!r} is no level symbol; use # wall, @ player, $ box, . target and space"
        )
    players = symbols.count(PLAYER) + symbols.count(PLAYER_ON)
    boxes = symbols.count(BOX) + symbols.count(BOX_ON)
    targets = symbols.count(TARGET) + symbols.count(BOX_ON) + symbols.count(PLAYER_ON)
    if players != 1:
        return f"{players} players; a level has exactly 1"
    if boxes != targets or not symbols.count(BOX):
        return f"{boxes} boxes and {targets} targets; a level has as many, and is not yet solved"
    return ""
