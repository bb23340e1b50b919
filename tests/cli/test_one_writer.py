"""Two programs on one run directory: the second is told in one line, and a killed one is in nobody's way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, Process, content, records, settings, wait_for
from ragen2.runs.lock import one_writer

Program = Callable[..., Done]
Start = Callable[..., Process]

LONG_RUN = settings(
    "steps=200",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "evaluation.tasks=2",
    "evaluation.probe_traces=2",
)


def assert_told_who_writes(done: Done, pid: int, folder: str = "run") -> None:
    """One line that names the process, and exit code 2."""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ragen2: {folder} is written by process {pid} on ")
    assert line.endswith("; wait for it or end it")
    assert done.returncode == 2


def test_a_run_under_way_is_not_resumed_until_it_is_killed(
    program: Program, start: Start, tmp_path: Path
) -> None:
    first = start("train", *LONG_RUN, "--out", "run")
    wait_for((tmp_path / "run" / "steps.jsonl").exists, first)
    assert_told_who_writes(program("train", "--resume", "run"), first.pid)
    first.kill()
    first.wait()
    steps = [record["step"] for record in records(tmp_path / "run")]
    assert steps == list(range(len(steps)))
    lines = (tmp_path / "run" / "sessions.jsonl").read_text().count("\n")
    second = start("train", "--resume", "run")
    sessions = tmp_path / "run" / "sessions.jsonl"
    wait_for(lambda: sessions.read_text().count("\n") == lines + 1, second)


@pytest.fixture
def held(short_run: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of the finished short run, for this process to hold."""
    return Path(shutil.copytree(short_run[0], tmp_path / "run"))


@pytest.mark.parametrize("more", [(), ("--processes", "2")])
def test_a_second_resume_changes_nothing(
    program: Program, held: Path, more: tuple[str, ...]
) -> None:
    before = content(held)
    with one_writer(held):
        assert_told_who_writes(program("train", "--resume", "run", *more), os.getpid())
    assert content(held) == before


def test_a_new_run_does_not_begin_where_another_one_does(program: Program, tmp_path: Path) -> None:
    with one_writer(tmp_path / "run"):
        assert_told_who_writes(program("train", *LONG_RUN, "--out", "run"), os.getpid())
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_an_evaluation_does_not_write_where_another_one_does(
    program: Program, tmp_path: Path
) -> None:
    words = ("eval", "ragen2-tiny", "--tasks", "2", "--out", "found")
    with one_writer(tmp_path / "found"):
        assert_told_who_writes(program(*words), os.getpid(), "found")
    assert program(*words).returncode == 0


def test_a_second_experiment_of_the_same_name_is_told_of_the_first(
    program: Program, tmp_path: Path
) -> None:
    with one_writer(tmp_path / "out" / "main_table"):
        done = program("experiment", "main_table", "--seeds", "1", "--out", "out")
        assert_told_who_writes(done, os.getpid(), "out/main_table")
