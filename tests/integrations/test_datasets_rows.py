"""Rows of tasks and trajectories: the same groups come back, through plain rows and through datasets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.envs import FrozenLake
from ragen2.errors import EnvError, RunError
from ragen2.integrations.datasets import (
    groups_from_rows,
    prompt_rows,
    run_rows,
    tasks_of,
    to_dataset,
    trajectory_rows,
)
from ragen2.rollout import Rollout, play
from ragen2.runs.trajectories import group_lines
from ragen2.types import Group

SEEDS = [3, 100_007]


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    """Two groups of two, of several turns."""
    env = FrozenLake()
    policy = ScriptedPolicy(lambda _, number: "north\u2028is safe</think><answer>Up</answer>")
    return play(env, policy, tasks_of(prompt_rows(env, SEEDS), env, 2), Rollout(), key=(0, "rows"))


def test_a_row_of_a_task_is_the_prompt_that_is_played(groups: list[Group]) -> None:
    rows = prompt_rows(FrozenLake(), SEEDS)
    assert [(row["env"], row["seed"], row["held_out"]) for row in rows] == [
        ("FrozenLake", 3, True),
        ("FrozenLake", 100_007, False),
    ]
    for row, group in zip(rows, groups, strict=True):
        wanted = [{"role": m.role, "content": m.content} for m in group.prompt.messages]
        assert row["prompt"] == wanted


def test_rows_of_another_environment_are_refused() -> None:
    with pytest.raises(EnvError, match=r"row 1 is of 'Bandit' with seed 1; rows of FrozenLake"):
        tasks_of([{"env": "Bandit", "seed": 1}], FrozenLake(), 2)


def assert_same(found: list[Group], wanted: list[Group]) -> None:
    lines = [[line for group in side for line in group_lines(group, 5)] for side in (found, wanted)]
    assert lines[0] == lines[1]


def test_trajectories_come_back_as_they_were(groups: list[Group]) -> None:
    rows = trajectory_rows(groups, step=5)
    assert [row["group"] for row in rows] == [0, 0, 1, 1]
    assert {row["step"] for row in rows} == {5}
    assert_same(groups_from_rows(rows), groups)


def test_a_completion_goes_to_and_fro_and_ends_with_a_reply(groups: list[Group]) -> None:
    row = trajectory_rows(groups)[0]
    turns = groups[0].trajectories[0].turns
    assert len(turns) > 1
    roles = [message["role"] for message in row["completion"]]
    assert roles == (["assistant", "user"] * len(turns))[:-1]
    assert row["completion"][1]["content"] == turns[0].observation
    assert row["completion"][-1]["content"] == turns[-1].completion.text


def test_rollouts_of_a_run_are_rows(groups: list[Group], tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    lines = [line for group in groups for line in group_lines(group, 2)]
    (tmp_path / "rollouts/step_000002.jsonl").write_text("\n".join(lines) + "\n")
    assert run_rows(tmp_path, 2) == trajectory_rows(groups, 2)
    with pytest.raises(RunError, match=r"step_000003\.jsonl cannot be read: No such file"):
        run_rows(tmp_path, 3)


def test_a_dataset_gives_the_same_groups_back(groups: list[Group], tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs the package datasets")
    made = to_dataset(trajectory_rows(groups, 5))
    made.to_parquet(str(tmp_path / "rows.parquet"))
    assert_same(groups_from_rows(made), groups)
    assert np.isclose(sum(made["reward"]), sum(float(g.rewards_G.sum()) for g in groups))
    json.dumps(made[0])
