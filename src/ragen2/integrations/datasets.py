"""Tasks, groups and trajectories as rows of Hugging Face ``datasets``, and back.

A row is a plain dictionary; only the functions that make a ``Dataset`` need the package. Rows of
trajectories hold everything a run directory does, so that nothing is lost on the way and back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen2.envs import Env
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.errors import DependencyError, EnvError, RunError
from ragen2.reading import read_bytes
from ragen2.rollout import Rollout, Task
from ragen2.rollout.context import refuse_images
from ragen2.rollout.play import DEFAULT_PROMPT
from ragen2.rollout.prompts import PromptSettings, PromptWriter
from ragen2.runs.trajectories import ImageStore, group_lines, groups_of
from ragen2.types import Group, Image

if TYPE_CHECKING:
    from datasets import Dataset

Row = dict[str, Any]


def prompt_rows(
    env: Env,
    seeds: Iterable[int],
    rollout: Rollout | None = None,
    prompt: PromptSettings = DEFAULT_PROMPT,
) -> list[Row]:
    """The first prompt of each task, as chat messages: ``env``, ``seed``, ``held_out``, ``prompt``."""
    refuse_images(env, "a row of chat messages")
    writer = PromptWriter.of(env, rollout or Rollout(), prompt)
    return [
        {
            "env": env.kind,
            "seed": seed,
            "held_out": seed < HELD_OUT_SEEDS,
            "prompt": [{"role": one.role, "content": one.content} for one in writer.first(seed)],
        }
        for seed in seeds
    ]


def tasks_of(rows: Iterable[Mapping[str, Any]], env: Env, group_size: int) -> list[list[Task]]:
    """Groups of tasks for ``ragen2.rollout.play``, one for each row of ``prompt_rows``."""
    groups = []
    for number, row in enumerate(rows, start=1):
        if row.get("env") != env.kind or not isinstance(row.get("seed"), int):
            raise EnvError(
                f"row {number} is of {row.get('env')!r} with seed {row.get('seed')!r}; rows of "
                f"{env.kind} with whole numbers as seeds are needed"
            )
        groups.append([Task(row["seed"], luck) for luck in range(group_size)])
    return groups


def trajectory_rows(groups: Sequence[Group], step: int = 0) -> list[Row]:
    """One row per trajectory, with its ``group`` and, as chat messages, its ``completion``."""
    rows = []
    for number, group in enumerate(groups):
        for line in group_lines(group, step):
            row = json.loads(line)
            rows.append({**row, "group": number, "completion": _messages(row["turns"])})
    return rows


def groups_from_rows(
    rows: Iterable[Mapping[str, Any]], image: Callable[[str], Image] | None = None
) -> list[Group]:
    """The groups that ``trajectory_rows`` was given.

    Rows hold the names of images; ``image`` finds them (``ImageStore(run).read``), None leaves them out.
    """
    return groups_of((json.dumps(dict(row)) for row in rows), image)


def run_rows(run: Path, step: int) -> list[Row]:
    """The rollouts of one step of a run directory."""
    file = run / "rollouts" / f"step_{step:06d}.jsonl"
    try:
        lines = read_bytes(file).splitlines()
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}") from error
    return trajectory_rows(groups_of(lines, ImageStore(run).read), step)


def to_dataset(rows: Sequence[Row]) -> Dataset:
    """Rows as a ``Dataset``; it can be iterated over to get the same rows back."""
    try:
        from datasets import Dataset
    except ImportError as error:
        raise DependencyError("this needs datasets; pip install 'ragen2[data]'") from error
    made: Dataset = Dataset.from_list(list(rows))
    return made


def _messages(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What was written and what came back, in turn; there is no message after the last reply."""
    found: list[dict[str, str]] = []
    for turn in turns:
        found.append({"role": "assistant", "content": turn["text"]})
        found.append({"role": "user", "content": turn["observation"]})
    return found[:-1]
