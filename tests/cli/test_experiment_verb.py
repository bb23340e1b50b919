"""``ragen2 experiment``: the list, dry runs, mistakes, and a small grid really trained."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from command_line import Done, assert_refused
from ragen2.cli.app import app
from ragen2.experiments.grid import SCALES, experiment_names

Program = Callable[..., Done]

GRID = """
title = "Mine"
run = "frozen_lake_grpo"
seeds = 1

[settings]
steps = 1
diagnostics = [{ kind = "surface" }, { kind = "collapse" }]
rollout = { prompts = 2, group_size = 2, max_tokens = 16 }
evaluation = { tasks = 2, probe_prompts = 0 }

[grid]
"filter.mass" = [0.5, 1.0]
"""


def invoke(*words: str) -> str:
    found = CliRunner().invoke(app, ["experiment", *words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_the_list_has_every_experiment_with_its_question():
    told = invoke("--list")
    for name in experiment_names():
        assert re.search(rf"^{name} ", told, re.MULTILINE), name
    assert "Table 4" in told


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", experiment_names())
def test_a_dry_run_prices_every_cell(name, scale, tmp_path):
    told = invoke(name, "--scale", scale, "--dry-run", "--out", str(tmp_path / "out"))
    assert "every cell's settings are valid" in told
    assert "memory and time are computed, not measured" in told
    assert "unknown" not in told
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_the_papers_settings_tells_sizes_and_hours():
    told = invoke("main_table", "--scale", "full", "--dry-run")
    assert "120 cells, 360 runs, 0 models to make first" in told
    row = next(line for line in told.splitlines() if "qwen2.5-7b" in line)
    assert "7,615.5M" in row
    assert re.search(r"400 +8 x 16", row)
    assert "16 cells need more than the 139 GiB of one H200: train their run files with" in told


def test_seeds_and_settings_are_those_asked_for():
    told = invoke("level", "--seeds", "2", "--set", "steps=7", "--dry-run")
    assert "24 runs" in told
    rows = [line for line in told.splitlines() if line.startswith("algorithm=ppo")]
    assert {tuple(line.split()[4:6]) for line in rows} == {("2", "7")}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "which experiment? name one, or see them with: ragen2 experiment --list"),
        (["leval"], "leval is neither a grid file nor an experiment; did you mean 'level'?"),
        (["level", "--scale", "tinny"], "unknown scale 'tinny'; did you mean 'tiny'?"),
        (["none.toml"], "grid file none.toml does not exist; check the path"),
        (
            ["mine.toml", "--set", "stepps=3"],
            "filter.mass 0.5: unknown setting stepps; did you mean 'steps'?",
        ),
        (["other.toml"], "unknown analysis 'nonsense'; did you mean 'noise'?"),
        (
            ["mine.toml", "--scale", "full"],
            "the grid stands on the run file frozen_lake_grpo, so it has no scale; leave --scale out",
        ),
    ],
)
def test_a_mistake_is_told_in_a_line_and_nothing_starts(
    program: Program, tmp_path: Path, words: list[str], told: str
) -> None:
    (tmp_path / "mine.toml").write_text(GRID.replace("[0.5, 1.0]", "[0.5]"))
    (tmp_path / "other.toml").write_text(f'analysis = "nonsense"\n{GRID}')
    done = program("experiment", *words)
    assert_refused(done, tmp_path, told, left=["mine.toml", "other.toml"])


def test_a_grid_of_ones_own_is_trained_and_told_and_not_trained_again(
    program: Program, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(GRID)
    done = program("experiment", "mine.toml", "--jobs", "2", "--out", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "# Mine" in done.stdout
    assert "tables, commands and records in out/mine" in done.stdout
    data = json.loads((tmp_path / "out" / "mine" / "table.json").read_text())
    assert [(one["labels"], one["state"]) for one in data["cells"]] == [
        ({"filter.mass": "0.5"}, "done"),
        ({"filter.mass": "1"}, "done"),
    ]
    assert data["command"] == "ragen2 experiment mine.toml --jobs 2 --out out"
    started = (tmp_path / "out" / "started.jsonl").read_text()
    again = program("experiment", "mine.toml", "--jobs", "2", "--out", "out")
    assert again.returncode == 0
    assert (tmp_path / "out" / "started.jsonl").read_text() == started
    assert (
        data["claims"]
        == json.loads((tmp_path / "out" / "mine" / "table.json").read_text())["claims"]
    )


@pytest.mark.slow
def test_a_run_that_cannot_be_trained_is_listed_and_the_exit_code_is_one(
    program: Program, tmp_path: Path
) -> None:
    bad = GRID.replace('"filter.mass" = [0.5, 1.0]', '"model.path" = ["./nowhere", "ragen2-tiny"]')
    (tmp_path / "mine.toml").write_text(bad)
    done = program("experiment", "mine.toml", "--jobs", "2", "--out", "out")
    assert (done.returncode, done.stderr) == (1, "")
    assert "./nowhere seed 0 failed: " in done.stdout
    assert "1 finished, 1 failed" in (tmp_path / "out" / "mine" / "table.md").read_text()
