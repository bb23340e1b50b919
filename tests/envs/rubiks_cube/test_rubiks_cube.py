"""RubiksCube: turns that are those of a real cube, and solutions that are as short as can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.envs.base import Env
from ragen2.envs.check.conformance import check_env
from ragen2.envs.rubiks_cube import (
    SOLVED,
    TURNS,
    CubeEpisode,
    RubiksCube,
    cubes_around,
    draw_cube,
    inverse,
    is_solved,
    orientations,
    parse,
    shortest_solution,
    turned,
)
from ragen2.errors import ConfigError
from ragen2.seeding import stream

SEQUENCES = st.lists(st.sampled_from(TURNS), max_size=12)


def test_the_contract_holds_for_deep_scrambles():
    check_env(RubiksCube(scramble_depth=14, max_actions=14), seeds=range(5))


@pytest.mark.parametrize("turn", TURNS)
def test_a_turn_has_order_four_and_is_undone_by_its_inverse(turn):
    assert not is_solved(turned(SOLVED, [turn]))
    assert turned(SOLVED, [turn] * 4) == SOLVED
    assert turned(SOLVED, [turn, inverse(turn)]) == SOLVED
    assert turned(SOLVED, [turn] * 3) == turned(SOLVED, [inverse(turn)])


@pytest.mark.parametrize("pair", [("U", "D'"), ("L", "R'"), ("F", "B'")])
def test_opposite_faces_turned_alike_turn_the_whole_cube(pair):
    cube = turned(SOLVED, pair)
    assert cube != SOLVED
    assert is_solved(cube)


def test_a_turn_of_the_upper_face_moves_the_rows_a_hand_would_move():
    # Clockwise from above: front goes left, left goes back, back goes right, right goes front.
    rows = CubeEpisode(turned(SOLVED, ["U"])).observation.splitlines()
    assert rows == ["U: WW/WW", "L: GG/OO", "F: RR/GG", "R: BB/RR", "B: OO/BB", "D: YY/YY"]


def test_a_turn_of_the_right_face_moves_the_columns_a_hand_would_move():
    rows = CubeEpisode(turned(SOLVED, ["R"])).observation.splitlines()
    assert rows == ["U: WG/WG", "L: OO/OO", "F: GY/GY", "R: RR/RR", "B: WB/WB", "D: YB/YB"]


def test_there_are_as_many_cubes_at_each_distance_as_is_known():
    counts = [len(cubes_around(distance)) for distance in range(8)]
    assert counts == [1, 6, 27, 120, 534, 2256, 8969, 33058]


def test_a_solved_cube_can_be_seen_from_24_sides():
    assert len(set(orientations())) == 24
    assert all(is_solved(cube) for cube in orientations())


@given(st.sampled_from(range(24)), SEQUENCES)
def test_a_solution_solves_and_is_no_longer_than_the_scramble(side, scramble):
    cube = turned(orientations()[side], scramble)
    solution = shortest_solution(cube)
    assert is_solved(turned(cube, solution))
    assert len(solution) <= len(scramble)


@given(st.sampled_from(range(24)), st.lists(st.sampled_from(TURNS), min_size=1, max_size=3))
def test_no_shorter_sequence_of_the_twelve_turns_solves(side, scramble):
    cube = turned(orientations()[side], scramble)
    reached = {cube}
    for _ in range(len(shortest_solution(cube))):
        assert not any(is_solved(found) for found in reached)
        reached = {turned(found, (turn,)) for found in reached for turn in TURNS}
    assert any(is_solved(found) for found in reached)


@given(SEQUENCES, st.sampled_from(TURNS))
def test_one_turn_changes_the_distance_by_one(scramble, turn):
    # Every quarter turn is an odd permutation of the corners, so a distance never stays the same.
    cube = turned(SOLVED, scramble)
    distances = [len(shortest_solution(each)) for each in (cube, turned(cube, [turn]))]
    assert abs(distances[0] - distances[1]) == 1


@pytest.mark.parametrize("depth", [1, 2, 3, 14])
def test_no_cube_starts_solved_or_farther_than_asked(depth):
    for seed in (*range(40), *range(100_000, 100_040)):
        assert 1 <= len(shortest_solution(draw_cube(depth, seed))) <= depth


@pytest.mark.parametrize("depth", [1, 2])
def test_no_training_cube_is_held_out(depth):
    held_out = {draw_cube(depth, seed) for seed in range(400)}
    training = {draw_cube(depth, seed) for seed in range(100_000, 100_400)}
    assert held_out
    assert not held_out & training


def test_solving_pays_one_and_ends():
    episode = CubeEpisode(turned(SOLVED, ["R", "U"]))
    steps = [episode.step(turn) for turn in ("u'", "R’")]
    assert [step.reward for step in steps] == [0.0, 1.0]
    assert (steps[1].done, steps[1].solved) == (True, True)
    assert episode.expert() == ()


@pytest.mark.parametrize(
    ("action", "turn"),
    [("R", "R"), (" r ", "R"), ("r'", "R'"), ("R ’", "R'"), ("R prime", "R'"), ("F`", "F'")],
)
def test_known_ways_to_write_a_turn_mean_the_same(action, turn):
    assert parse(action) == turn


@pytest.mark.parametrize("action", ["", "R2", "RR", "R''", "M", "prime", "turn R", "R U", "'"])
def test_what_is_not_a_turn_changes_nothing(action):
    episode = CubeEpisode(turned(SOLVED, ["R"]))
    before = episode.observation
    step = episode.step(action)
    assert (step.valid, step.effective, step.reward, step.done) == (False, False, 0.0, False)
    assert episode.observation == before


def test_the_reasoning_names_two_faces_and_the_turns():
    text = CubeEpisode(turned(SOLVED, ["R"])).explain(("R'",), stream("test"))
    assert "front GY/GY" in text
    assert "right RR/RR" in text
    assert text.endswith("R'")


def test_the_picture_is_the_unfolded_cube():
    picture = CubeEpisode(SOLVED).image(10)
    assert picture.shape == (60, 80, 3)
    assert tuple(picture[5, 25]) == (255, 255, 255)
    assert tuple(picture[25, 25]) == (0, 155, 72)


def test_a_budget_below_the_scramble_is_refused():
    with pytest.raises(ConfigError) as error:
        Env.from_dict({"kind": "RubiksCube", "scramble_depth": 12}, path="env")
    assert "max_actions must be at least scramble_depth (12), got 10" in str(error.value)
