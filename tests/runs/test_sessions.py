"""Each start of the program on a run is remembered, with its versions, commit and machine."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ragen2 import __version__
from ragen2.runs import store as sessions
from ragen2.runs.store import (
    FILE,
    Machine,
    code_commit,
    installed_versions,
    read_sessions,
    record_session,
    this_machine,
)


def test_sessions_are_added_and_read_in_order(tmp_path):
    record_session(tmp_path, 0)
    record_session(tmp_path, 7)
    found = read_sessions(tmp_path)
    assert [one.step for one in found] == [0, 7]
    assert found[0].versions == installed_versions()
    assert found[0].versions["ragen2"] == __version__
    assert found[0].versions["numpy"] == np.__version__
    assert found[0].machine == this_machine()
    assert found[0].commit == code_commit()[0]


def test_a_line_from_before_machines_were_recorded_is_read(tmp_path):
    old = {"step": 2, "started": "2026-01-01T00:00:00+0000", "versions": {"ragen2": "0.1.0"}}
    (tmp_path / FILE).write_text(json.dumps(old) + "\n")
    (found,) = read_sessions(tmp_path)
    assert (found.step, found.commit, found.machine) == (2, "", None)


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path):
    record_session(tmp_path, 0)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"step": 3, "sta')
    assert [one.step for one in read_sessions(tmp_path)] == [0]


def test_a_run_that_recorded_none_has_none(tmp_path):
    assert read_sessions(tmp_path) == []


def test_processor_and_gpus_come_from_the_systems_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Abacus 9\nmodel name\t: other\n"
    )
    for number in (0, 1):
        (tmp_path / "gpus" / str(number)).mkdir(parents=True)
        (tmp_path / "gpus" / str(number) / "information").write_text(f"Model: \t GPU {number}\n")
    monkeypatch.setattr(sessions, "PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.setattr(sessions, "DRIVER", tmp_path / "gpus")
    monkeypatch.setattr(sessions.os, "cpu_count", lambda: 4)
    found = this_machine()
    assert found == Machine(processor="Abacus 9", cores=4, gpus=("GPU 0", "GPU 1"))
    assert str(found) == "GPU 0, GPU 1, 4 cores of Abacus 9"


def test_without_these_files_the_drivers_program_and_the_architecture_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho Some GPU\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(sessions, "PROCESSOR", tmp_path / "none")
    monkeypatch.setattr(sessions, "DRIVER", tmp_path / "none")
    found = this_machine()
    assert found.gpus == ("Some GPU",)
    assert found.processor == platform.machine()


def test_the_commit_is_that_of_git_and_an_environment_variable_goes_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAGEN2_COMMIT", raising=False)
    here = Path(sessions.__file__).parent
    told = subprocess.run(
        ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    assert code_commit()[0] == told.stdout.strip()
    monkeypatch.setenv("RAGEN2_COMMIT", "0123abc")
    assert code_commit() == ("0123abc", None)
