"""What has no end, or far too many digits, prompts or levels: refused in one line, not waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, assert_refused, settings

Program = Callable[..., Done]

TOO_LONG = "an integer needs more than 64 bits"
TOO_DEEP = "it nests more than 50 deep"

TEXTS = {
    "more digits than Python reads": (f"steps = {'9' * 5000}", TOO_LONG),
    "more digits than TOML promises": (f"steps = {2**63}", TOO_LONG),
    "digits inside a list": (f"probe.edges = [0, {'9' * 4000}]", TOO_LONG),
    "lists in lists": (f"steps = {'[' * 5000}{']' * 5000}", TOO_DEEP),
    "lists that Python can still read": (f"steps = {'[' * 200}{']' * 200}", TOO_DEEP),
    "tables in tables": (f"steps = {'{a=' * 3000}1{'}' * 3000}", TOO_DEEP),
    "tables by their names": (f"{'.'.join('a' * 3000)} = 1", TOO_DEEP),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_run_file_beyond_bounds(program: Program, tmp_path: Path, name: str) -> None:
    text, told = TEXTS[name]
    (tmp_path / "run.toml").write_text(text)
    line = f"run file run.toml is not valid TOML: {told}"
    assert_refused(program("train", "run.toml"), tmp_path, line, left=["run.toml"])


@pytest.mark.parametrize("name", TEXTS)
def test_a_setting_beyond_bounds(program: Program, tmp_path: Path, name: str) -> None:
    text, told = TEXTS[name]
    path, _, value = text.partition(" = ")
    line = f"--set {path[:200]}: {told}"
    assert_refused(program("train", *settings(f"{path}={value}")), tmp_path, line)


def test_a_long_wrong_value_is_shown_in_part(program: Program, tmp_path: Path) -> None:
    line = (
        "steps must be a valid integer, unable to parse string as an integer, got "
        f"'{'many' * 49}man..."
    )
    assert_refused(program("train", *settings(f"steps={'many' * 1000}")), tmp_path, line)


def test_a_run_file_that_has_no_end(program: Program, tmp_path: Path) -> None:
    line = "run file /dev/zero cannot be read: it is a device, not a file"
    assert_refused(program("train", "/dev/zero"), tmp_path, line)


@pytest.mark.parametrize("verb", ["train", "experiment", "warmstart"])
def test_a_run_file_that_nobody_writes_to(program: Program, tmp_path: Path, verb: str) -> None:
    os.mkfifo(tmp_path / "run.toml")
    done = program(verb, "run.toml")
    (line,) = done.stderr.splitlines()
    assert line.endswith("run.toml cannot be read: it is a named pipe, not a file")
    assert done.returncode == 2


def test_settings_of_a_run_that_nobody_writes_to(program: Program, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "run.toml")
    for verb in (("train", "--resume"), ("report",), ("eval",)):
        done = program(*verb, "run")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert "(no run.toml in it)" in done.stderr or "no run.toml)" in done.stderr


def test_a_run_file_that_is_too_large(program: Program, tmp_path: Path) -> None:
    with (tmp_path / "run.toml").open("wb") as file:
        file.truncate(2**40)
    line = "run file run.toml cannot be read: it holds more than 1 MB"
    assert_refused(program("train", "run.toml"), tmp_path, line, left=["run.toml"])


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("rollout.prompts=1000000000000", "rollout.prompts must be less than or equal to 100000"),
        ("rollout.group_size=1000000000000", "rollout.group_size must be less than or equal to"),
        ("rollout.max_tokens=1000000000000", "rollout.max_tokens must be less than or equal to"),
        ("model.lora_rank=9999999", "model.lora_rank must be less than or equal to 4096"),
        ("evaluation.probe_traces=1000000000000", "evaluation.probe_traces must be less than or"),
        ("filter.noise_replays=1000000000000", "filter.noise_replays must be less than or equal"),
        ("learner.minibatches=1000000000000", "learner.minibatches must be less than or equal"),
        ("rollout.resample_rounds=10000", "rollout.resample_rounds must be less than or equal to"),
        ("learner.lr=inf", "learner.lr must be a finite number"),
        ("warning.timeout=inf", "warning.timeout must be a finite number"),
    ],
)
def test_a_setting_that_no_machine_can_carry_out(
    program: Program, tmp_path: Path, setting: str, line: str
) -> None:
    done = program("train", *settings(setting))
    assert done.returncode == 2
    assert done.stderr.startswith(f"ragen2: {line}")
    assert done.stderr.endswith(f", got {setting.partition('=')[2]}\n")
    assert not list(tmp_path.iterdir())


def test_more_episodes_than_memory_can_hold(program: Program, tmp_path: Path) -> None:
    line = (
        "rollout: prompts x group_size must be at most 1,000,000 episodes per step, got "
        "99,999 x 99,999"
    )
    both = settings("rollout.prompts=99999", "rollout.group_size=99999")
    assert_refused(program("train", *both), tmp_path, line)


GRIDS = {
    'seeds = 100000000\n[grid]\n"filter.mass" = [0.5]': "seeds must be less than or equal to 1000",
    '[[block]]\nseeds = [-1]\n[block.grid]\n"filter.mass" = [0.5]': "greater than or equal to 0",
    '[settings]\nmodel = 5\n[grid]\n"filter.mass" = [0.5]': "model must be a table of settings",
    '[grid]\n"model.path" = ["warm:{"]': "model.path warm:{ names no warm start",
    '[grid]\n"model.path" = ["warm:{0}"]': "model.path warm:{0} names no warm start",
    "[grid]\n"
    + "".join(
        f'"env.n{one}" = {[*range(20)]}\n' for one in range(5)
    ): "the lists make 3,200,000 cells",
}


@pytest.mark.parametrize("grid", GRIDS)
def test_a_grid_that_cannot_be(program: Program, tmp_path: Path, grid: str) -> None:
    (tmp_path / "grid.toml").write_text(f"{grid}\n")
    done = program("experiment", "grid.toml", "--dry-run")
    assert done.returncode == 2
    assert GRIDS[grid] in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_more_seeds_than_anyone_trains(program: Program, tmp_path: Path) -> None:
    done = program("train", "--seeds", "1000000000", "--dry-run")
    assert done.returncode == 2
    assert "--seeds must be less than or equal to 1000" in done.stderr


def test_json_into_a_folder_is_one_line(program: Program, tmp_path: Path) -> None:
    few = settings("env.max_turns=1", "evaluation.probe_prompts=0")
    done = program("eval", "ragen2-tiny", "--tasks", "1", *few, "--json", ".")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "ragen2: --json . cannot be written: Is a directory"
