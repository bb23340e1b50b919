"""2048: sliding and merging, new tiles from luck, and a player that reaches the target."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.envs.base import Env
from ragen2.envs.check.transcript import expert_play
from ragen2.envs.game_2048 import (
    MOVES,
    Game2048,
    Game2048Episode,
    legal_moves,
    move_reward,
    slide,
    slide_line,
    spawn,
)
from ragen2.errors import ConfigError
from ragen2.seeding import stream

BOARDS = st.lists(
    st.lists(st.sampled_from([0, 2, 4, 8, 16]), min_size=4, max_size=4).map(tuple),
    min_size=4,
    max_size=4,
).map(tuple)


@pytest.mark.parametrize(
    ("line", "after", "merged"),
    [
        ((0, 2, 0, 2), (4, 0, 0, 0), (4,)),
        ((2, 2, 2, 2), (4, 4, 0, 0), (4, 4)),
        ((2, 2, 4, 0), (4, 4, 0, 0), (4,)),
        ((4, 2, 2, 0), (4, 4, 0, 0), (4,)),
        ((2, 4, 2, 4), (2, 4, 2, 4), ()),
        ((8, 8, 8, 0), (16, 8, 0, 0), (16,)),
    ],
)
def test_a_tile_merges_once_and_toward_the_start(line, after, merged):
    assert slide_line(line) == (after, merged)


@given(BOARDS, st.sampled_from(MOVES))
def test_sliding_keeps_the_sum_of_the_board(board, move):
    after, _ = slide(board, move)
    assert np.sum(after) == np.sum(board)


@given(BOARDS)
def test_the_four_moves_are_one_move_on_a_turned_board(board):
    turned = tuple(zip(*board[::-1], strict=True))
    for move, same in (("left", "up"), ("up", "right"), ("right", "down"), ("down", "left")):
        after = slide(board, move)[0]
        assert slide(turned, same)[0] == tuple(zip(*after[::-1], strict=True))


@given(st.integers(0, 10**6))
def test_a_new_tile_is_a_two_or_a_four_on_an_empty_cell(seed):
    board = ((2, 4, 8, 16),) * 3 + ((0, 4, 0, 2),)
    after = spawn(board, 0.5, stream("test", seed))
    new = [
        (old, tile)
        for row in range(4)
        for old, tile in zip(board[row], after[row], strict=True)
        if old != tile
    ]
    assert new in ([(0, 2)], [(0, 4)])


def test_the_expert_reaches_the_target_on_every_one_of_100_tasks():
    env = Game2048()
    assert sum(expert_play(env, seed, seed).solved for seed in range(100)) == 100


def test_the_expert_reaches_128_as_well():
    env = Game2048(target_tile=128, max_actions=128)
    assert sum(expert_play(env, seed, 0).solved for seed in range(20)) == 20


def test_luck_changes_the_new_tiles_and_nothing_else():
    env = Game2048()
    boards = set()
    for luck in range(8):
        episode = env.start(5, luck)
        boards.add(env.start(5, luck).board)
        episode.step(legal_moves(episode.board)[0])
        boards.add(episode.board)
    assert len({env.start(5, luck).board for luck in range(8)}) == 1
    assert len(boards) > 3


def test_a_merge_pays_a_tenth_of_its_logarithm():
    episode = Game2048Episode(
        Game2048(), ((8, 8, 4, 4), (0,) * 4, (0,) * 4, (0,) * 4), stream("test")
    )
    assert episode.step("left").reward == pytest.approx(0.1 * math.log2(25)) == move_reward(24)


@pytest.mark.parametrize(("action", "is_valid"), [("left", True), ("jump", False), ("", False)])
def test_what_changes_nothing_brings_no_tile_and_costs_a_tenth_if_it_is_a_move(action, is_valid):
    board = ((2, 0, 0, 0), (4, 0, 0, 0), (0,) * 4, (0,) * 4)
    episode = Game2048Episode(Game2048(), board, stream("test"))
    step = episode.step(action)
    assert (step.reward, step.valid, step.effective, episode.board) == (
        -0.1 if is_valid else 0.0,
        is_valid,
        False,
        board,
    )


def test_the_target_ends_the_game_as_solved():
    episode = Game2048Episode(
        Game2048(), ((32, 32, 0, 0), (0,) * 4, (0,) * 4, (0,) * 4), stream("test")
    )
    step = episode.step(" RIGHT ")
    assert (step.done, step.solved) == (True, True)
    assert episode.expert() == ()


def test_a_board_without_a_move_ends_the_game_unsolved():
    board = ((2, 4, 2, 4), (4, 2, 4, 2)) * 2
    episode = Game2048Episode(Game2048(), board, stream("test"))
    step = episode.step("up")
    assert (step.done, step.solved, step.reward) == (True, False, 0.0)
    assert episode.random_action(stream("test")) in ("Up", "Right", "Down", "Left")


@pytest.mark.parametrize(
    ("size", "four_chance"), [(3, 0.0), (3, 1.0), (4, 0.0), (4, 0.1), (6, 1.0)]
)
def test_no_training_board_is_held_out(size, four_chance):
    env = Game2048(size=size, four_chance=four_chance)
    held_out = {env.start(seed, 0).board for seed in range(60)}
    training = {env.start(seed, 0).board for seed in range(100_000, 100_060)}
    assert not held_out & training


def test_the_stated_bound_covers_a_whole_game():
    env = Game2048(target_tile=2048, max_actions=2000)
    low, high = env.reward_range
    assert low < expert_play(env, 0, 0).total_reward < high


def test_the_reasoning_names_the_largest_tile_and_the_merge():
    episode = Game2048Episode(
        Game2048(), ((8, 8, 4, 2), (0,) * 4, (0,) * 4, (0,) * 4), stream("test")
    )
    text = episode.explain(("Left",), stream("test"))
    assert "8" in text
    assert "8+8" in text
    assert text.endswith("left")


def test_the_board_is_drawn_aligned_and_as_a_picture():
    episode = Game2048Episode(
        Game2048(), ((16, 2, 0, 0), (0,) * 4, (0,) * 4, (0,) * 4), stream("test")
    )
    assert episode.observation.splitlines()[0] == "16  2  .  ."
    assert episode.image(10).shape == (40, 40, 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target_tile": 48}, "target_tile must be a power of 2, got 48"),
        ({"target_tile": 256}, "max_actions must be at least 126 for target_tile 256, got 80"),
        (
            {"size": 3, "target_tile": 2048, "max_actions": 2000},
            "target_tile 2048 does not fit a 3x3 board",
        ),
    ],
)
def test_targets_out_of_reach_are_refused(given, message):
    with pytest.raises(ConfigError) as error:
        Env.from_dict({"kind": "Game2048", **given}, path="env")
    assert message in str(error.value)
