"""Interrupts, full disks and damaged checkpoints: told in one line, and the run goes on."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, Process, checkpoints, records, run_python, settings, wait_for

Program = Callable[..., Done]
Start = Callable[..., Process]

SLOW_IMPORT = '''"""A plug-in that takes its time to load."""
import pathlib, time
pathlib.Path("loading").touch()
time.sleep(60)
'''
SLOW_PLAY = '''"""A bandit that thinks for a minute before it pays."""
import pathlib, time
from typing import Literal
from ragen2.envs import Bandit

class SlowBandit(Bandit):
    """Waits."""
    kind: Literal["SlowBandit"] = "SlowBandit"
    def start(self, seed, luck):
        pathlib.Path("playing").touch()
        time.sleep(60)
        return super().start(seed, luck)
'''
FULL_DISK = """
import errno, os, runpy, sys
real = os.fsync
def fsync(handle):
    if "/checkpoints/" in os.readlink(f"/proc/self/fd/{handle}"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    real(handle)
os.fsync = fsync
sys.argv = ["ragen2", "train", "--resume", "run"]
runpy.run_module("ragen2", run_name="__main__")
"""
"""The run, on a disk that has no room for checkpoints."""
SMALL_FILES = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
sys.argv = ["ragen2", "train", "--resume", "run"]
runpy.run_module("ragen2", run_name="__main__")
"""
"""The run, where no file may be larger than a megabyte, as the weights are."""


@pytest.fixture
def run(short_run: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of the finished short run."""
    return Path(shutil.copytree(short_run[0], tmp_path / "run"))


@pytest.fixture
def half_run(run: Path) -> Path:
    """The same as it was after its first checkpoint."""
    shutil.rmtree(run / "checkpoints" / "step_000004")
    return run


def damage(checkpoint: Path) -> None:
    """Change one byte of its weights."""
    weights = checkpoint / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)


def test_a_damaged_checkpoint_is_named_and_the_one_before_gives_the_same_end(
    program: Program, run: Path, short_run: tuple[Path, Done]
) -> None:
    damage(run / "checkpoints" / "step_000004")
    done = program("train", "--resume", "run")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert "checkpoint step_000004 is damaged (model.safetensors has changed)" in line
    assert "trying the one before" in line
    assert records(run) == records(short_run[0])
    assert checkpoints(run) == ["step_000002", "step_000004"]


def test_a_run_with_no_intact_checkpoint_is_refused_and_left_alone(
    program: Program, run: Path, short_run: tuple[Path, Done]
) -> None:
    for name in checkpoints(run):
        damage(run / "checkpoints" / name)
    done = program("train", "--resume", "run")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "ragen2: every checkpoint of run is damaged; to start again from step 1, remove "
        "run/checkpoints and resume"
    )
    assert records(run) == records(short_run[0])


def refusal(reason: str) -> str:
    """What a run says when its checkpoint after step 4 finds no room."""
    return (
        f"ragen2: checkpoint of step 4 could not be saved: {reason}; mend that and "
        "continue with --resume run, which goes on from the one before\n"
    )


def test_weights_that_find_no_room_are_told_in_one_line(half_run: Path, tmp_path: Path) -> None:
    done = run_python(tmp_path, "-c", SMALL_FILES)
    reason = "Error while serializing: I/O error: File too large (os error 27)"
    assert (done.returncode, done.stderr) == (2, refusal(reason))
    assert checkpoints(half_run) == ["step_000002"]


def test_a_run_that_met_a_full_disk_lost_nothing_and_goes_on_to_the_same_end(
    program: Program, half_run: Path, tmp_path: Path, short_run: tuple[Path, Done]
) -> None:
    done = run_python(tmp_path, "-c", FULL_DISK)
    assert (done.returncode, done.stderr) == (2, refusal("No space left on device"))
    assert checkpoints(half_run) == ["step_000002"]
    done = program("train", "--resume", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert records(half_run) == records(short_run[0])


def test_an_interrupted_run_saves_exits_130_and_goes_on(
    program: Program, start: Start, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    small = settings(
        "steps=8",
        "rollout.prompts=2",
        "rollout.group_size=2",
        "evaluation.tasks=2",
        "evaluation.probe_traces=2",
    )
    process = start("train", *small, "--out", "run")
    wait_for((run / "rollouts" / "step_000001.jsonl").exists, process)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")
    reached = records(run)[-1]["step"]
    assert 1 <= reached < 8
    assert "finishing this step, then saving" in out
    assert out.splitlines()[-1] == (
        f"stopped after step {reached}; go on with: ragen2 train --resume run"
    )
    assert checkpoints(run) == [f"step_{reached:06d}"]
    done = program("train", "--resume", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert [record["step"] for record in records(run)] == list(range(9))


def test_an_interrupt_before_there_is_a_run_leaves_nothing(start: Start, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_IMPORT)
    process = start("train", *settings('plugins=["slow.py"]'))
    wait_for((tmp_path / "loading").exists, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not (tmp_path / "runs").exists()


def test_a_second_interrupt_stops_at_once(start: Start, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_PLAY)
    process = start(
        "train", *settings('plugins=["slow.py"]', "env.kind=SlowBandit"), "--out", "run"
    )
    wait_for((tmp_path / "playing").exists, process)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    while "press Ctrl-C again" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert (tmp_path / "run" / "run.toml").is_file()
