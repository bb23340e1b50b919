"""Readers that leave, full devices, terminals that close and signals: nothing is lost, and no traceback."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import (
    TIMEOUT,
    Done,
    Process,
    checkpoints,
    environment,
    records,
    settings,
    wait_for,
)

Program = Callable[..., Done]
Start = Callable[..., Process]

SMALL = settings(
    "steps=3",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "evaluation.tasks=2",
    "evaluation.probe_traces=2",
    "checkpoints.every=50",
)
LONG = [*SMALL, *settings("steps=200")]
FULL = "No space left on device"


def run_into(folder: Path, out: int, *words: str) -> tuple[int, str]:
    """The exit code and standard error of a program whose standard output goes to ``out``."""
    done = subprocess.run(
        [sys.executable, "-m", "ragen2", *words],
        cwd=folder,
        env={name: value for name, value in environment().items() if name != "PYTHONUNBUFFERED"},
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return done.returncode, done.stderr


def is_at_step_one(run: Path) -> bool:
    """Whether something is trained, and so there will be something to save."""
    return (run / "rollouts" / "step_000001.jsonl").exists()


def broken_pipe() -> int:
    """A pipe that nobody reads."""
    theirs, ours = os.pipe()
    os.close(theirs)
    return ours


def closed_terminal() -> int:
    """A terminal whose window is closed."""
    window, ours = pty.openpty()
    os.close(window)
    return ours


def full_device() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.fixture
def run(short_run: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of the finished short run."""
    return Path(shutil.copytree(short_run[0], tmp_path / "run"))


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (broken_pipe, ""),
        (closed_terminal, "ragen2: standard output cannot be written: Input/output error\n"),
        (full_device, f"ragen2: standard output cannot be written: {FULL}\n"),
    ],
)
def test_a_run_whose_output_is_lost_trains_to_its_end(
    tmp_path: Path, output: Callable[[], int], told: str
) -> None:
    assert run_into(tmp_path, output(), "train", *SMALL, "--out", "run") == (0, told)
    assert [record["step"] for record in records(tmp_path / "run")] == [0, 1, 2, 3]
    assert checkpoints(tmp_path / "run") == ["step_000003"]
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_reader_that_leaves_in_the_middle_ends_nothing(start: Start, tmp_path: Path) -> None:
    process = start("train", *SMALL, "--out", "run")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait(TIMEOUT)) == ("", 0)
    assert checkpoints(tmp_path / "run") == ["step_000003"]


def test_a_sweep_whose_output_is_lost_trains_to_its_end(tmp_path: Path) -> None:
    words = ("train", *SMALL, "--seeds", "1", "--out", "out")
    assert run_into(tmp_path, broken_pipe(), *words) == (0, "")
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("output", "code", "told"),
    [
        (broken_pipe, 128 + signal.SIGPIPE, ""),
        (full_device, 2, f"ragen2: standard output cannot be written: {FULL}\n"),
    ],
)
@pytest.mark.parametrize(
    ("words", "written"),
    [
        (("--help",), ""),
        (("envs", "list"), ""),
        (("report", "run", "--out", "page.html"), "page.html"),
        (("audit", "run/rollouts", "--json", "found.json"), "found.json"),
        (("eval", "run", "--tasks", "2", "--json", "found.json"), "found.json"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_what_is_only_printed_is_missed_but_files_are_written(
    run: Path, words: tuple[str, ...], written: str, output: Callable[[], int], code: int, told: str
) -> None:
    assert run_into(run.parent, output(), *words) == (code, told)
    assert (run.parent / written).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_is_the_exit_code(
    start: Start, program: Program, tmp_path: Path, number: signal.Signals
) -> None:
    process = start("train", *LONG, "--out", "run")
    wait_for(lambda: is_at_step_one(tmp_path / "run"), process)
    process.send_signal(number)
    out, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (128 + number, "")
    reached = records(tmp_path / "run")[-1]["step"]
    assert checkpoints(tmp_path / "run") == [f"step_{reached:06d}"]
    assert out.splitlines()[-1] == (
        f"stopped after step {reached}; go on with: ragen2 train --resume run"
    )
    assert (tmp_path / "run" / "report.html").is_file()
    done = program("train", "--resume", "run", *settings(f"steps={reached + 1}"))
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["step"] for one in records(tmp_path / "run")] == list(range(reached + 2))


def test_a_hang_up_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As ``nohup`` starts a program."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ragen2", "train", *SMALL, "--out", "run"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # noqa: PLW1509 - a C call, no locks
    )
    wait_for((tmp_path / "run" / "steps.jsonl").exists, process)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (0, "")
    assert records(tmp_path / "run")[-1]["step"] == 3


def test_a_signal_ends_what_is_no_training_without_a_traceback(
    start: Start, tmp_path: Path
) -> None:
    process = start("eval", "ragen2-tiny", "--tasks", "5000", "--out", "found")
    wait_for((tmp_path / "found" / "run.toml").exists, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in errors


SWALLOWING = """
import os, time
from ragen2.cli.outlasting import outlasting
with outlasting():
    try:
        os.write(1, b"waiting\\n")
        time.sleep(60)
    except KeyboardInterrupt:
        os.write(1, b"swallowed\\n")
    time.sleep(60)
"""


def test_a_second_signal_ends_code_that_swallowed_the_first() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SWALLOWING], env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "swallowed\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == -signal.SIGTERM


CLOSED = """
import os, runpy, sys
for handle in (0, 1, 2):
    os.close(handle)
sys.stdin = sys.stdout = sys.stderr = None
sys.argv = ["ragen2", *sys.argv[1:]]
runpy.run_module("ragen2", run_name="__main__")
"""
"""As ``ragen2 ... <&- >&- 2>&-`` starts it."""


def test_closed_streams_do_not_lend_their_numbers_to_files_of_the_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, "train", *SMALL, "--out", "run"],
        cwd=tmp_path,
        env=environment(),
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0
    assert [record["step"] for record in records(tmp_path / "run")] == [0, 1, 2, 3]


def test_a_sweep_that_is_ended_is_143_with_its_runs_saved(start: Start, tmp_path: Path) -> None:
    process = start("train", *LONG, "--seeds", "1", "--out", "out")
    name = "frozen_lake_tiny-seed0"
    wait_for(lambda: is_at_step_one(tmp_path / "out" / name), process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"{name}  stopped" in out
    assert len(checkpoints(tmp_path / "out" / name)) == 1


def test_every_process_of_a_sweep_may_get_the_signal(start: Start, tmp_path: Path) -> None:
    """As a service manager sends it; the runs then get it twice."""
    process = start("train", *LONG, "--seeds", "1", "--out", "out")
    folder = tmp_path / "out" / "frozen_lake_tiny-seed0"
    wait_for(lambda: is_at_step_one(folder), process)
    holder = (folder / ".lock").read_text().split()[1]
    os.kill(int(holder), signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + signal.SIGTERM
    assert len(checkpoints(folder)) == 1


EARLY = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "ragen2.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
sys.argv = ["ragen2", "--help"]
from ragen2.__main__ import main
main()
"""


def test_a_ctrl_c_while_the_program_is_imported_is_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
