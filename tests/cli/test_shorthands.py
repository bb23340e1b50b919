"""--model, --env, --steps and --plugin: the same as settings, on every verb that has them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, assert_refused, settings
from ragen2.cli.shared import with_shorthands
from ragen2.config import apply_override, load_run
from ragen2.errors import ConfigError

Program = Callable[..., Done]
MINE = '''"""A bandit of one's own."""
import os
from pathlib import Path
from typing import Literal
from ragen2.envs import Bandit

with Path(os.environ["RAGEN2_STATE"], Path(__file__).stem).open("a") as file:
    file.write("x")

class NAME(Bandit):
    """Two arms."""
    kind: Literal["NAME"] = "NAME"
'''
TINY = settings(
    "rollout.prompts=2",
    "rollout.group_size=2",
    "rollout.max_tokens=8",
    "evaluation.tasks=2",
    "evaluation.probe_prompts=0",
    "diagnostics=[]",
)


def write_plugin(folder: Path, name: str) -> None:
    (folder / f"{name.lower()}.py").write_text(MINE.replace("NAME", name))


def test_flags_give_the_settings_that_they_stand_for(program: Program) -> None:
    flags = ("--model", "models/one", "--env", "Bandit", "--steps", "3")
    plain = settings("model.path=models/one", "env.kind=Bandit", "steps=3")
    assert program("train", "--dry-run", *flags).stdout == (
        program("train", "--dry-run", *plain).stdout
    )


def test_what_a_name_looks_like_does_not_change_what_it_is() -> None:
    for name in ("7", "true", "it's", 'a "b"', "[x]", "a=b", "nul\\l", "größe"):
        assert load_run(None, with_shorthands([], model=name)).model.path == name


def test_set_goes_over_them() -> None:
    changes = with_shorthands(["steps=5", "env.max_turns=2"], env="Bandit", steps=3)
    config = load_run(None, changes)
    assert (config.steps, config.env.kind, config.env.max_turns) == (5, "Bandit", 2)


def test_a_list_is_added_to() -> None:
    assert apply_override({"plugins": ["a"]}, 'plugins+=["b", "c"]') == {"plugins": ["a", "b", "c"]}
    assert apply_override({}, "logging.to+=wandb") == {"logging": {"to": ["wandb"]}}
    with pytest.raises(ConfigError, match=r"--set steps: \+= adds to a list, and it is 3; use ="):
        apply_override({"steps": 3}, "steps+=4")


def test_a_plugin_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    name = str(tmp_path / "mine.py")
    assert load_run(None, with_shorthands([], plugins=[name, name])).plugins == (name,)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--steps", "1", *TINY, "--out", "run"),
        ("preflight", "--steps", "1", *TINY),
        ("eval", "--model", "ragen2-tiny", "--tasks", "2", "--no-collapse"),
        ("eval", "ragen2-tiny", "--tasks", "2", "--no-collapse"),
        ("warmstart", "--model", "ragen2-tiny", "--steps", "1", *settings("batch=1")),
    ],
    ids=lambda words: words[0],
)
def test_a_plugin_on_the_command_line_is_the_users_own_word(
    program: Program, tmp_path: Path, trusts_nothing: Path, words: tuple[str, ...]
) -> None:
    write_plugin(tmp_path, "Mine")
    done = program(*words, "--env", "Mine", "--plugin", "mine.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert (trusts_nothing / "mine").read_text() == "x"


def test_one_of_the_file_still_needs_consent_beside_it(
    program: Program, tmp_path: Path, trusts_nothing: Path
) -> None:
    for name in ("Mine", "Theirs"):
        write_plugin(tmp_path, name)
    (tmp_path / "run.toml").write_text('steps = 1\nplugins = ["theirs.py"]\n')
    words = ("preflight", "run.toml", "--env", "Mine", "--plugin", "mine.py", *TINY)
    done = program(*words)
    line = (
        f"run file run.toml would import {tmp_path / 'theirs.py'}; look at it, and allow it with "
        "--trust-plugins"
    )
    assert_refused(done, tmp_path, line, left=["mine.py", "run.toml", "theirs.py"])
    assert list(trusts_nothing.glob("*s")) == []
    named = program(*words, "--plugin", "theirs.py")
    assert (named.returncode, named.stderr) == (0, "")


def test_a_run_with_a_plugin_of_ones_own_resumes_with_the_same_words(
    program: Program, tmp_path: Path, trusts_nothing: Path
) -> None:
    write_plugin(tmp_path, "Mine")
    own = ("--plugin", "mine.py")
    assert (
        program("train", "--steps", "1", *TINY, "--env", "Mine", *own, "--out", "run").returncode
        == 0
    )
    done = program("train", "--resume", "run", *own, "--steps", "2")
    assert (done.returncode, done.stderr) == (0, "")
    said = tomllib.loads((tmp_path / "run/run.toml").read_text())
    assert (said["plugins"], said["steps"]) == ([str(tmp_path / "mine.py")], 2)


@pytest.mark.parametrize("words", [(), ("ragen2-tiny", "--model", "ragen2-tiny")])
def test_eval_needs_one_model(program: Program, tmp_path: Path, words: tuple[str, ...]) -> None:
    line = "eval needs one model: name it once, as MODEL or with --model"
    assert_refused(program("eval", *words), tmp_path, line)


def test_probe_takes_another_environment(
    program: Program, short_run: tuple[Path, Done], tmp_path: Path
) -> None:
    few = ("--prompts", "2", "--group-size", "2")
    done = program("probe", short_run[0], "--env", "Bandit", *few, "--out", tmp_path / "probe")
    assert (done.returncode, done.stderr) == (0, "")
    assert '"env": "Bandit"' in (tmp_path / "probe/probe.json").read_text()
