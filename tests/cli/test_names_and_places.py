"""Names that no text can hold, places that cannot be written, output that knows ASCII alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import (
    Done,
    assert_refused,
    checkpoints,
    environment,
    records,
    settings,
    start_python,
)

Program = Callable[..., Done]

READ_ONLY = 'mount --bind . . && mount -o remount,ro,bind . && cd "$PWD" && exec "$@"'
"""A shell's words that run a program where nothing can be written."""


@pytest.fixture
def run(short_run: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of the finished short run."""
    return Path(shutil.copytree(short_run[0], tmp_path / "run"))


@pytest.mark.parametrize("verb", [("train", "--out"), ("report",), ("audit",), ("eval",)])
def test_a_name_that_is_no_text(tmp_path: Path, verb: tuple[str, ...]) -> None:
    done = start_python(tmp_path, "-m", "ragen2", *verb, "a\udcff")
    assert_refused(done, tmp_path, r"b'a\xff' is not text in utf-8; rename it")


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "~nobody-of-that-name/model"),
        ("train", "--set", "model.path=~nobody-of-that-name/model"),
        ("train", "--set", 'env={kind="Sokoban", levels="~nobody-of-that-name"}'),
    ],
)
def test_a_home_of_nobody(program: Program, words: tuple[str, ...]) -> None:
    done = program(*words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "~nobody-of-that-name" in done.stderr


@pytest.mark.parametrize(
    "verb",
    [
        ("train", "--out"),
        ("train", "--resume"),
        ("train",),
        ("report",),
        ("audit",),
        ("eval",),
        ("eval", "ragen2-tiny", "--tasks", "1", "--json"),
        ("warmstart", "--out"),
        ("envs", "list", "--plugin"),
    ],
)
def test_a_name_that_is_too_long(program: Program, tmp_path: Path, verb: tuple[str, ...]) -> None:
    done = program(*verb, f"{'a' * 300}.py")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "a" * 300 in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", "r?n"), ("latin-1", "r\N{LATIN SMALL LETTER U WITH DIAERESIS}n")],
)
def test_output_that_cannot_hold_a_character_replaces_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    run.rename(tmp_path / "r\N{LATIN SMALL LETTER U WITH DIAERESIS}n")
    for verb in (("report",), ("train", "--resume")):
        done = subprocess.run(
            [sys.executable, "-m", "ragen2", *verb, "r\N{LATIN SMALL LETTER U WITH DIAERESIS}n"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            encoding=encoding,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert shown in done.stdout


def can_mount() -> bool:
    """Whether this user may make folders read-only for a program of its own."""
    if shutil.which("unshare") is None:
        return False
    words = ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", "true"]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no user namespaces here")
@pytest.mark.parametrize(
    "verb",
    [
        ("report", "run"),
        ("train", "--resume", "run"),
        ("train", "--out", "new", *settings("steps=1")),
        ("audit", "run", "--out", "new"),
        ("experiment", "rewards", "--out", "new"),
    ],
)
def test_a_place_that_cannot_be_written(
    run: Path, tmp_path: Path, short_run: tuple[Path, Done], verb: tuple[str, ...]
) -> None:
    program = [sys.executable, "-m", "ragen2", *verb]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", *program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("ragen2: ")
    assert "Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr
    assert records(run) == records(short_run[0])


def test_names_that_are_no_steps_are_left_alone(
    program: Program, run: Path, short_run: tuple[Path, Done]
) -> None:
    shutil.rmtree(run / "checkpoints" / "step_000004")
    (run / "checkpoints" / "step_abc").mkdir()
    foreign = [run / "rollouts" / "step_old.jsonl", run / "scores" / "step_-1.json.gz"]
    for file in foreign:
        file.write_text("mine")
    for verb in (("report",), ("eval", "--tasks", "1"), ("train", "--resume"), ("report",)):
        done = program(*verb, "run")
        assert (done.returncode, done.stderr) == (0, "")
    assert records(run) == records(short_run[0])
    assert checkpoints(run) == ["step_000002", "step_000004", "step_abc"]
    assert [file.read_text() for file in foreign] == ["mine", "mine"]


def test_a_run_without_records_is_one_line_and_left_alone(program: Program, run: Path) -> None:
    (run / "steps.jsonl").unlink()
    done = program("train", "--resume", "run")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ragen2: the records of run reach none of its")
    assert checkpoints(run) == ["step_000002", "step_000004"]
    assert program("report", "run").returncode == 0
