"""Trajectories survive being written and read back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ragen2.backends.scripted import ByteTokenizer, ScriptedPolicy
from ragen2.envs import FrozenLake
from ragen2.errors import RunError
from ragen2.rollout import Rollout, Task, play
from ragen2.runs.trajectories import group_lines, groups_of
from ragen2.types import Group


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    def reply(prompt: str, rng: np.random.Generator) -> str:
        return f"café {rng.integers(9)}</think><answer>Up || Left</answer>"

    tasks = [[Task(seed, luck) for luck in range(2)] for seed in (3, 4)]
    return play(FrozenLake(), ScriptedPolicy(reply), tasks, Rollout(), key=("lines",))


def lines_of(groups: list[Group]) -> list[str]:
    return [line for group in groups for line in group_lines(group, 5)]


def test_what_is_written_is_read_back(groups):
    back = groups_of(lines_of(groups))
    assert [group.prompt for group in back] == [group.prompt for group in groups]
    assert lines_of(back) == lines_of(groups)


def test_members_of_a_group_may_stand_apart(groups):
    lines = lines_of(groups)
    back = groups_of([lines[0], lines[2], lines[1], lines[3]])
    assert [group.prompt.seed for group in back] == [3, 4]
    assert [len(group.trajectories) for group in back] == [2, 2]


def test_a_turn_played_and_written_has_the_tokens_of_its_action(groups):
    turn = groups_of(lines_of(groups))[0].trajectories[0].turns[0]
    assert ByteTokenizer().decode(turn.action_ids_T.tolist()) == "Up || Left"


def test_lines_of_runs_before_action_spans_are_read_without_them(groups):
    data = json.loads(lines_of(groups)[0])
    for turn in data["turns"]:
        del turn["action_span"]
    turn = groups_of([json.dumps(data)])[0].trajectories[0].turns[0]
    assert turn.action_span == (0, 0)
    assert len(turn.action_ids_T) == 0


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"messages": 3}'])
def test_a_line_that_is_no_trajectory_is_named_by_its_number(groups, line):
    with pytest.raises(RunError, match="line 2 is not a trajectory"):
        groups_of([lines_of(groups)[0], line])
