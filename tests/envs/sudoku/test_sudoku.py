"""Sudoku: one solution, solvable within the budget, and no reward for writing over a cell."""

import pytest

from ragen2.envs.base import Env
from ragen2.envs.check.conformance import check_env
from ragen2.envs.sudoku import (
    Puzzle,
    Sudoku,
    SudokuEpisode,
    draw_puzzle,
    houses_of,
    parse,
    solutions,
)
from ragen2.errors import ConfigError
from ragen2.seeding import stream

PUZZLE = Puzzle(
    4,
    (0, 2, 3, 4, 3, 4, 1, 2, 0, 0, 4, 3, 4, 3, 0, 1),
    (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1),
)


def settings(**given):
    return Env.from_dict({"kind": "Sudoku", **given}, path="env")


@pytest.fixture
def episode():
    return SudokuEpisode(PUZZLE)


def test_the_contract_holds_for_the_large_size():
    check_env(Sudoku(size=9, blanks=40, max_actions=50), seeds=range(5))


@pytest.mark.parametrize(("size", "blanks"), [(4, 1), (4, 6), (4, 10), (9, 20), (9, 54)])
@pytest.mark.parametrize("seed", [0, 1, 2, 100_000, 100_001, 100_002])
def test_every_puzzle_has_as_many_blanks_as_asked_and_one_solution(size, blanks, seed):
    puzzle = draw_puzzle(size, blanks, seed)
    assert puzzle.given.count(0) == blanks
    assert list(solutions(puzzle.given, size)) == [puzzle.solution]


@pytest.mark.parametrize("size", [4, 9])
def test_a_solution_holds_every_number_once_in_each_house(size):
    solution = draw_puzzle(size, 6, 7).solution
    houses = {}
    for index, number in enumerate(solution):
        for house in houses_of(size)[index]:
            houses.setdefault(house, []).append(number)
    assert len(houses) == 3 * size
    assert all(sorted(numbers) == list(range(1, size + 1)) for numbers in houses.values())


def test_all_solutions_of_a_loose_grid_are_found():
    # There are 288 full 4x4 grids, a known count.
    assert len(set(solutions((0,) * 16, 4))) == 288


def test_no_training_puzzle_is_held_out():
    held_out = {draw_puzzle(4, 2, seed).given for seed in range(300)}
    training = {draw_puzzle(4, 2, seed).given for seed in range(100_000, 100_300)}
    assert not held_out & training


@pytest.mark.parametrize(
    "given", [{}, {"blanks": 10}, {"size": 9, "blanks": 30, "max_actions": 30}]
)
def test_the_expert_earns_the_most_there_is_within_the_budget(given):
    env = Sudoku(**given)
    for seed in range(5):
        episode = env.start(seed, 0)
        steps = [episode.step(action) for action in episode.expert()]
        assert len(steps) == env.blanks
        assert steps[-1].solved
        assert sum(step.reward for step in steps) == pytest.approx(env.return_range[1])


def test_writing_over_a_cell_pays_nothing(episode):
    assert episode.step("place 1 at (3,1)").reward == 0.0  # legal, not the solution
    rewards = [episode.step(f"place {number} at (3,1)").reward for number in (2, 1, 2, 1, 2)]
    assert rewards == [0.0] * 5


def test_clearing_and_placing_again_pays_nothing(episode):
    assert episode.step("place 2 at (3,1)").reward == 1.0
    rewards = [episode.step(f"{move} (3,1)").reward for move in ("clear", "place 2 at") * 5]
    assert rewards == [0.0] * 10


def test_the_last_number_pays_the_bonus_and_ends(episode):
    rewards = [
        episode.step(f"place {n} at ({cell})") for n, cell in ((1, "1,1"), (2, "3,1"), (1, "3,2"))
    ]
    assert [step.reward for step in rewards] == [1.0, 1.0, 1.0]
    last = episode.step("place 2 at (4,3)")
    assert (last.reward, last.done, last.solved) == (11.0, True, True)


@pytest.mark.parametrize(
    ("action", "is_valid"),
    [
        ("place 1 at (1,2)", True),  # given
        ("clear (1,2)", True),  # given
        ("place 4 at (3,1)", True),  # 4 is in its row and column
        ("place 5 at (3,1)", False),
        ("place 0 at (3,1)", False),
        ("place 1 at (5,1)", False),
        ("fill it in", False),
    ],
)
def test_what_breaks_a_rule_changes_nothing_and_costs_a_tenth_if_it_is_an_action(
    episode, action, is_valid
):
    before = episode.observation
    step = episode.step(action)
    paid = -0.1 if is_valid else 0.0
    assert (step.reward, step.valid, step.effective) == (paid, is_valid, False)
    assert episode.observation == before


@pytest.mark.parametrize(
    "action",
    [
        "place 3 at (1,2)",
        " PLACE 3 AT ( 1 , 2 ) ",
        "place 3 at row 1 col 2",
        "Place 3 at Row 1, Column 2.",
        "3 at 1,2",
        "(1,2,3)",
        "1, 2, 3",
    ],
)
def test_known_ways_to_write_a_placement_mean_the_same(action):
    assert parse(action, 4) == (1, 3)


@pytest.mark.parametrize(
    "action", ["that 1,2,3", "at 1,2,3", "12", "clear 12", "1,2,3,4", "٣ at 1,2"]
)
def test_what_is_not_an_action_is_not_guessed_at(action):
    assert parse(action, 4) is None


def test_the_expert_clears_what_is_wrong_first(episode):
    episode.step("place 1 at (3,1)")
    plan = episode.expert()
    assert plan[0] == "clear (3,1)"
    assert [episode.step(action) for action in plan][-1].solved


@pytest.mark.parametrize("seed", range(20))
def test_the_expert_solves_from_wherever_a_random_player_got_to(seed):
    episode = Sudoku(blanks=10).start(seed, 0)
    rng = stream("test", seed)
    for _ in range(7):
        episode.step(episode.random_action(rng))
    steps = [episode.step(action) for action in episode.expert()]
    assert episode.solved
    assert all(step.effective for step in steps)


def test_the_reasoning_names_the_row_and_the_cell(episode):
    text = episode.explain(("place 2 at (3,1)",), stream("test"))
    assert "(3,1)" in text
    assert "3 4" in text


def test_the_grid_is_drawn_with_its_boxes(episode):
    assert episode.observation.splitlines()[1:4] == ["3 4 | 1 2", "----+----", ". . | 4 3"]
    assert episode.image(20).shape == (80, 80, 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"blanks": 8, "max_actions": 7}, "max_actions must be at least blanks (8), got 7"),
        ({"blanks": 11, "max_actions": 20}, "blanks must be at most 10 for size 4, got 11"),
        ({"size": 5}, "env.size must be 4 or 9, got 5"),
        ({"blank": 3}, "unknown setting env.blank; did you mean 'blanks'?"),
    ],
)
def test_settings_that_cannot_be_solved_are_refused(given, message):
    with pytest.raises(ConfigError) as error:
        settings(**given)
    assert message in str(error.value)
