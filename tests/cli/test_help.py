"""Help: every verb has an example that works, and asking for it loads nothing heavy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from command_line import Done, start_python
from ragen2 import __version__
from ragen2.cli.app import app

Program = Callable[..., Done]


def leaves(program: typer.Typer, *before: str) -> Iterator[str]:
    """Every verb that does something, in the words a user types."""
    for command in program.registered_commands:
        yield " ".join([*before, str(command.name)])
    for group in program.registered_groups:
        assert group.typer_instance is not None
        yield from leaves(group.typer_instance, *before, str(group.name))


VERBS = sorted(leaves(app))
HEAVY = "sorted({'torch', 'transformers', 'tokenizers', 'safetensors'} & set(sys.modules))"


def example_of(text: str) -> list[str]:
    """The words after ``Example: ragen2`` in a help text, which may be wrapped."""
    flat = " ".join(text.replace("│", " ").split())
    found = re.search(r"Example: ragen2 (.*?) (?:Arguments|Options|╭)", flat)
    assert found is not None, text
    return shlex.split(found[1].replace("─", ""))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(program: Program, verb: str) -> None:
    done = program(*verb.split(), "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert example_of(done.stdout)[: len(verb.split())] == verb.split()


def test_help_names_every_verb(program: Program) -> None:
    done = program("--help")
    assert done.returncode == 0
    assert {"train", "eval", "warmstart", "pull", "envs"} <= {verb.split()[0] for verb in VERBS}
    assert {verb.split()[0] for verb in VERBS} <= set(done.stdout.split())


def test_the_example_of_train_is_a_valid_run(program: Program) -> None:
    words = example_of(program("train", "--help").stdout)
    done = program(*words, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", ["envs list", "envs play", "envs check"])
def test_the_examples_about_environments_run(program: Program, verb: str) -> None:
    words = example_of(program(*verb.split(), "--help").stdout)
    done = program(*words, given="quit\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_that_of_the_package(program: Program) -> None:
    done = program("--version")
    assert (done.returncode, done.stdout.strip()) == (0, __version__)


def test_import_brings_no_torch(tmp_path: Path) -> None:
    done = start_python(tmp_path, "-c", f"import ragen2, sys; print({HEAVY})")
    assert (done.returncode, done.stdout.strip()) == (0, "[]")


@pytest.mark.parametrize(
    "words", ["--help", "train --help", "train --dry-run", "envs list", "envs check Bandit"]
)
def test_help_and_everything_without_a_model_brings_no_torch(tmp_path: Path, words: str) -> None:
    code = (
        f"import sys; sys.argv = ['ragen2', *{words.split()}]\n"
        "from ragen2.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code\n"
        f"print({HEAVY})"
    )
    done = start_python(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
