"""``--dry-run``: a run file that gives the same run again, with what differs or with everything."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, assert_refused, settings

Program = Callable[..., Done]


@pytest.mark.parametrize("full", [(), ("--full",)])
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("steps=7", "env.kind=Bandit", "filter.kind=keep_all", "algorithm.kl_coefficient=0.01"),
        ("learner.lr=3e-5", 'env.observation="grid"', "model.lora_rank=4", "seed=3"),
    ],
)
def test_what_it_prints_is_a_run_file_that_reproduces_itself(
    program: Program, tmp_path: Path, overrides: tuple[str, ...], full: tuple[str, ...]
) -> None:
    first = program("train", *settings(*overrides), "--dry-run", *full)
    assert (first.returncode, first.stderr) == (0, "")
    (tmp_path / "run.toml").write_text(first.stdout)
    second = program("train", "run.toml", "--dry-run", *full)
    assert (second.returncode, second.stdout) == (0, first.stdout)


def test_it_shows_what_differs_from_the_defaults_and_how_to_see_the_rest(program: Program) -> None:
    done = program("train", *settings("env.slip=0.1", "stops.empty_steps=3"), "--dry-run")
    task, count = done.stdout.splitlines()[:2]
    assert task == (
        "# FrozenLake, grpo, filter top_p, model ragen2-tiny: 30 steps of 8 prompts x 16 rollouts"
    )
    assert re.fullmatch(
        r"# 8 of \d{3} settings differ from their defaults; --full prints every one", count
    )
    assert tomllib.loads(done.stdout) == {
        "steps": 30,
        "env": {"kind": "FrozenLake", "slip": 0.1},
        "rollout": {"max_tokens": 64},
        "learner": {"lr": 1.5e-4, "minibatches": 4},
        "evaluation": {"every": 15},
        "stops": {"empty_steps": 3},
    }


def test_full_without_a_dry_run_is_refused(program: Program, tmp_path: Path) -> None:
    line = "--full goes with --dry-run; add it or leave --full out"
    assert_refused(program("train", "--full"), tmp_path, line)


def test_it_writes_nothing(program: Program, tmp_path: Path) -> None:
    program("train", "--dry-run", "--out", "run")
    assert not list(tmp_path.iterdir())


def test_full_shows_overrides_and_every_default(program: Program) -> None:
    done = program("train", *settings("steps=7", "rollout.window=5"), "--dry-run", "--full")
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
    assert program("train", short_run[0] / "run.toml", "--dry-run", "--full").stdout == stored
