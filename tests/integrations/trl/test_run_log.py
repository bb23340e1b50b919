"""The run directory of a TRL run, without TRL: one writer, and what is refused at a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen2.errors import RunError
from ragen2.integrations.trl.run_log import RunLog
from ragen2.integrations.trl.settings import SNRSettings
from ragen2.runs.lock import LockedError


def log_of(path: Path, **run: object) -> RunLog:
    return RunLog(SNRSettings(diagnostics=()), path, {"seed": 0, **run}, seed=0, temperature=1.0)


def test_a_run_directory_has_one_writer_until_its_training_ends(tmp_path):
    first, second = log_of(tmp_path / "run"), log_of(tmp_path / "run")
    (tmp_path / "checkpoint-1").mkdir()
    first.start()
    first.save(tmp_path / "checkpoint-1", 0)
    with pytest.raises(LockedError, match="is written by another part of this program"):
        second.resume(tmp_path / "checkpoint-1")
    first.end()
    assert second.resume(tmp_path / "checkpoint-1")
    second.end()


def test_settings_that_a_script_changed_since_are_named_and_recorded(tmp_path, caplog):
    first, second = log_of(tmp_path / "run", steps=4), log_of(tmp_path / "run", steps=6)
    (tmp_path / "checkpoint-1").mkdir()
    first.start()
    first.save(tmp_path / "checkpoint-1", 0)
    first.end()
    assert second.resume(tmp_path / "checkpoint-1")
    second.end()
    assert "steps was 4 when the run began, is 6 now" in caplog.text
    assert (tmp_path / "run" / "run.toml").read_text() == "seed = 0\nsteps = 6\n"


def test_a_state_of_which_one_digit_has_changed_is_refused(tmp_path):
    log, checkpoint = log_of(tmp_path / "run"), tmp_path / "checkpoint-12"
    log.start()
    log.save(checkpoint, 12)
    log.end()
    file = checkpoint / "ragen2_state.json"
    file.write_text(file.read_text().replace("12", "13", 1))
    with pytest.raises(RunError, match=r"state\.json has changed since it was saved; resume from"):
        log.resume(checkpoint)


def test_a_checkpoint_whose_records_are_gone_is_refused(tmp_path):
    first, second = log_of(tmp_path / "run"), log_of(tmp_path / "run")
    (tmp_path / "checkpoint-2").mkdir()
    first.start()
    for step in (1, 2):
        first.attach(step, {"update/loss": 0.5})
        first.close()
    first.save(tmp_path / "checkpoint-2", 2)
    first.end()
    file = tmp_path / "run" / "steps.jsonl"
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    with pytest.raises(
        RunError, match=r"cannot be gone on from: steps\.jsonl ends with step 1 in "
    ):
        second.resume(tmp_path / "checkpoint-2")
    second.end()
    assert file.read_text().count("\n") == 1
