"""``ragen2 train`` with several runs: really trained, failed, interrupted and gone on with."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import (
    Done,
    Process,
    assert_refused,
    checkpoints,
    environment,
    records,
    settings,
    wait_for,
)

Program = Callable[..., Done]
Start = Callable[..., Process]

SMALL = settings(
    "rollout.prompts=2", "rollout.group_size=2", "evaluation.tasks=2", "evaluation.probe_prompts=0"
)
NAME = "frozen_lake_tiny"


def test_a_job_is_the_run_it_would_be_alone_and_a_failed_one_is_listed(
    program: Program, tmp_path: Path, short_run: tuple[Path, Done]
) -> None:
    (tmp_path / "bad.toml").write_text('[model]\npath = "./nowhere"\n')
    file = short_run[0] / "run.toml"
    done = program("train", "bad.toml", file, "--jobs", "2", "--out", "out")
    assert (done.returncode, done.stderr) == (1, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "logs",
        "report.html",
        "run-seed0",
    ]
    lines = done.stdout.splitlines()
    assert lines[0] == "runs and logs in out"
    assert any(line.startswith("run-seed0  done  step 4/4") for line in lines)
    assert lines[-2] == "report out/report.html"
    assert lines[-1].startswith("bad-seed0 failed: ragen2: ")
    assert "nowhere" in lines[-1]
    assert lines[-1].endswith("(see out/logs/bad-seed0.log)")
    assert records(tmp_path / "out" / "run-seed0") == records(short_run[0])
    assert "<title>run-seed0" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_an_interrupt_saves_what_runs_and_the_same_command_goes_on(
    program: Program, start: Start, tmp_path: Path
) -> None:
    words = ["train", *SMALL, *settings("steps=6"), "--seeds", "2", "--out", "out"]
    process = start(*words)
    first, second = (tmp_path / "out" / f"{NAME}-seed{seed}" for seed in range(2))
    wait_for((first / "rollouts" / "step_000001.jsonl").exists, process)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")
    assert "finishing the step of every job, then saving" in out
    assert out.splitlines()[-1] == "stopped; go on with the same command and --out out"
    reached = records(first)[-1]["step"]
    assert 1 <= reached < 6
    assert checkpoints(first) == [f"step_{reached:06d}"]
    assert not second.exists()
    done = program(*words, "--jobs", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert [[one["step"] for one in records(run)] for run in (first, second)] == [[*range(7)]] * 2
    again = program(*words)
    assert again.returncode == 0
    assert "running" not in again.stdout


@pytest.mark.slow
def test_a_terminal_gets_one_live_table(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = ["train", *settings("model.path=./nowhere"), "--seeds", "2", "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ragen2", *words],
        cwd=tmp_path,
        env={**environment(), "TERM": "xterm"},
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    shown = b""
    while piece := read_terminal(ours):
        shown += piece
    _, errors = process.communicate()
    os.close(ours)
    assert (process.returncode, errors) == (2, b"")
    text = shown.decode()
    assert "1 running, 1 failed" in text or "1 queued, 1 running" in text
    assert "2 failed" in text
    assert "\x1b[" in text


def read_terminal(handle: int) -> bytes:
    """What was written; nothing once the other side is closed."""
    try:
        return os.read(handle, 65536)
    except OSError:
        return b""


# --- what is refused, and what is only shown -------------------------------------------------------


def test_a_dry_run_shows_every_job_and_writes_nothing(program: Program, tmp_path: Path) -> None:
    done = program("train", "--seeds", "2", "--out", "out", "--dry-run", "--full")
    assert (done.returncode, done.stderr) == (0, "")
    found = [line for line in done.stdout.splitlines() if line.startswith(("# ", "seed = "))]
    assert found == [f"# {NAME}-seed0", "seed = 0", f"# {NAME}-seed1", "seed = 1"]
    assert not list(tmp_path.iterdir())


def test_one_run_goes_on_with_resume_several_with_their_command(
    program: Program, tmp_path: Path
) -> None:
    line = "--resume goes on with one run; for several, repeat their command with its --out"
    assert_refused(program("train", "--resume", "run", "--jobs", "2"), tmp_path, line)


def test_a_number_of_jobs_below_one_is_refused(program: Program, tmp_path: Path) -> None:
    done = program("train", "--jobs", "0")
    assert done.returncode == 2
    assert "--jobs" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_settings_that_differ_from_those_of_the_folder_are_refused(
    program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "out" / f"{NAME}-seed0"
    run.mkdir(parents=True)
    (run / "run.toml").write_text(
        program("train", "--dry-run", "--full", *settings("steps=3")).stdout
    )
    line = (
        f"out/{NAME}-seed0 was trained with other settings: steps is 3 there and 4 now; "
        "choose another --out"
    )
    done = program("train", "--jobs", "1", "--out", "out", *settings("steps=4"))
    assert_refused(done, tmp_path, line, left=["out"])


def test_a_folder_that_cannot_be_made_is_refused(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = "file/out cannot be written: Not a directory; choose another with --out"
    done = program("train", "--jobs", "1", "--out", "file/out")
    assert_refused(done, tmp_path, line, left=["file"])
