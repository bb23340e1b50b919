"""FrozenLake: cross the ice to the goal; holes end the episode, slips turn a move sideways.

Dynamics are those of Gymnasium's FrozenLake (same actions, borders, slip directions and reward) on
random maps that always have a path to the goal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from ragen2.envs.base import Easier, Env, Step, belongs, normalise, rising
from ragen2.envs.toolkit.pixels import (
    BoardEpisode,
    BoardObservation,
    CellGauges,
    CellPixels,
    Mark,
    Tile,
    figure,
    ground,
    size_problem,
)
from ragen2.envs.toolkit.wording import DIRECTIONS, offset, pick
from ragen2.errors import EnvError
from ragen2.seeding import stream

Cell = tuple[int, int]

ACTIONS = ("Left", "Down", "Right", "Up")
MOVES: tuple[Cell, ...] = ((0, -1), (1, 0), (0, 1), (-1, 0))
_ACTION_INDEX = {name.lower(): index for index, name in enumerate(ACTIONS)}
MAX_MAP_DRAWS = 10_000
DISCOUNT = 0.999
"""A move weighs as much as a chance of 0.1%: the expert goes round a hole, but does not dawdle."""
CELLS = "Cells are (row,column), (0,0) is top left."
PICTURE = "The image shows you as an orange figure, the goal as a green flag, holes as dark discs."


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
    max_distance: int = Field(
        0, ge=0, description="greatest number of moves from start to goal; 0: any"
    )
    observation: BoardObservation = Field(
        "coord",
        description="what the agent is shown: the board, coordinates, both, an image, or an image and "
        "coordinates",
    )
    cell_px: CellPixels = 28
    cell_gauges: CellGauges = False

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    stochastic: ClassVar[bool] = True
    state_kind: ClassVar[Literal["grid", "text"]] = "grid"
    has_fixed_actions: ClassVar[bool] = True
    synonyms: ClassVar[Mapping[str, str]] = DIRECTIONS

    @model_validator(mode="after")
    def _distances_are_ordered(self) -> Self:
        if 0 < self.max_distance < self.min_distance:
            raise ValueError(
                f"max_distance {self.max_distance} is below min_distance {self.min_distance}; raise it "
                "or lower min_distance"
            )
        return self

    @model_validator(mode="after")
    def _image_is_possible(self) -> Self:
        if self.shows_images and (problem := size_problem(self.size, self.size, self.cell_px)):
            raise ValueError(problem)
        return self

    @property
    def shows_images(self) -> bool:
        """As ``observation`` says."""
        return self.observation in ("image", "image+text")

    @property
    def instruction(self) -> str:
        """Rules, observation legend and a worked reply."""
        return (
            f"Cross the frozen lake to the goal; a hole ends the walk. {self._legend}{self._slip} "
            f"Actions: {', '.join(ACTIONS)}. "
            "Example: <think>goal is below me</think><answer>Down || Down</answer>"
        )

    @property
    def rules(self) -> str:
        """What there is to do, how the lake is shown, and what each move changes."""
        return (
            "You walk on a frozen lake. Reach the goal; a step into a hole ends the walk. "
            f"{self._legend} Up makes the row smaller by 1, Down larger; Left makes the column smaller by 1, "
            f"Right larger.{self._slip}"
        )

    @property
    def action_forms(self) -> tuple[str, ...]:
        """The four moves."""
        return ACTIONS

    @property
    def _legend(self) -> str:
        return {
            "coord": CELLS,
            "image": f"{PICTURE} {CELLS}",
            "image+text": f"{PICTURE} {CELLS}",
        }.get(self.observation, "P is you, G the goal, O a hole, _ ice.")

    @property
    def _slip(self) -> str:
        return " A move may slip sideways." if self.slip else ""

    @property
    def easier(self) -> Easier:
        """Goals that are nearer, on boards of the same size: their maps are split alike at all levels."""
        most = self.max_distance or max(self.size, self.min_distance)
        return tuple(
            {"min_distance": min(self.min_distance, distance), "max_distance": distance}
            for distance in rising(1, most)
        )

    def start(self, seed: int, luck: int) -> LakeEpisode:
        """Map from ``seed`` alone; slips from ``seed`` and ``luck``."""
        lake = draw_lake(self.size, self.hole_ratio, self.min_distance, seed, self.max_distance)
        return LakeEpisode(self, lake, stream("FrozenLake", "slip", seed, luck))


@lru_cache(maxsize=4096)
def draw_lake(
    size: int, hole_ratio: float, min_distance: int, seed: int, max_distance: int = 0
) -> Lake:
    """Draw maps until the hole-free path to the goal has as many moves as wanted; at most 0 is any number.

    A map is either held out or trained on, never both, whatever the seeds.
    """
    most = max_distance or size**2
    rng = stream("FrozenLake", "map", seed)
    for _ in range(MAX_MAP_DRAWS):
        start_index, goal_index = rng.choice(size * size, size=2, replace=False)
        is_hole = rng.random((size, size)) < hole_ratio
        start, goal = divmod(int(start_index), size), divmod(int(goal_index), size)
        if abs(start[0] - goal[0]) + abs(start[1] - goal[1]) > most:
            continue
        holes = {(int(row), int(column)) for row, column in np.argwhere(is_hole)} - {start, goal}
        lake = Lake(size, frozenset(holes), start, goal)
        is_ours = belongs(seed, "FrozenLake", size, str(start), str(goal), str(sorted(holes)))
        if is_ours and min_distance <= lake.distances().get(start, 0) <= most:
            return lake
    moves = f"{min_distance} to {max_distance}" if max_distance else f"{min_distance}"
    raise EnvError(
        f"no {size}x{size} map with hole_ratio {hole_ratio} and a path of {moves} moves in "
        f"{MAX_MAP_DRAWS} draws; lower hole_ratio or min_distance, or raise size"
    )


class Chances:
    """Chance to reach the goal in so many moves if each is the best one, by value iteration.

    Letters: K moves left, A action, S cell (row by row). ``_values_KS`` grows as far as asked.
    """

    def __init__(self, lake: Lake, slip: float) -> None:
        cells = [divmod(cell, lake.size) for cell in range(lake.size**2)]
        self.size = lake.size
        self.slip = slip
        self._next_AS = np.array(
            [[self._index(lake.move(cell, action)) for cell in cells] for action in range(4)]
        )
        self._is_goal_S = np.array([cell == lake.goal for cell in cells])
        self._is_hole_S = np.array([cell in lake.holes for cell in cells])
        self._values_KS = [self._is_goal_S.astype(float)]
        self._best_KS = [np.zeros(len(cells), int)]

    def value(self, cell: Cell, moves: int) -> float:
        """The chance from ``cell``, a little discounted for each move needed."""
        self._extend(moves)
        return float(self._values_KS[max(moves, 0)][self._index(cell)])

    def best(self, cell: Cell, moves: int) -> int:
        """The best action; where the goal is too far, the best with just enough moves for it."""
        while not self.value(cell, moves) and moves < self.size**2:
            moves += 1
        return int(self._best_KS[max(moves, 0)][self._index(cell)])

    def likely(self, cell: Cell, action: int, moves: int) -> Cell:
        """Where ``action`` leads most likely; of equally likely cells, the better one."""
        chances = ((0, 1 - self.slip), (1, self.slip / 2), (-1, self.slip / 2))
        outcomes = [
            (chance, int(self._next_AS[(action + turn) % 4][self._index(cell)]))
            for turn, chance in chances
        ]
        after = max(outcomes, key=lambda out: (out[0], self.value(self._cell(out[1]), moves - 1)))
        return self._cell(after[1])

    def _extend(self, moves: int) -> None:
        while len(self._values_KS) <= moves:
            ahead_AS = self._values_KS[-1][self._next_AS]
            sides_AS = np.roll(ahead_AS, 1, axis=0) + np.roll(ahead_AS, -1, axis=0)
            chances_AS = (1 - self.slip) * ahead_AS + self.slip / 2 * sides_AS
            top_S = chances_AS.max(axis=0)
            # Rounding must not choose between equal actions: the first of them is taken.
            self._best_KS.append((chances_AS >= top_S * (1 - 1e-9)).argmax(axis=0))
            values_S = np.where(self._is_goal_S, 1.0, DISCOUNT * top_S)
            self._values_KS.append(np.where(self._is_hole_S, 0.0, values_S))

    def _index(self, cell: Cell) -> int:
        return cell[0] * self.size + cell[1]

    def _cell(self, index: int) -> Cell:
        return divmod(index, self.size)


@lru_cache(maxsize=1024)
def _chances(lake: Lake, slip: float) -> Chances:
    return Chances(lake, slip)


class LakeEpisode(BoardEpisode):
    """One walk over one lake."""

    def __init__(self, env: FrozenLake, lake: Lake, slips: np.random.Generator) -> None:
        self.env: FrozenLake = env
        self.lake = lake
        self.player = lake.start
        self._slips = slips
        self._taken = 0

    @property
    def done(self) -> bool:
        """On the goal or in a hole."""
        return self.player == self.lake.goal or self.player in self.lake.holes

    @property
    def observation(self) -> str:
        """The board and/or coordinates, as the settings ask; empty where the image says it all."""
        parts = []
        if self.env.observation in ("coord", "grid_coord", "image+text"):
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
        self._taken += 1
        draw = self._slips.random()
        if draw < self.env.slip:
            index = (index + (1 if draw < self.env.slip / 2 else -1)) % 4
        before, self.player = self.player, self.lake.move(self.player, index)
        solved = self.player == self.lake.goal
        return Step(float(solved), self.done, solved, effective=self.player != before)

    def expert(self) -> tuple[str, ...]:
        """What gives the best chance to be on the goal in the actions left, slips considered.

        The plan follows the likeliest outcome of each move, up to where that stays or turns back.
        Without slips it is a shortest path.
        """
        chances = _chances(self.lake, self.env.slip)
        cell, moves = self.player, self.env.max_actions - self._taken
        plan: list[str] = []
        seen: set[Cell] = set()
        while cell != self.lake.goal and cell not in self.lake.holes and cell not in seen:
            seen.add(cell)
            action = chances.best(cell, moves)
            plan.append(ACTIONS[action])
            cell, moves = chances.likely(cell, action, moves), moves - 1
        return tuple(plan)

    def random_action(self, rng: np.random.Generator) -> str:
        """One of the four moves."""
        return ACTIONS[int(rng.integers(4))]

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """Where I am, where the goal and the nearest hole are, and the move that follows."""
        row, column = self.player
        goal_row, goal_column = self.lake.goal
        where = offset(goal_row - row, goal_column - column) or "here"
        here = pick(rng, "I am at", "I stand on", "now at", "my cell is")
        target = pick(rng, "goal", "the goal is at", "target", "G at")
        parts = [f"{here} {_cell(self.player)}, {target} {_cell(self.lake.goal)}, {where}."]
        if self.lake.holes and rng.random() < 0.5:
            near = min(
                sorted(self.lake.holes), key=lambda hole: abs(hole[0] - row) + abs(hole[1] - column)
            )
            parts.append(f"{pick(rng, 'hole at', 'avoid', 'mind')} {_cell(near)}.")
        plan = pick(rng, "so", "I go", "then", "plan:", "move")
        parts.append(f"{plan} {' '.join(action.lower() for action in actions)}")
        return " ".join(parts)

    def board(self) -> list[list[Tile]]:
        """The lake as tiles."""
        cells = range(self.lake.size)
        return [[TILES[self._symbol((row, column))] for column in cells] for row in cells]

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


_ICE = ground((216, 236, 248), (178, 210, 232))
_HOLE = (
    *_ICE,
    Mark("disc", (120, 168, 206), 0.42, 0.42),
    Mark("disc", (22, 44, 88), 0.36, 0.36),
)
_GOAL = (
    *_ICE,
    Mark("rect", (90, 62, 40), 0.04, 0.38, 0.25, 0.5),
    Mark("rect", (40, 160, 80), 0.28, 0.17, 0.57, 0.29),
)
_WALKER = figure((236, 130, 50))
TILES: dict[str, Tile] = {
    "_": _ICE,
    "O": _HOLE,
    "G": _GOAL,
    "P": (*_ICE, *_WALKER),
    "X": (*_HOLE, *figure((120, 130, 170))),
    "√": (*_GOAL, *_WALKER),
}
