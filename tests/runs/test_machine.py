"""What is told about the machine and the code that make a number."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ragen2.runs import machine
from ragen2.runs.machine import Machine, code_commit, this_machine


def test_processor_and_gpus_come_from_the_systems_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Abacus 9\nmodel name\t: other\n"
    )
    for number in (0, 1):
        (tmp_path / "gpus" / str(number)).mkdir(parents=True)
        (tmp_path / "gpus" / str(number) / "information").write_text(f"Model: \t GPU {number}\n")
    monkeypatch.setattr(machine, "PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "gpus")
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
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
    monkeypatch.setattr(machine, "PROCESSOR", tmp_path / "none")
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "none")
    found = this_machine()
    assert found.gpus == ("Some GPU",)
    assert found.processor == machine.platform.machine()


def test_the_commit_is_that_of_git_and_an_environment_variable_goes_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAGEN2_COMMIT", raising=False)
    here = Path(machine.__file__).parent
    told = subprocess.run(
        ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    assert code_commit()[0] == told.stdout.strip()
    monkeypatch.setenv("RAGEN2_COMMIT", "0123abc")
    assert code_commit() == ("0123abc", None)
