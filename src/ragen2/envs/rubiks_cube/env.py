"""RubiksCube: turn the faces of a 2x2 cube until each shows one colour.

The seed fixes the scramble and the side the cube is seen from; nothing is left to luck. No cube
starts solved, and ``scramble_depth`` turns are always enough.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ragen2.envs.base import Env, Episode, Step, belongs, normalise
from ragen2.envs.rubiks_cube.cube import (
    FACES,
    MOST_TURNS,
    TURNS,
    inverse,
    is_solved,
    orientations,
    shortest_solution,
    turned,
)
from ragen2.envs.toolkit.pixels import Colour, number_tile, paint
from ragen2.envs.toolkit.wording import pick
from ragen2.seeding import stream

MAX_DRAWS = 10_000
MAX_ACTION_LENGTH = 16
_PRIMES = str.maketrans({"’": "'", "′": "'", "`": "'", "‘": "'"})
_TURN_NAMES = {turn.lower(): turn for turn in TURNS}
_FACE_NAMES = {"U": "up", "L": "left", "F": "front", "R": "right", "B": "back", "D": "down"}
_NET = (" U  ", "LFRB", " D  ")
_BACKGROUND: Colour = (235, 235, 235)
_COLOURS: dict[str, Colour] = {
    "W": (255, 255, 255),
    "O": (255, 140, 0),
    "G": (0, 155, 72),
    "R": (200, 20, 40),
    "B": (0, 70, 173),
    "Y": (255, 213, 0),
}


class RubiksCube(Env):
    """Solve a scrambled 2x2 cube."""

    kind: Literal["RubiksCube"] = "RubiksCube"
    scramble_depth: int = Field(
        3, ge=1, le=MOST_TURNS, description="turns that scramble the cube; as many solve it again"
    )
    max_turns: int = Field(5, ge=1, description="replies the agent may write in one episode")
    max_actions: int = Field(
        10, ge=1, description="turns of a face in one episode; at least scramble_depth"
    )

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    state_kind: ClassVar[Literal["grid", "text"]] = "grid"

    @model_validator(mode="after")
    def _can_be_solved(self) -> Self:
        if self.max_actions < self.scramble_depth:
            raise ValueError(
                f"max_actions must be at least scramble_depth ({self.scramble_depth}), got "
                f"{self.max_actions}; raise it or scramble less"
            )
        return self

    @property
    def instruction(self) -> str:
        """Rules, how faces are read and a worked reply."""
        return (
            "Solve a 2x2 Rubik's cube: every face must show one colour. Faces are U up, L left, "
            "F front, R right, B back, D down, each given as top row/bottom row seen from outside "
            "(U with F below it, D with F above it). Actions: U, D, L, R, F, B turn that face a "
            "quarter clockwise, U', D', L', R', F', B' the other way. "
            "Example: <think>R was turned once, I turn it back</think><answer>R'</answer>"
        )

    def start(self, seed: int, luck: int) -> CubeEpisode:
        """Cube from ``seed``; nothing depends on ``luck``."""
        del luck
        return CubeEpisode(draw_cube(self.scramble_depth, seed))


@lru_cache(maxsize=4096)
def draw_cube(depth: int, seed: int) -> str:
    """Turn a solved cube, seen from a random side, ``depth`` times; never back to solved.

    No turn undoes the one before it. Training seeds never give a cube that a held-out seed gives.
    """
    rng = stream("RubiksCube", "scramble", depth, seed)
    for _ in range(MAX_DRAWS):
        cube = orientations()[int(rng.integers(24))]
        last = ""
        for _ in range(depth):
            choices = [turn for turn in TURNS if turn != last]
            turn = choices[int(rng.integers(len(choices)))]
            cube = turned(cube, (turn,))
            last = inverse(turn)
        if not is_solved(cube) and belongs(seed, "RubiksCube", cube):
            return cube
    raise AssertionError("one cube in five is held out, so a draw cannot fail this often")


class CubeEpisode(Episode):
    """One cube being solved."""

    def __init__(self, cube: str) -> None:
        self.cube = cube

    @property
    def observation(self) -> str:
        """One line a face: its letter, top row, bottom row."""
        return "\n".join(f"{face}: {self._face(face)}" for face in FACES)

    def step(self, action: str) -> Step:
        """Turn a face; 1 when that solves the cube."""
        turn = parse(action)
        if is_solved(self.cube):
            return Step(0.0, True, True, valid=turn is not None, effective=False)
        if turn is None:
            return Step(0.0, False, valid=False, effective=False)
        self.cube = turned(self.cube, (turn,))
        solved = is_solved(self.cube)
        return Step(float(solved), solved, solved)

    def expert(self) -> tuple[str, ...]:
        """A shortest solution."""
        return shortest_solution(self.cube)

    def random_action(self, rng: np.random.Generator) -> str:
        """One of the twelve turns."""
        return TURNS[int(rng.integers(len(TURNS)))]

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """How the turned face and one of its neighbours look, how far it is, and the turns."""
        turn = parse(actions[0]) if actions else None
        if turn is None:
            return pick(rng, "every face shows one colour.", "the cube is solved.")
        first = "U" if turn[0] == "F" else "F"
        faces = ", ".join(f"{_FACE_NAMES[face]} {self._face(face)}" for face in (first, turn[0]))
        left = len(shortest_solution(self.cube))
        distance = pick(rng, f"{left} to go.", f"{left} from solved.", f"needs {left}.")
        opening = pick(rng, "I see", "now", "faces:", "it shows")
        plan = pick(rng, "so I turn", "turn", "I do", "next")
        return f"{opening} {faces}; {distance} {plan} {' '.join(actions)}"

    def image(self, cell_pixels: int = 28) -> npt.NDArray[np.uint8]:
        """The faces unfolded into a cross."""
        plain = number_tile(0, _BACKGROUND)
        rows = [
            [
                number_tile(0, _COLOURS[self._sticker(face, row, column)]) if face != " " else plain
                for face in line
                for column in range(2)
            ]
            for line in _NET
            for row in range(2)
        ]
        return paint(rows, cell_pixels)

    def _face(self, face: str) -> str:
        rows = (
            "".join(self._sticker(face, row, column) for column in range(2)) for row in range(2)
        )
        return "/".join(rows)

    def _sticker(self, face: str, row: int, column: int) -> str:
        return self.cube[4 * FACES.index(face) + 2 * row + column]


def parse(action: str) -> str | None:
    """The turn an action names, or None; ``r``, ``R '`` and ``R prime`` are forgiven."""
    if len(action) > MAX_ACTION_LENGTH:
        return None
    text = normalise(action.translate(_PRIMES)).replace("prime", "'").replace(" ", "")
    return _TURN_NAMES.get(text)
