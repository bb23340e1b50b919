"""``ragen2 train``: what a finished run says and leaves behind."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from command_line import Done, checkpoints, environment, records, settings

Program = Callable[..., Done]


def test_a_run_leaves_what_the_contract_names(short_run: tuple[Path, Done]) -> None:
    run, done = short_run
    assert done.stderr == ""
    assert sorted(path.name for path in run.iterdir()) == [
        ".lock",
        "checkpoints",
        "report.html",
        "rollouts",
        "run.toml",
        "scores",
        "sessions.jsonl",
        "steps.jsonl",
    ]
    assert checkpoints(run) == ["step_000002", "step_000004"]
    assert [record["step"] for record in records(run)] == [0, 1, 2, 3, 4]
    assert sorted(path.name for path in (run / "rollouts").iterdir()) == [
        f"step_{step:06d}.jsonl" for step in (1, 2, 3, 4)
    ]


def test_a_saved_rollout_holds_what_an_audit_needs(short_run: tuple[Path, Done]) -> None:
    lines = (short_run[0] / "rollouts" / "step_000001.jsonl").read_text().splitlines()
    assert len(lines) == 4
    for line in lines:
        one = json.loads(line)
        assert {"env", "seed", "luck", "step", "messages", "reward", "solved", "stop"} <= set(one)
        for turn in one["turns"]:
            assert len(turn["ids"]) == len(turn["logprobs"]) > 0
            assert {"reasoning", "actions", "valid", "observation", "reward"} <= set(turn)


def test_without_a_terminal_every_step_is_one_plain_line(short_run: tuple[Path, Done]) -> None:
    lines = [line for line in short_run[1].stdout.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == [f"{step}/4" for step in range(5)]
    assert "\x1b" not in short_run[1].stdout


def test_a_run_ends_with_a_table_of_before_and_after(short_run: tuple[Path, Done]) -> None:
    assert "before and after" in short_run[1].stdout
    assert "held-out success" in short_run[1].stdout
    assert "report run/report.html" in short_run[1].stdout


def test_the_report_is_one_page_that_loads_nothing(short_run: tuple[Path, Done]) -> None:
    page = (short_run[0] / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<script src" not in page
    assert "<link" not in page


def test_resuming_a_finished_run_says_so_and_changes_no_record(
    program: Program, short_run: tuple[Path, Done], tmp_path: Path
) -> None:
    run = copy_of(short_run, tmp_path)
    done = program("train", "--resume", "run")
    assert done.returncode == 0
    assert "run is finished: 4 of 4 steps are done" in done.stdout
    assert records(run) == records(short_run[0])


def copy_of(short_run: tuple[Path, Done], folder: Path) -> Path:
    """The short run as ``folder/run``."""
    subprocess.run(["cp", "-r", short_run[0], folder / "run"], check=True)
    return folder / "run"


def test_an_empty_directory_is_used_and_a_terminal_gets_a_live_table(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    small = settings(
        "steps=2",
        "rollout.prompts=2",
        "rollout.group_size=2",
        "evaluation.tasks=2",
        "evaluation.probe_traces=2",
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ragen2", "train", *small, "--out", "run"],
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
    assert (process.returncode, errors) == (0, b"")
    text = shown.decode()
    assert "2/2" in text
    assert "retrieval" in text
    assert "\x1b[" in text
    assert [record["step"] for record in records(tmp_path / "run")] == [0, 1, 2]


def read_terminal(handle: int) -> bytes:
    """What was written; nothing once the other side is closed."""
    try:
        return os.read(handle, 65536)
    except OSError:
        return b""
