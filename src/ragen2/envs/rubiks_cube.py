"""RubiksCube: turn the faces of a 2x2 cube until each shows one colour.

The seed fixes the scramble and the side the cube is seen from; nothing is left to luck. No cube
starts solved, and ``scramble_depth`` turns are always enough.

A cube is a string of 24 colour letters: faces U L F R B D, each read row by row from outside, as
in the flat cross with U above F and L, R, B beside it. Turns follow from the geometry: x points
right, y up, z to the viewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import product
from operator import itemgetter
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ragen2.envs.base import Easier, Env, Episode, Step, belongs, normalise, rising
from ragen2.envs.toolkit.pixels import Colour, number_tile, paint
from ragen2.envs.toolkit.wording import pick
from ragen2.seeding import stream

Vector = tuple[int, int, int]
Sticker = tuple[Vector, Vector]
"""The corner a sticker is on, and where it faces."""
Permutation = tuple[int, ...]
"""For each place, the place its sticker comes from."""

FACES = "ULFRBD"
SOLVED = "".join(colour * 4 for colour in "WOGRBY")
TURNS = tuple(face + mark for face in "UDLRFB" for mark in ("", "'"))
SOLVING_TURNS = tuple(face + mark for face in "URF" for mark in ("", "'"))
"""Turns that leave the corner down-back-left alone. A turn of D, L or B is a turn of U, R or F and
of the whole cube, so no solution with all twelve turns is shorter than the best with these."""
MOST_TURNS = 14
"""No 2x2 cube needs more quarter turns than this: its diameter in the quarter-turn metric."""
MOST_BACKWARD = 7
"""Half of it: beyond, one search from each end meets sooner than one search alone."""

_NORMALS: dict[str, Vector] = {
    "U": (0, 1, 0),
    "L": (-1, 0, 0),
    "F": (0, 0, 1),
    "R": (1, 0, 0),
    "B": (0, 0, -1),
    "D": (0, -1, 0),
}
_READING: dict[str, tuple[Vector, Vector]] = {
    "U": ((1, 0, 0), (0, 0, 1)),
    "L": ((0, 0, 1), (0, -1, 0)),
    "F": ((1, 0, 0), (0, -1, 0)),
    "R": ((0, 0, -1), (0, -1, 0)),
    "B": ((-1, 0, 0), (0, -1, 0)),
    "D": ((1, 0, 0), (0, 0, -1)),
}
"""For each face, where its columns and its rows run."""


def _stickers() -> list[Sticker]:
    """All 24 stickers in the order of the string."""
    found = []
    for face in FACES:
        normal, (across, down) = _NORMALS[face], _READING[face]
        for row, column in product((-1, 1), repeat=2):
            corner = [normal[i] + column * across[i] + row * down[i] for i in range(3)]
            found.append(((corner[0], corner[1], corner[2]), normal))
    return found


def _rotate(vector: Vector, axis: Vector) -> Vector:
    """A quarter turn clockwise as seen from the end of ``axis``."""
    (x, y, z), (a, b, c) = vector, axis
    along = a * x + b * y + c * z
    return (
        a * along + y * c - z * b,
        b * along + z * a - x * c,
        c * along + x * b - y * a,
    )


def _permutation(axis: Vector, moves: Callable[[Vector], bool]) -> Permutation:
    stickers = _stickers()
    places = {sticker: place for place, sticker in enumerate(stickers)}
    origin = list(range(24))
    for place, (corner, normal) in enumerate(stickers):
        if moves(corner):
            origin[places[_rotate(corner, axis), _rotate(normal, axis)]] = place
    return tuple(origin)


def _face_turn(face: str) -> Permutation:
    axis = _NORMALS[face]
    return _permutation(axis, lambda corner: sum(map(int.__mul__, corner, axis)) > 0)


def _three_times(permutation: Permutation) -> Permutation:
    return tuple(permutation[permutation[place]] for place in permutation)


PERMUTATIONS: dict[str, Permutation] = {
    turn: _face_turn(turn[0]) if len(turn) == 1 else _three_times(_face_turn(turn[0]))
    for turn in TURNS
}
_PICKERS = {turn: itemgetter(*permutation) for turn, permutation in PERMUTATIONS.items()}


def turned(cube: str, turns: Iterable[str]) -> str:
    """The cube after ``turns``."""
    for turn in turns:
        cube = "".join(_PICKERS[turn](cube))
    return cube


@lru_cache(maxsize=1)
def orientations() -> tuple[str, ...]:
    """The solved cube seen from all 24 sides."""
    rotations = [_permutation(_NORMALS[face], lambda corner: True) for face in "UR"]
    found = [SOLVED]
    for cube in found:
        for rotation in rotations:
            seen = "".join(cube[place] for place in rotation)
            if seen not in found:
                found.append(seen)
    return tuple(found)


def is_solved(cube: str) -> bool:
    """Every face shows one colour; how the cube is held does not matter."""
    return all(len(set(cube[start : start + 4])) == 1 for start in range(0, 24, 4))


def inverse(turn: str) -> str:
    """The turn that undoes ``turn``."""
    return turn[0] if len(turn) == 2 else turn + "'"


def shortest_solution(cube: str) -> tuple[str, ...]:
    """A shortest sequence of quarter turns that solves the cube, found from both ends.

    A path of n turns exists when a cube n - b turns ahead lies b turns from the solved one; n grows
    until one is found. Cubes around the solved one are shared by all calls.
    """
    before: dict[str, tuple[str, ...]] = {}
    ahead: dict[str, tuple[str, ...]] = {_canonical(cube): ()}
    for length in range(MOST_TURNS + 1):
        backward = min(length, MOST_BACKWARD)
        if length > MOST_BACKWARD:
            before, ahead = ahead, _one_turn_on(ahead, before)
        home = cubes_around(backward)
        middle = next((found for found in ahead if found in home), None)
        if middle is not None:
            return (*ahead[middle], *_path_home(middle, backward))
    raise AssertionError(f"{cube} cannot be reached by turning a solved cube")


@lru_cache(maxsize=MOST_BACKWARD + 1)
def cubes_around(distance: int) -> dict[str, str]:
    """All cubes ``distance`` turns from the solved one, each with a turn that brings it nearer."""
    if distance == 0:
        return {SOLVED: ""}
    inner = cubes_around(distance - 1)
    innermost = cubes_around(distance - 2) if distance > 1 else {}
    return {
        cube: inverse(turn)
        for near in inner
        for turn in SOLVING_TURNS
        if (cube := turned(near, (turn,))) not in inner and cube not in innermost
    }


def _one_turn_on(
    ahead: dict[str, tuple[str, ...]], before: dict[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    return {
        cube: (*path, turn)
        for near, path in ahead.items()
        for turn in SOLVING_TURNS
        if (cube := turned(near, (turn,))) not in ahead and cube not in before
    }


def _path_home(cube: str, distance: int) -> tuple[str, ...]:
    turns: list[str] = []
    for left in range(distance, 0, -1):
        turns.append(cubes_around(left)[cube])
        cube = turned(cube, turns[-1:])
    return tuple(turns)


def _canonical(cube: str) -> str:
    """The cube with colours renamed so that the corner down-back-left is as on ``SOLVED``."""
    names: dict[str, str] = {}
    for place in _KEPT_PLACES:
        names[cube[place]] = SOLVED[place]
        names[_OPPOSITE[cube[place]]] = _OPPOSITE[SOLVED[place]]
    return "".join(names[colour] for colour in cube)


_KEPT_PLACES = [place for place, (corner, _) in enumerate(_stickers()) if corner == (-1, -1, -1)]
_OPPOSITE = {"W": "Y", "Y": "W", "O": "R", "R": "O", "G": "B", "B": "G"}


MAX_DRAWS = 10_000
MAX_ACTION_LENGTH = 16
_PRIMES = str.maketrans({"’": "'", "′": "'", "`": "'", "‘": "'"})
_TURN_NAMES = {turn.lower(): turn for turn in TURNS}
_CUBE = (
    "Solve a 2x2 Rubik's cube: every face must show one colour. Faces are U up, L left, F front, R right, "
    "B back, D down, each given as top row/bottom row seen from outside (U with F below it, D with F "
    "above it)."
)
_TURNING = (
    "U, D, L, R, F, B turn that face a quarter clockwise, U', D', L', R', F', B' the other way."
)
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
    has_fixed_actions: ClassVar[bool] = True

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
            f"{_CUBE} Actions: {_TURNING} "
            "Example: <think>R was turned once, I turn it back</think><answer>R'</answer>"
        )

    @property
    def rules(self) -> str:
        """What a solved cube is, how faces are read, and how they turn."""
        return f"{_CUBE} {_TURNING}"

    @property
    def action_forms(self) -> tuple[str, ...]:
        """The twelve turns."""
        return TURNS

    @property
    def easier(self) -> Easier:
        """Fewer turns in the scramble."""
        return tuple({"scramble_depth": depth} for depth in rising(1, self.scramble_depth))

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
