"""Levels of a curriculum: legal settings, harder from one to the next, and no held-out task in training."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.curriculum import Level, levels_of
from ragen2.envs import Env, make
from ragen2.envs.base import HELD_OUT_SEEDS, MOST_EASIER, image_name, rising
from ragen2.trainer.batch import play_expert, play_random

LADDERS = {
    "FrozenLake": {},
    "FrozenLake, large": {"size": 12, "min_distance": 8, "max_actions": 40},
    "FrozenLake, maze": {"size": 4, "hole_ratio": 0.3, "min_distance": 7},
    "FrozenLake, image": {"size": 8, "observation": "image", "cell_px": 14},
    "Sokoban": {},
    "Sokoban, three boxes": {"size": 8, "boxes": 3, "max_actions": 30, "min_plan": 9},
    "Sokoban, narrow": {"width": 9, "height": 4, "max_plan": 6},
    "Sudoku": {},
    "Sudoku, 9x9": {"size": 9, "blanks": 30, "max_actions": 60},
    "RubiksCube": {},
    "RubiksCube, deep": {"scramble_depth": 9},
    "Game2048": {"max_turns": 80},
    "Countdown": {"max_numbers": 5},
    "MetaMathQA": {"num_steps": 6},
    "SearchQA": {"num_passages": 400},
    "DeepCoder": {},
}
FROM_FILES = {
    "Sokoban": {"levels": "rooms.txt"},
    "Countdown": {"data": "numbers.jsonl"},
    "MetaMathQA": {"data": "questions.jsonl"},
    "SearchQA": {"questions": "questions.jsonl"},
    "DeepCoder": {"data": "problems.jsonl"},
}


def ladder(name: str) -> Env:
    return make(name.partition(",")[0], **LADDERS[name])


def difficulty(env: Env, seed: int) -> float:
    """Length of the expert's plan, or what else makes a task of one action hard."""
    episode = env.start(seed, 0)
    if env.kind == "Countdown":
        return len(episode.task.numbers)
    if env.kind == "MetaMathQA":
        return len(episode.task.working)
    if env.kind == "DeepCoder":
        return episode.problem.level
    return len(play_expert(env, seed, 0).actions)


@pytest.mark.parametrize("name", LADDERS)
def test_levels_are_the_run_s_own_with_other_difficulty_and_the_last_is_itself(name):
    env = ladder(name)
    *easier, own = levels_of(env)
    assert own.env is env
    assert (own.number, own.highest, own.settings) == (len(easier), len(easier), {})
    assert 0 < len(easier) <= MOST_EASIER
    for number, level in enumerate(easier):
        assert level.number == number
        assert level.settings
        changed = {**env.model_dump(), **level.settings}
        assert level.env.model_dump() == changed
        assert not {"max_turns", "max_actions", "observation", "step_timeout"} & {*level.settings}
    assert len({level.env for level in (*easier, own)}) == len(easier) + 1


@pytest.mark.parametrize("name", LADDERS)
def test_levels_get_harder(name):
    num_seeds = 12 if name.startswith(("DeepCoder", "Game2048", "Sudoku, 9x9")) else 60
    seeds = range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + num_seeds)
    means = [
        np.mean([difficulty(one.env, seed) for seed in seeds]) for one in levels_of(ladder(name))
    ]
    assert means == sorted(set(means))


@pytest.mark.parametrize("name", ["FrozenLake", "Sokoban", "Countdown"])
def test_random_play_succeeds_less_from_level_to_level(name):
    seeds = range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + 300)
    rates = [
        np.mean([play_random(one.env, s, 0).solved for s in seeds])
        for one in levels_of(ladder(name))
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 2 * rates[-1]


@pytest.mark.parametrize("name", LADDERS)
def test_no_level_trains_on_a_task_that_any_level_holds_out(name):
    count = 15 if name.startswith(("DeepCoder", "Sudoku, 9x9")) else 60

    def task(level: Level, seed: int) -> tuple[str, str]:
        episode = level.env.start(seed, 0)
        return episode.observation, image_name(episode)

    held_out, trained = (
        {task(level, first + at) for level in levels_of(ladder(name)) for at in range(count)}
        for first in (0, HELD_OUT_SEEDS)
    )
    assert not held_out & trained


@pytest.mark.parametrize("kind", FROM_FILES)
def test_tasks_of_files_have_one_level(kind):
    assert make(kind, **FROM_FILES[kind]).easier == ()


@pytest.mark.parametrize("kind", ["Bandit", "WebShop"])
def test_an_environment_without_easier_settings_has_one_level(kind):
    (only,) = levels_of(make(kind))
    assert str(only) == "level 0 of 0: the settings of the run"


def test_the_easiest_settings_have_nothing_below_them():
    assert make("FrozenLake", max_distance=1).easier == ()
    assert make("Sokoban", max_plan=1).easier == ()
    assert make("Game2048", target_tile=8).easier == ()


def test_a_level_says_what_it_changes():
    names = [str(level) for level in levels_of(make("FrozenLake"))]
    assert names == [
        "level 0 of 3: max_distance 1",
        "level 1 of 3: max_distance 2",
        "level 2 of 3: max_distance 3",
        "level 3 of 3: the settings of the run",
    ]


def test_the_least_distance_gives_way_to_the_greatest_of_a_level():
    env = make("FrozenLake", size=5, min_distance=3)
    found = [(one.env.min_distance, one.env.max_distance) for one in levels_of(env)]
    assert found == [(1, 1), (2, 2), (3, 3), (3, 4), (3, 0)]


def test_boxes_come_one_by_one_with_as_many_moves_for_each():
    env = make("Sokoban", size=8, boxes=3, max_actions=30, min_plan=9)
    found = [(one.env.boxes, one.env.max_plan, one.env.min_plan) for one in levels_of(env)]
    assert found == [(1, 1, 1), (1, 2, 1), (1, 4, 1), (1, 10, 3), (2, 20, 6), (3, 0, 9)]


def test_many_values_are_spread_over_few_levels():
    assert list(rising(1, 4)) == [1, 2, 3]
    assert list(rising(1, 40)) == [1, 6, 11, 16, 21, 26, 31, 36]
    assert list(rising(3, 3)) == []
    assert max(len(rising(2, high)) for high in range(2, 200)) == MOST_EASIER
