"""``ragen2 warmstart`` as a user starts it."""

from __future__ import annotations

import re
import shlex
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from command_line import Done, Process, assert_refused, settings
from ragen2.config import dump_config
from ragen2.trainer.card import warmstart_card
from ragen2.trainer.warmstart import WarmstartConfig, default_recipe

Program = Callable[..., Done]
FEW = settings("batch=2", "env.max_turns=1")


def test_the_folder_opens_as_a_model_and_carries_a_card(program: Program, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("steps = 2\nbatch = 2\n")
    done = program("warmstart", "recipe.toml", "--out", "warm")
    assert (done.returncode, done.stderr) == (0, "")
    AutoModelForCausalLM.from_pretrained(tmp_path / "warm")
    config = WarmstartConfig(steps=2, batch=2)
    said = tomllib.loads((tmp_path / "warm/warmstart.toml").read_text())
    assert said == tomllib.loads(dump_config(config))
    (loss,) = re.findall(r"step 2/2  loss ([\d.]+) nats per token", done.stdout)
    assert (tmp_path / "warm/README.md").read_text() == warmstart_card(config, float(loss))
    assert not (tmp_path / "warm.unfinished").exists()


def test_flags_are_settings_and_a_model_that_is_named_is_not_made_anew(
    program: Program, tmp_path: Path
) -> None:
    words = ("--model", "ragen2-tiny", "--env", "Bandit", "--steps", "1", *FEW)
    done = program("warmstart", *words, "--out", "warm")
    assert (done.returncode, done.stderr) == (0, "")
    said = tomllib.loads((tmp_path / "warm/warmstart.toml").read_text())
    assert (said["model"]["path"], said["env"]["kind"], said["steps"]) == (
        "ragen2-tiny",
        "Bandit",
        1,
    )
    assert "new" not in said
    made = program("warmstart", "ragen2_tiny", *words, "--out", "other")
    line = f"{default_recipe()} makes a new model by [new]; leave that or --model out"
    assert_refused(made, tmp_path, line, left=["warm"])


MINE = '''"""A bandit of one's own."""
from typing import Literal
from ragen2.envs import Bandit

class Mine(Bandit):
    """Two arms."""
    kind: Literal["Mine"] = "Mine"
'''


def test_the_eval_that_it_suggests_works_for_a_plugin(program: Program, tmp_path: Path) -> None:
    (tmp_path / "my envs").mkdir()
    (tmp_path / "my envs" / "mine.py").write_text(MINE)
    words = ("--model", "ragen2-tiny", "--env", "Mine", "--plugin", "my envs/mine.py")
    own = settings("batch=2", "env.risky_chance=0.5", "rollout.thinking=false")
    done = program("warmstart", *words, "--steps", "1", *own, "--out", "warm")
    assert (done.returncode, done.stderr) == (0, "")
    line = done.stdout.splitlines()[-1].partition("try it with: ragen2 ")[2]
    assert "--set env.risky_chance=0.5 --set rollout.thinking=false" in line
    tried = program(*shlex.split(line), "--tasks", "2")
    assert (tried.returncode, tried.stderr) == (0, "")
    assert "warm on Mine" in tried.stdout


WORDS = ("warmstart", "--model", "ragen2-tiny", "--steps", "60", *FEW, "--out")


@pytest.fixture
def interrupted(start: Callable[..., Process], tmp_path: Path) -> int:
    """A warm start into ``warm`` that was asked to end early; the step it ended after."""
    process = start(*WORDS, "warm")
    assert process.stdout is not None
    assert next(process.stdout).startswith("step 1/60  loss")
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")
    (step,) = re.findall(
        r"stopped after step (\d+); the same command goes on from warm.unfinished\n$", told
    )
    assert not (tmp_path / "warm").exists()
    return int(step)


def test_the_same_command_goes_on_after_an_interruption_and_nothing_is_lost(
    program: Program, interrupted: int, tmp_path: Path
) -> None:
    other = program(*WORDS, "warm", *settings("quality=0.9"))
    line = (
        "warm.unfinished was begun with quality = 0.5, not 0.9; repeat its command, remove it, or "
        "choose another folder with --out"
    )
    assert_refused(other, tmp_path, line, left=["warm.unfinished"])
    assert program(*WORDS, "whole").returncode == 0
    done = program(*WORDS, "warm")
    assert (done.returncode, done.stderr) == (0, "")
    first = f"going on after step {interrupted} of 60, from warm.unfinished"
    assert done.stdout.splitlines()[0] == first
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("warm", "whole")]
    assert weights[0] == weights[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["warm", "whole"]
