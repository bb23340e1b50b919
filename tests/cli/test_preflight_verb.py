"""``ragen2 preflight`` as a user starts it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, assert_refused, settings

Program = Callable[..., Done]
SMALL = settings("rollout.prompts=3", "rollout.group_size=4")


def test_it_prints_an_advice_writes_json_and_leaves_nothing_else(program: Program, tmp_path: Path):
    done = program("preflight", *SMALL, "--json", "found.json")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["num_prompts"], found["group_size"]) == (3, 4)
    assert found["advice"]["line"] in done.stdout
    for reason in found["advice"]["reasons"]:
        assert reason.split()[0] in done.stdout
    assert done.stderr == ""


MISTAKES = {
    "unknown setting": (
        ("preflight", *settings("rollout.prompt=3")),
        "unknown setting rollout.prompt; did you mean 'prompts'?",
    ),
    "missing run file": (
        ("preflight", "nowhere.toml"),
        "run file nowhere.toml cannot be read: No such file or directory",
    ),
    "no folder for the result": (
        ("preflight", "--json", "nowhere/found.json"),
        "--json nowhere/found.json cannot be written: its folder does not exist",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(program: Program, tmp_path: Path, mistake: str):
    words, line = MISTAKES[mistake]
    assert_refused(program(*words), tmp_path, line)
