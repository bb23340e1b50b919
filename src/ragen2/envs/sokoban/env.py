"""Sokoban: push every box onto a target; a box can be pushed, never pulled.

Rooms are drawn by reverse play or read from level files; see ``levels``. The expert's plans
have the fewest moves; see ``solver``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from ragen2.envs.base import HELD_OUT_SEEDS, Easier, Env, Step, belongs, normalise
from ragen2.envs.sokoban.levels import Room, draw_rooms, load_levels, parse_room
from ragen2.envs.sokoban.solver import ACTIONS, SearchLimit, solve
from ragen2.envs.toolkit.pixels import (
    BoardEpisode,
    BoardObservation,
    CellGauges,
    CellPixels,
    Mark,
    Tile,
    bricks,
    crate,
    figure,
    ground,
    size_problem,
)
from ragen2.envs.toolkit.wording import DIRECTIONS, offset, pick
from ragen2.errors import EnvError

WALL, FLOOR, TARGET, BOX_ON, BOX, PLAYER, PLAYER_ON = range(7)
PICTURE = (
    "The image shows you as a blue figure, boxes as brown crates, targets as red diamonds, boxes on "
    "targets as green crates, walls as bricks."
)
MEANINGS = ("wall", "floor", "target", "box on target", "box", "you", "you on a target")

_FLOOR_TILE = ground((236, 226, 204), (214, 202, 176))
_TARGET_TILE = (
    *_FLOOR_TILE,
    Mark("diamond", (200, 40, 40), 0.46, 0.46),
    Mark("diamond", (250, 190, 180), 0.3, 0.3),
)
_FIGURE = figure((70, 120, 220))
TILES: dict[int, Tile] = {
    WALL: bricks((124, 110, 108), (66, 62, 70)),
    FLOOR: _FLOOR_TILE,
    TARGET: _TARGET_TILE,
    BOX_ON: (*_TARGET_TILE, *crate((30, 110, 50), (110, 200, 120))),
    BOX: (*_FLOOR_TILE, *crate((120, 72, 24), (214, 154, 84))),
    PLAYER: (*_FLOOR_TILE, *_FIGURE),
    PLAYER_ON: (*_TARGET_TILE, *_FIGURE),
}


STEP_REWARD = -0.1
BOX_REWARD = 1.0
SOLVED_REWARD = 10.0
HELD_OUT_EVERY = 10
"""Of the levels of a file, the first and every tenth after it are held out."""
HURRIED_WEIGHT = 3.0
"""Plans may be this many times too long where the best one cannot be found in time."""

_ACTION_INDEX = {name.lower(): index for index, name in enumerate(ACTIONS)}


class _RewardRange:
    """The range of the settings at hand; read from the class, that of the default settings."""

    def __get__(self, env: Sokoban | None, owner: type[Sokoban]) -> tuple[float, float]:
        env = owner() if env is None else env
        if env.reward == "binary":
            return 0.0, 1.0
        boxes, placed = env.boxes, 0
        if env.levels:
            rooms = ["".join(grid) for grid in load_levels(env.levels)]
            placed = max(room.count("*") for room in rooms)
            boxes = max(room.count("*") + room.count("$") for room in rooms)
        worst = STEP_REWARD * env.max_actions - BOX_REWARD * placed
        return worst, SOLVED_REWARD + (BOX_REWARD + STEP_REWARD) * boxes


class Sokoban(Env):
    """Push the boxes of a room onto its targets."""

    kind: Literal["Sokoban"] = "Sokoban"
    size: int = Field(6, ge=3, le=32, description="rows and columns of the room, border included")
    width: int = Field(0, ge=0, le=32, description="columns, where they differ from size; 0: size")
    height: int = Field(0, ge=0, le=32, description="rows, where they differ from size; 0: size")
    boxes: int = Field(1, ge=1, le=32, description="boxes and targets in the room")
    min_plan: int = Field(1, ge=1, description="least number of moves that solve the room")
    max_plan: int = Field(
        0, ge=0, description="number of moves that is enough to solve the room; 0: max_actions"
    )
    levels: str = Field(
        "",
        description="level file or folder (boxoban text, or JSON lines with grid) instead of drawn "
        "rooms; size, boxes and plan limits are then those of the levels",
    )
    reward: Literal["dense", "binary"] = Field(
        "dense",
        description="dense: -0.1 per move, 1 per box placed, 10 when solved; binary: 1 when solved, else 0",
    )
    observation: BoardObservation = Field(
        "grid_coord",
        description="what the agent is shown: the room, coordinates, both, an image, or an image and "
        "both",
    )
    cell_px: CellPixels = 28
    cell_gauges: CellGauges = False
    coord_walls: bool = Field(
        True, description="whether coord lists the walls inside the border, as the way needs them"
    )
    symbols: str = Field(
        "#_O√XPS",
        description="seven characters for wall, floor, target, box on target, box, player, "
        "player on target",
    )

    reward_range: ClassVar[tuple[float, float]] = _RewardRange()  # type: ignore[assignment]  # a descriptor that gives the tuple
    state_kind: ClassVar[Literal["grid", "text"]] = "grid"
    reward_kind: ClassVar[Literal["binary", "dense"]] = "dense"
    has_fixed_actions: ClassVar[bool] = True
    synonyms: ClassVar[Mapping[str, str]] = DIRECTIONS

    @field_validator("symbols")
    @classmethod
    def _seven_symbols(cls, symbols: str) -> str:
        visible = [symbol for symbol in symbols if symbol.isprintable() and not symbol.isspace()]
        if len(symbols) != 7 or len(set(visible)) != 7:
            raise ValueError(f"give seven different visible characters, got {symbols!r}")
        return symbols

    @model_validator(mode="after")
    def _room_is_possible(self) -> Self:
        if self.levels:
            return self
        width, height = self.shape
        inside = (width - 2) * (height - 2)
        if min(width, height) < 3 or max(width, height) < 5:
            raise ValueError(
                f"no box can be pushed in a {width}x{height} room; make it 5x5 or more"
            )
        if self.boxes > inside // 4 + 1:
            raise ValueError(
                f"{self.boxes} boxes are too many for a {width}x{height} room; "
                f"use at most {inside // 4 + 1} or a larger size"
            )
        return self

    @model_validator(mode="after")
    def _plan_is_possible(self) -> Self:
        limit = "max_plan" if self.max_plan else "max_actions"
        moves = self.max_plan or self.max_actions
        for what in ("min_plan", "boxes"):
            if getattr(self, what) > moves and not self.levels:
                raise ValueError(f"{what} is above {limit} {moves}; lower it or raise {limit}")
        return self

    @model_validator(mode="after")
    def _image_is_possible(self) -> Self:
        problem = "" if self.levels else size_problem(*self.shape, self.cell_px)
        if self.shows_images and problem:
            raise ValueError(problem)
        return self

    @property
    def shows_images(self) -> bool:
        """As ``observation`` says."""
        return self.observation in ("image", "image+text")

    @property
    def shape(self) -> tuple[int, int]:
        """Columns and rows of a drawn room."""
        return self.width or self.size, self.height or self.size

    @property
    def instruction(self) -> str:
        """Rules, legend of the symbols in use, and a worked reply."""
        return (
            "You push boxes in a walled room. Put every box on a target in few moves. Walk into "
            "a box to push it one cell; you cannot pull, nor push two at once. "
            f"{self._legend}Actions: {', '.join(ACTIONS)}. "
            "Example: <think>box on my right, target beyond it</think>"
            "<answer>Right || Right</answer>"
        )

    @property
    def rules(self) -> str:
        """What there is to do, how a box is pushed, and how the room is shown."""
        return (
            "You are in a walled room with boxes and targets. Push every box onto a target in as few moves "
            "as you can. You push a box by walking into it from the opposite side; the cell behind it must "
            f"be free. You cannot pull a box, nor push two at once. {self._legend}"
        ).strip()

    @property
    def action_forms(self) -> tuple[str, ...]:
        """The four moves."""
        return ACTIONS

    def dearest_reply(self, num_actions: int) -> float:
        """Moves that push boxes off targets, as many as there are boxes."""
        if self.reward == "binary":
            return 0.0
        return STEP_REWARD * num_actions - BOX_REWARD * min(num_actions, self.boxes)

    @property
    def _legend(self) -> str:
        legend = f"{PICTURE} " if self.shows_images else ""
        if self.observation not in ("coord", "image"):
            pairs = zip(self.symbols, MEANINGS, strict=True)
            legend += "Legend: " + ", ".join(f"{symbol} {what}" for symbol, what in pairs) + ". "
        if self.observation != "grid":
            legend += "Cells are (row, column), counted from (0, 0) at the top left. "
        if self.observation == "coord":
            legend += "The border is wall. " if self.coord_walls else "Walls are not shown. "
        return legend

    @property
    def easier(self) -> Easier:
        """One box and plans of 1, 2, 4, ... moves, then more boxes with as many moves for each."""
        if self.levels:
            return ()
        moves = self.max_plan or self.max_actions
        each = moves // self.boxes
        plans = [(1, 2**power) for power in range(each.bit_length() - 1)]
        plans += [(boxes, boxes * each) for boxes in range(1, self.boxes)]
        return tuple(
            {"boxes": boxes, "max_plan": plan, "min_plan": max(1, self.min_plan * plan // moves)}
            for boxes, plan in plans
        )

    def start(self, seed: int, luck: int) -> SokobanEpisode:
        """Room from ``seed``; nothing is left to luck."""
        del luck
        room = _room(self, seed)
        if self.shows_images and (problem := size_problem(room.width, room.height, self.cell_px)):
            raise EnvError(f"Sokoban level {seed}: {problem}")
        return SokobanEpisode(self, room)


@lru_cache(maxsize=4096)
def _room(env: Sokoban, seed: int) -> Room:
    if env.levels:
        return parse_room(_level(load_levels(env.levels), seed))
    moves = env.max_plan or env.max_actions
    for room in draw_rooms(*env.shape, env.boxes, moves, seed):
        if belongs(seed, "Sokoban", room.width, *room.key) and _is_long_enough(room, env.min_plan):
            return room
    raise EnvError(
        f"no {env.shape[0]}x{env.shape[1]} Sokoban room with {env.boxes} boxes that takes "
        f"{env.min_plan} to {moves} moves was drawn; raise size or "
        f"{'max_plan' if env.max_plan else 'max_actions'}, or lower boxes or min_plan"
    )


def _is_long_enough(room: Room, min_plan: int) -> bool:
    if min_plan <= len(room.boxes):  # every box is off target, so each needs a push
        return True
    try:
        return len(solve(room) or ()) >= min_plan
    except SearchLimit:  # not known, so it cannot be promised
        return False


def _level(levels: tuple[tuple[str, ...], ...], seed: int) -> tuple[str, ...]:
    if seed < HELD_OUT_SEEDS:
        held_out = levels[::HELD_OUT_EVERY]
        return held_out[seed % len(held_out)]
    # The i-th level that is not held out, without copying a set that may be large.
    index = (seed - HELD_OUT_SEEDS) % (len(levels) - len(range(0, len(levels), HELD_OUT_EVERY)))
    return levels[index + index // (HELD_OUT_EVERY - 1) + 1]


class Errand(NamedTuple):
    """The next job of a plan: which box, where it ends up, where to stand and which way to push."""

    box: int
    target: int
    stand: int
    push: str


class SokobanEpisode(BoardEpisode):
    """One play of one room."""

    def __init__(self, env: Sokoban, room: Room) -> None:
        self.env: Sokoban = env
        self.room = room
        self.player = room.player
        self.boxes = set(room.boxes)
        self._steps = room.steps
        self._plan: tuple[str, ...] | None = None

    @property
    def solved(self) -> bool:
        """Every box is on a target."""
        return self.boxes == self.room.targets

    @property
    def observation(self) -> str:
        """The room and/or coordinates, as the settings ask; empty where the image says it all."""
        parts: list[str] = []
        if self.env.observation not in ("grid", "image"):
            parts.append(self._coordinates())
        if self.env.observation not in ("coord", "image"):
            symbols = self.env.symbols
            parts.extend("".join([symbols[code] for code in row]) for row in self._codes())
        return "\n".join(parts)

    def step(self, action: str) -> Step:
        """Walk or push; a move against a wall or a blocked box changes nothing but is paid for."""
        index = _ACTION_INDEX.get(normalise(action))
        if index is None:
            return Step(reward=0.0, done=self.solved, valid=False, effective=False)
        if self.solved:
            return Step(reward=0.0, done=True, solved=True, effective=False)
        ahead = self.player + self._steps[index]
        beyond = ahead + self._steps[index]
        pushes = ahead in self.boxes
        blocked = beyond if pushes else ahead
        if blocked in self.room.walls or blocked in self.boxes:
            return self._paid(0, effective=False)
        self._plan = self._plan[1:] if self._plan and self._plan[0] == ACTIONS[index] else None
        self.player = ahead
        if not pushes:
            return self._paid(0)
        self.boxes.remove(ahead)
        self.boxes.add(beyond)
        placed = (beyond in self.room.targets) - (ahead in self.room.targets)
        return self._paid(placed)

    def _paid(self, placed: int, *, effective: bool = True) -> Step:
        """What a move earns that put so many boxes on targets, or took them off."""
        reward = STEP_REWARD + BOX_REWARD * placed + SOLVED_REWARD * self.solved
        if self.env.reward == "binary":
            reward = float(self.solved)
        return Step(reward, done=self.solved, solved=self.solved, effective=effective)

    def expert(self) -> tuple[str, ...]:
        """A plan with the fewest moves; empty when done, or when no plan is left.

        Where the best plan is not found in time, as may happen in large rooms, a longer one.
        """
        if self._plan is None:
            self._plan = _plan(replace(self.room, boxes=frozenset(self.boxes), player=self.player))
        return self._plan

    def random_action(self, rng: np.random.Generator) -> str:
        """One of the four moves."""
        return ACTIONS[int(rng.integers(4))]

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """Where I am, which box goes where, from which side to push it, and the moves."""
        here = pick(rng, "I am at", "I stand on", "now at", "my cell is")
        errand = self._errand()
        closing = pick(rng, "so", "I go", "then", "plan:", "move")
        moves = f"{closing} {' '.join(action.lower() for action in actions)}"
        if errand is None:
            return f"{here} {self._cell(self.player)}. no push helps now. {moves}"
        verb = pick(rng, "to", "goes to", "belongs on", "must reach")
        box, target = self._cell(errand.box), self._cell(errand.target)
        where = self._offset(errand.box, errand.target) or "and back"
        parts = [f"{here} {self._cell(self.player)}, box {box} {verb} {target}, {where}."]
        push = errand.push.lower()
        if errand.stand == self.player:
            parts.append(pick(rng, f"I push it {push}.", f"push {push} now.", f"{push} it goes."))
        else:
            walk = pick(rng, "I walk to", "first to", "get behind it at")
            parts.append(f"{walk} {self._cell(errand.stand)} and push {push}.")
        return " ".join([*parts, moves])

    def board(self) -> list[list[Tile]]:
        """The room as tiles."""
        return [[TILES[code] for code in row] for row in self._codes()]

    def _codes(self) -> list[list[int]]:
        """What each cell shows, row by row."""
        width, room = self.room.width, self.room
        codes = [FLOOR] * (width * room.height)
        for cell in room.walls:
            codes[cell] = WALL
        for cell in room.targets:
            codes[cell] = TARGET
        for cell in self.boxes:
            codes[cell] = BOX_ON if cell in room.targets else BOX
        codes[self.player] = PLAYER_ON if self.player in room.targets else PLAYER
        return [codes[start : start + width] for start in range(0, len(codes), width)]

    def _coordinates(self) -> str:
        text = (
            f"You {self._cell(self.player)} Boxes {self._cells(self.boxes)} "
            f"Targets {self._cells(self.room.targets)}"
        )
        if self.env.observation != "coord":
            return text
        width, height = self.room.width, self.room.height
        text = f"Room {height} x {width} {text}"
        if not self.env.coord_walls:
            return text
        inner = {
            cell
            for cell in self.room.walls
            if 0 < cell % width < width - 1 and 0 < cell // width < height - 1
        }
        return f"{text} Walls {self._cells(inner)}"

    def _cells(self, cells: set[int] | frozenset[int]) -> str:
        return " ".join(self._cell(cell) for cell in sorted(cells)) or "none"

    def _cell(self, cell: int) -> str:
        return f"({cell // self.room.width}, {cell % self.room.width})"

    def _offset(self, start: int, end: int) -> str:
        width = self.room.width
        return offset(end // width - start // width, end % width - start % width)

    def _errand(self) -> Errand | None:
        """The box that the plan pushes first, or None without a plan."""
        player, errand = self.player, None
        for action in self.expert():
            step = self._steps[ACTIONS.index(action)]
            stand, player = player, player + step
            if errand is None and player in self.boxes:
                errand = Errand(player, player, stand, action)
            if errand is not None and player == errand.target:
                errand = errand._replace(target=player + step)
        return errand


@lru_cache(maxsize=1024)
def _plan(room: Room) -> tuple[str, ...]:
    for weight in (1.0, HURRIED_WEIGHT):
        try:
            return solve(room, weight=weight) or ()
        except SearchLimit:
            continue
    return ()
