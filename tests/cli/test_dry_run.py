"""``--dry-run``: the whole run as a file that gives the same run again."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, settings

Program = Callable[..., Done]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("steps=7", "env.kind=Bandit", "filter.kind=keep_all", "algorithm.kl_coefficient=0.01"),
        ("learner.lr=3e-5", 'env.observation="grid"', "model.lora_rank=4", "seed=3"),
    ],
)
def test_what_it_prints_is_a_run_file_that_reproduces_itself(
    program: Program, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    first = program("train", *settings(*overrides), "--dry-run")
    assert (first.returncode, first.stderr) == (0, "")
    (tmp_path / "run.toml").write_text(first.stdout)
    second = program("train", "run.toml", "--dry-run")
    assert (second.returncode, second.stdout) == (0, first.stdout)


def test_it_writes_nothing(program: Program, tmp_path: Path) -> None:
    program("train", "--dry-run", "--out", "run")
    assert not list(tmp_path.iterdir())


def test_it_shows_overrides_and_every_default(program: Program) -> None:
    done = program("train", *settings("steps=7", "rollout.window=5"), "--dry-run")
    found = tomllib.loads(done.stdout)
    assert (found["steps"], found["rollout"]["window"]) == (7, 5)
    assert found["env"]["kind"] == "FrozenLake"
    assert found["algorithm"]["clip_low"] == 0.2
    kinds = [table["kind"] for table in found["diagnostics"]]
    expected = ["surface", "actions", "reward", "triage", "collapse", "collapse", "flow", "vision"]
    assert kinds == expected
    assert found["stops"]["empty_steps"] == 5


def test_a_run_keeps_the_file_that_reproduces_it(
    program: Program, short_run: tuple[Path, Done]
) -> None:
    stored = (short_run[0] / "run.toml").read_text()
    assert program("train", short_run[0] / "run.toml", "--dry-run").stdout == stored
