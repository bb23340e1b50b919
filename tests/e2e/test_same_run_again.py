"""The same seed is the same run, also when it is killed three times on its way."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from command_line import Process, checkpoints, records, run_program, run_python, start_program
from ragen2.seeding import stream

LAST = "checkpoints/step_000008"
KILLED_WHILE_SAVING = """
import os, runpy, sys
real, count = os.fsync, 0
def fsync(handle):
    global count
    count += "/.partial-step_000004/" in os.readlink(f"/proc/self/fd/{handle}") + "/"
    if count == 5:
        os.kill(os.getpid(), 9)
    real(handle)
os.fsync = fsync
sys.argv = ["ragen2", "train", *sys.argv[1:]]
runpy.run_module("ragen2", run_name="__main__")
"""
"""The run, killed half-way through writing the checkpoint of step 4."""


def assert_same_run(run: Path, wanted: Path) -> None:
    """Equal records, rollouts, scores, weights, optimiser and trainer state, byte for byte."""
    assert records(run) == records(wanted)
    assert checkpoints(run) == checkpoints(wanted)
    names = sorted(path.name for path in (wanted / LAST).iterdir())
    assert "model.safetensors" in names
    assert "optimizer.pt" in names
    for name in names:
        assert (run / LAST / name).read_bytes() == (wanted / LAST / name).read_bytes(), name
    for folder in ("rollouts", "scores"):
        files = sorted(path.name for path in (wanted / folder).iterdir())
        assert len(files) >= 8
        assert sorted(path.name for path in (run / folder).iterdir()) == files
        for name in files:
            assert (run / folder / name).read_bytes() == (wanted / folder / name).read_bytes()


def test_two_runs_with_the_same_seed_are_the_same(
    whole_run: Path, run_settings: list[str], tmp_path: Path
) -> None:
    done = run_program(tmp_path, "train", *run_settings, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "run", whole_run)


def test_the_run_really_trained(whole_run: Path) -> None:
    steps = [record["metrics"].get("update/steps", 0.0) for record in records(whole_run)]
    assert sum(steps) >= 4
    assert (whole_run / LAST / "model.safetensors").read_bytes() != (
        whole_run / "checkpoints/step_000006/model.safetensors"
    ).read_bytes()


def step_seconds(run: Path) -> float:
    """How long a step of this run took, on average."""
    lines = (run / "steps.jsonl").read_text().splitlines()[1:]
    return sum(json.loads(line)["seconds"]["step"] for line in lines) / len(lines)


def kill_after(process: Process, lines: int, seconds: float) -> None:
    """Kill -9, ``seconds`` after the program has shown ``lines`` steps."""
    assert process.stdout is not None
    while lines:
        lines -= process.stdout.readline().startswith("step ")
        assert process.poll() is None, process.communicate()
    time.sleep(seconds)
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_run_killed_at_three_random_moments_ends_like_the_undisturbed_one(
    whole_run: Path, run_settings: list[str], tmp_path: Path
) -> None:
    moments = stream("three moments")
    pace = step_seconds(whole_run)
    start = ["train", *run_settings, "--out", "run"]
    for attempt in (start, ["train", "--resume", "run"], ["train", "--resume", "run"]):
        process = start_program(tmp_path, *attempt)
        kill_after(process, int(moments.integers(1, 3)), moments.uniform(0.0, 0.5) * pace)
        assert process.returncode == -signal.SIGKILL
    done = run_program(tmp_path, "train", "--resume", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert_same_run(tmp_path / "run", whole_run)


def test_a_run_killed_while_it_saves_ends_like_the_undisturbed_one(
    whole_run: Path, run_settings: list[str], tmp_path: Path
) -> None:
    done = run_python(tmp_path, "-c", KILLED_WHILE_SAVING, *run_settings, "--out", "run")
    assert done.returncode == -signal.SIGKILL
    assert checkpoints(tmp_path / "run") == [".partial-step_000004", "step_000002"]
    done = run_program(tmp_path, "train", "--resume", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert_same_run(tmp_path / "run", whole_run)
