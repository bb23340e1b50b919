"""Sharing a GPU: NVIDIA's daemon is started, found and ended as it should be, by a stand-in for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ragen2.trainer.jobs import mps
from ragen2.trainer.jobs.mps import CONTROL, has_gpu, shared_gpu, why_no_cuda

DAEMON = """#!/bin/sh
# Alive while there is a file called control in its folder, as the real one is with its pipe.
pipe="${CUDA_MPS_PIPE_DIRECTORY:-$HOME/default}"
if [ "$1" = "-d" ]; then
  echo "start $pipe $CUDA_MPS_LOG_DIRECTORY" >> "$HOME/calls"
  [ -e "$HOME/broken" ] && echo "An instance of this daemon" && echo "cannot be run here" && exit 1
  touch "$pipe/control"
  sleep 300 >/dev/null 2>&1 &
  echo $! > "$HOME/sleeper"
  exit 0
fi
read -r line
echo "$line $pipe" >> "$HOME/calls"
[ -e "$pipe/control" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
[ "$line" = quit ] && rm "$pipe/control" && kill "$(cat "$HOME/sleeper")"
exit 0
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the stand-in, which is first on the PATH."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / CONTROL
    program.write_text(DAEMON)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return tmp_path


def calls(home: Path) -> list[list[str]]:
    return [line.split() for line in (home / "calls").read_text().splitlines()]


def fine(variables: Mapping[str, str]) -> str:
    """A process with these variables can open the GPU."""
    assert set(variables) == {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}
    assert all(Path(path).is_dir() for path in variables.values())
    return ""


def test_a_daemon_of_our_own_is_started_for_the_block_and_ended_after_it(home: Path) -> None:
    with shared_gpu(fine) as sharing:
        pipe = Path(sharing.variables["CUDA_MPS_PIPE_DIRECTORY"])
        log = sharing.variables["CUDA_MPS_LOG_DIRECTORY"]
        assert (sharing.is_mps, sharing.note) == (True, "jobs share the GPU through NVIDIA MPS")
        assert (pipe / "control").exists()
    assert calls(home) == [
        ["get_server_list", f"{home}/default"],
        ["start", str(pipe), log],
        ["quit", str(pipe)],
    ]
    assert not pipe.parent.exists()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_it_is_ended_when_the_block_fails(home: Path) -> None:
    with pytest.raises(ZeroDivisionError), shared_gpu(fine) as sharing:
        1 / len(sharing.note[:0])
    assert [call[0] for call in calls(home)] == ["get_server_list", "start", "quit"]


def test_a_daemon_that_runs_already_is_used_and_left(home: Path) -> None:
    (home / "default").mkdir()
    (home / "default" / "control").touch()
    with shared_gpu(fine) as sharing:
        assert (sharing.is_mps, dict(sharing.variables)) == (True, {})
        assert "runs already" in sharing.note
    assert [call[0] for call in calls(home)] == ["get_server_list"]


def test_a_daemon_that_cannot_start_is_told_in_one_line(home: Path) -> None:
    (home / "broken").touch()
    with shared_gpu(fine) as sharing:
        assert (sharing.is_mps, dict(sharing.variables)) == (False, {})
        assert sharing.note == (
            "NVIDIA MPS cannot be used (cannot be run here); jobs take turns on the GPU"
        )
    assert [call[0] for call in calls(home)] == ["get_server_list", "start"]


def test_a_daemon_that_serves_nobody_is_ended_before_the_jobs_start(home: Path) -> None:
    with shared_gpu(lambda variables: "CUDA error 805") as sharing:
        assert (sharing.is_mps, dict(sharing.variables)) == (False, {})
        assert "(CUDA error 805); jobs take turns" in sharing.note
        assert [call[0] for call in calls(home)] == ["get_server_list", "start", "quit"]


def test_a_daemon_that_does_not_end_is_told(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with shared_gpu(fine) as sharing:
        (Path(sharing.variables["CUDA_MPS_PIPE_DIRECTORY"]) / "control").unlink()
    assert "could not be ended: Cannot find MPS control daemon process" in caplog.text
    os.kill(int((home / "sleeper").read_text()), 15)


def test_a_daemon_that_hangs_is_given_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "bin" / CONTROL).write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(mps, "SECONDS", 0.2)
    with shared_gpu(fine) as sharing:
        assert not sharing.is_mps
        assert "timed out" in sharing.note


def test_a_machine_without_the_program_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with shared_gpu(fine) as sharing:
        assert sharing.note == f"{CONTROL} is not installed; jobs take turns on the GPU"
        assert not sharing.is_mps


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_none(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([Path("/dev/nvidia0")]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert has_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not has_gpu()


@pytest.mark.skipif(has_gpu(), reason="asks for a machine without a GPU")
def test_a_process_that_cannot_open_the_gpu_says_why() -> None:
    assert why_no_cuda({})
