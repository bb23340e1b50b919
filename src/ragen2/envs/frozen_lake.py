"""FrozenLake: cross the ice to the goal; holes end the episode, slips turn a move sideways.

Dynamics are those of Gymnasium's FrozenLake (same actions, borders, slip directions and reward) on
random maps that always have a way to the goal.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from ragen2.envs.base import Env, Episode, Step, normalise
from ragen2.errors import EnvError
from ragen2.seeding import stream

Cell = tuple[int, int]

ACTIONS = ("Left", "Down", "Right", "Up")
MOVES: tuple[Cell, ...] = ((0, -1), (1, 0), (0, 1), (-1, 0))
_ACTION_INDEX = {name.lower(): index for index, name in enumerate(ACTIONS)}
MAX_MAP_DRAWS = 10_000


class Lake:
    """A map: size, holes, start and goal."""

    __slots__ = ("goal", "holes", "size", "start")

    def __init__(self, size: int, holes: frozenset[Cell], start: Cell, goal: Cell) -> None:
        self.size = size
        self.holes = holes
        self.start = start
        self.goal = goal

    def move(self, cell: Cell, action: int) -> Cell:
        """Where ``action`` leads from ``cell``; the border stops it."""
        row = min(max(cell[0] + MOVES[action][0], 0), self.size - 1)
        column = min(max(cell[1] + MOVES[action][1], 0), self.size - 1)
        return row, column

    def distances(self) -> dict[Cell, int]:
        """Least number of moves to the goal from each cell that can reach it without a hole."""
        found = {self.goal: 0}
        queue = deque([self.goal])
        while queue:
            cell = queue.popleft()
            for action in range(4):
                before = self.move(cell, action)
                if before not in found and before not in self.holes:
                    found[before] = found[cell] + 1
                    queue.append(before)
        return found


class FrozenLake(Env):
    """Walk from the start to the goal on ice with holes."""

    kind: Literal["FrozenLake"] = "FrozenLake"
    size: int = Field(4, ge=2, le=32, description="rows and columns of the board")
    hole_ratio: float = Field(0.1, ge=0.0, le=0.9, description="chance of each cell to be a hole")
    slip: float = Field(
        0.02,
        ge=0.0,
        le=1.0,
        description="chance that a move goes to one of its two sides instead, half each",
    )
    min_distance: int = Field(1, ge=1, description="least number of moves from start to goal")
    observation: Literal["grid", "coord", "grid_coord"] = Field(
        "coord", description="what the agent is shown: the board, coordinates, or both"
    )

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    stochastic: ClassVar[bool] = True
    state_kind: ClassVar[Literal["grid", "text"]] = "grid"

    @property
    def instruction(self) -> str:
        """Rules, observation legend and a worked reply."""
        last = self.size - 1
        legend = (
            f"Cells are (row,column), from (0,0) at the top left to ({last},{last})."
            if self.observation == "coord"
            else "P is you, G the goal, O a hole, _ ice."
        )
        slip = " The ice may turn a move sideways." if self.slip else ""
        return (
            "You walk on a frozen lake. Reach the goal; falling into a hole ends the walk. "
            f"{legend}{slip} Actions: Left, Down, Right, Up. "
            "Example: <think>goal is below me</think><answer>Down || Down</answer>"
        )

    def start(self, seed: int, luck: int) -> LakeEpisode:
        """Map from ``seed`` alone; slips from ``seed`` and ``luck``."""
        lake = draw_lake(self.size, self.hole_ratio, self.min_distance, seed)
        return LakeEpisode(self, lake, stream("FrozenLake", "slip", seed, luck))


@lru_cache(maxsize=4096)
def draw_lake(size: int, hole_ratio: float, min_distance: int, seed: int) -> Lake:
    """Draw maps until one has a hole-free way of at least ``min_distance`` moves to the goal."""
    rng = stream("FrozenLake", "map", seed)
    for _ in range(MAX_MAP_DRAWS):
        start_index, goal_index = rng.choice(size * size, size=2, replace=False)
        is_hole = rng.random((size, size)) < hole_ratio
        start, goal = divmod(int(start_index), size), divmod(int(goal_index), size)
        holes = {(int(row), int(column)) for row, column in np.argwhere(is_hole)} - {start, goal}
        lake = Lake(size, frozenset(holes), start, goal)
        if lake.distances().get(start, 0) >= min_distance:
            return lake
    raise EnvError(
        f"no {size}x{size} map with hole_ratio {hole_ratio} and a way of {min_distance} moves in "
        f"{MAX_MAP_DRAWS} draws; lower hole_ratio or min_distance, or raise size"
    )


class LakeEpisode(Episode):
    """One walk over one lake."""

    def __init__(self, env: FrozenLake, lake: Lake, slips: np.random.Generator) -> None:
        self.env = env
        self.lake = lake
        self.player = lake.start
        self._slips = slips
        self._distances = lake.distances()

    @property
    def done(self) -> bool:
        """On the goal or in a hole."""
        return self.player == self.lake.goal or self.player in self.lake.holes

    @property
    def observation(self) -> str:
        """The board and/or coordinates, as the settings ask."""
        parts = []
        if self.env.observation in ("coord", "grid_coord"):
            parts.append(self._coordinates())
        if self.env.observation in ("grid", "grid_coord"):
            parts.append(self._grid())
        return "\n".join(parts)

    def step(self, action: str) -> Step:
        """Move, or slip to one side of the move."""
        index = _ACTION_INDEX.get(normalise(action))
        if index is None:
            return Step(reward=0.0, done=self.done, valid=False, effective=False)
        if self.done:
            return Step(0.0, True, solved=self.player == self.lake.goal, effective=False)
        draw = self._slips.random()
        if draw < self.env.slip:
            index = (index + (1 if draw < self.env.slip / 2 else -1)) % 4
        before, self.player = self.player, self.lake.move(self.player, index)
        solved = self.player == self.lake.goal
        return Step(float(solved), self.done, solved, effective=self.player != before)

    def expert(self) -> tuple[str, ...]:
        """A shortest hole-free plan, as if no move slipped."""
        if self.done:
            return ()
        plan = []
        cell = self.player
        while cell != self.lake.goal:
            action = min(
                range(4), key=lambda move: self._distances.get(self.lake.move(cell, move), 10**9)
            )
            plan.append(ACTIONS[action])
            cell = self.lake.move(cell, action)
        return tuple(plan)

    def random_action(self, rng: np.random.Generator) -> str:
        """One of the four moves."""
        return ACTIONS[int(rng.integers(4))]

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """Where I am, where the goal and the nearest hole are, and the move that follows."""
        row, column = self.player
        goal_row, goal_column = self.lake.goal
        vertical = _offset(goal_row - row, "down", "up")
        horizontal = _offset(goal_column - column, "right", "left")
        way = " and ".join(part for part in (vertical, horizontal) if part) or "here"
        here = _pick(rng, "I am at", "I stand on", "now at", "my cell is")
        target = _pick(rng, "goal", "the goal is at", "target", "G at")
        parts = [f"{here} {_cell(self.player)}, {target} {_cell(self.lake.goal)}, {way}."]
        if self.lake.holes and rng.random() < 0.5:
            near = min(
                sorted(self.lake.holes), key=lambda hole: abs(hole[0] - row) + abs(hole[1] - column)
            )
            parts.append(f"{_pick(rng, 'hole at', 'avoid', 'mind')} {_cell(near)}.")
        plan = _pick(rng, "so", "I go", "then", "plan:", "move")
        parts.append(f"{plan} {' '.join(action.lower() for action in actions)}")
        return " ".join(parts)

    def _coordinates(self) -> str:
        if self.player in self.lake.holes:
            return f"You fell into the hole at {_cell(self.player)}."
        holes = " ".join(_cell(hole) for hole in sorted(self.lake.holes)) or "none"
        return f"You {_cell(self.player)} Goal {_cell(self.lake.goal)} Holes {holes}"

    def _grid(self) -> str:
        rows = []
        for row in range(self.lake.size):
            rows.append("".join(self._symbol((row, column)) for column in range(self.lake.size)))
        return "\n".join(rows)

    def _symbol(self, cell: Cell) -> str:
        is_hole = cell in self.lake.holes
        if cell == self.player:
            return "X" if is_hole else "√" if cell == self.lake.goal else "P"
        return "O" if is_hole else "G" if cell == self.lake.goal else "_"


def _cell(cell: Cell) -> str:
    return f"({cell[0]},{cell[1]})"


def _offset(distance: int, positive: str, negative: str) -> str:
    return f"{abs(distance)} {positive if distance > 0 else negative}" if distance else ""


def _pick(rng: np.random.Generator, *words: str) -> str:
    return words[int(rng.integers(len(words)))]
