"""Boards are read from what an environment really shows, in every way it can show it."""

from __future__ import annotations

import pytest

from ragen2.envs import FrozenLake, Sokoban
from ragen2.reports.data.boards import LAKE, SOKOBAN_SYMBOLS, Boards
from ragen2.seeding import stream


def played(env, seed: int, moves: int = 6):
    """An episode and what it showed, move by move; the last state is kept."""
    episode, rng = env.start(seed, 0), stream("boards", seed)
    yield episode, episode.observation
    for _ in range(moves):
        if episode.step(episode.random_action(rng)).done:
            break
        yield episode, episode.observation
    yield episode, episode.observation


def kinds(board) -> list[list[str]]:
    meaning = {one["symbol"]: one["kind"] for one in board["legend"]}
    return [[meaning[symbol] for symbol in row] for row in board["rows"]]


@pytest.mark.parametrize("seed", range(8))
def test_a_lake_told_in_coordinates_is_the_lake_drawn_as_a_grid(seed):
    settings = {"size": 5, "hole_ratio": 0.3, "slip": 0.0}
    told = FrozenLake(observation="coord", **settings)
    drawn = FrozenLake(observation="grid", **settings)
    coordinates, grid = Boards("FrozenLake", {"size": 5}), Boards("FrozenLake", {"size": 5})
    seen = list(zip(played(told, seed), played(drawn, seed), strict=True))
    for (_, text), (_, board_text) in seen:
        board = coordinates.read(f"{text}\nActions left 10")
        assert board == grid.read(board_text)
        assert board is not None
        assert ["".join(row) for row in board["rows"]] == board_text.splitlines()


def test_a_fall_into_a_hole_is_drawn_on_the_lake_before():
    boards = Boards("FrozenLake", {"size": 2})
    boards.read("You (0,0) Goal (1,1) Holes (0,1)")
    fallen = boards.read("You fell into the hole at (0,1).")
    assert fallen is not None
    assert fallen["rows"] == [["_", "X"], ["_", "G"]]
    assert Boards("FrozenLake", {}).read("You fell into the hole at (0,1).") is None


def test_every_sign_of_the_lake_has_a_kind():
    env = FrozenLake(observation="grid", slip=0.0)
    signs = {sign for seed in range(40) for _, text in played(env, seed) for sign in text}
    assert signs - {"\n"} <= set(LAKE)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("observation", ["grid", "grid_coord", "coord"])
def test_a_room_is_read_whichever_way_it_is_shown(observation, seed):
    env = Sokoban(observation=observation, size=6, boxes=2, max_actions=20)
    boards = Boards("Sokoban", {"symbols": SOKOBAN_SYMBOLS})
    for episode, text in played(env, seed):
        board = boards.read(text)
        assert board is not None
        assert [[SOKOBAN_SYMBOLS.index(sign) for sign in row] for row in board["rows"]] == (
            episode._codes()
        )


def test_a_room_in_other_symbols_means_the_same():
    usual, other = Sokoban(), Sokoban(symbols="WFTBXPS")
    for (_, text), (_, renamed) in zip(played(usual, 3), played(other, 3), strict=True):
        board = Boards("Sokoban", {"symbols": SOKOBAN_SYMBOLS}).read(text)
        again = Boards("Sokoban", {"symbols": "WFTBXPS"}).read(renamed)
        assert kinds(board) == kinds(again)


def test_numbers_are_tiles_and_rules_between_boxes_are_left_out():
    sudoku = "3 2 | 1 .\n. . | 3 .\n----+----\n2 . | . 3\n4 3 | 2 1"
    board = Boards("Sudoku", {}).read(sudoku)
    assert board == {
        "rows": [["3", "2", "1", "."], [".", ".", "3", "."], ["2", ".", ".", "3"], list("4321")],
        "legend": [],
    }
    game = Boards("Game2048", {}).read("Score 4\n. . 16\n2 . 4\n. . .")
    assert game is not None
    assert game["rows"] == [[".", ".", "16"], ["2", ".", "4"], [".", ".", "."]]


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("WebShop", "#_O\n#P_"),
        ("Sokoban", "<script>alert(1)</script>"),
        ("Sokoban", "Room 9999 x 9999 You (1, 1) Boxes none Targets none"),
        ("FrozenLake", "You are lost"),
        ("FrozenLake", ""),
        ("Sudoku", "no numbers here"),
    ],
)
def test_what_is_no_board_is_none(env, text):
    assert Boards(env, {}).read(text) is None


def test_cells_outside_of_the_board_are_left_out():
    board = Boards("FrozenLake", {"size": 2}).read("You (0,0) Goal (7,7) Holes (1,9) (1,0)")
    assert board is not None
    assert board["rows"] == [["P", "_"], ["O", "_"]]
