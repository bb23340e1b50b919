"""A record knows the files of its step: what is changed or gone afterwards is named, by whoever reads it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory


@pytest.fixture
def run(tmp_path: Path, group_of) -> RunDirectory:
    """Two steps with rollouts."""
    made = RunDirectory.create(tmp_path / "run", "")
    for step in (1, 2):
        made.save_rollouts(step, [group_of([0.0, 1.0])])
        made.append(StepRecord(step=step, metrics={}, files=made.digests(step)))
    return made


def test_a_run_that_nobody_touched_has_no_changed_files(run):
    assert [sorted(record.files) for record in run.records()] == [["rollouts"], ["rollouts"]]
    assert run.changed_files(run.records()) == ""


@pytest.mark.parametrize("remove", [False, True])
def test_one_byte_or_the_whole_file_is_named(run, remove):
    file = run.path / "rollouts" / "step_000001.jsonl"
    changed = file.read_bytes().replace(b"task 7", b"task 8")
    file.unlink()
    if not remove:
        file.write_bytes(changed)
    how = "is missing" if remove else "has changed"
    assert run.changed_files(run.records()) == (
        f"{file} {how} since its step was recorded; put it back"
    )


def test_a_resumed_run_says_so_and_counts_the_rest(run, caplog):
    for file in (run.path / "rollouts").iterdir():
        file.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        run.rewind(2)
    assert caplog.messages == [
        f"{run.path / 'rollouts' / 'step_000001.jsonl'} has changed since its step was recorded, "
        "and 1 more files; put it back"
    ]


def test_a_rewind_that_finds_no_room_is_told_in_one_line(run, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ragen2.runs.store.write_atomically", full)
    from ragen2.errors import RunError

    with pytest.raises(RunError, match=r"cannot be brought back to step 1: No space left"):
        run.rewind(1)
    assert len(run.records()) == 2


@pytest.mark.parametrize(("kept", "last"), [(2, "ends with step 2"), (0, "holds no record")])
def test_records_that_a_file_of_the_run_reaches_beyond_are_missing(run, group_of, kept, last):
    assert run.missing_records(run.records()) == ""
    run.save_rollouts(3, [group_of([0.0, 1.0])])  # step 3 is under way
    assert run.missing_records(run.records()) == ""
    (run.path / "checkpoints" / "step_000004").mkdir(parents=True)
    assert run.missing_records(run.records()[:kept]) == (
        f"{run.steps_file} {last}, but the run reached step 4: records are missing; put the file back"
    )
