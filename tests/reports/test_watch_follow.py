"""Directories in every state that a watcher can meet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ragen2.errors import RunError
from ragen2.reports.load import load
from ragen2.reports.watch import Followed, is_there
from ragen2.runs.record import AuditRecord, Rows, StepRecord
from ragen2.runs.store import RunDirectory


def steps(followed: Followed) -> list[list[int]]:
    return [[record.step for record in run.records] for run in followed.runs()]


def test_a_run_is_followed_from_before_it_exists_to_its_end(tmp_path):
    path = tmp_path / "run"
    followed = Followed([path])
    assert (steps(followed), is_there(path)) == ([[]], False)
    assert followed.runs()[0].settings == {}
    path.mkdir()
    (path / "rollouts").mkdir()
    assert (steps(followed), is_there(path)) == ([[]], False)
    path.rename(tmp_path / "aside")
    run = RunDirectory.create(path, "steps = 2\n")
    assert (steps(followed), is_there(path)) == ([[]], True)
    assert followed.runs()[0].settings == {"steps": 2}
    for step in range(3):
        run.append(StepRecord(step=step, metrics={}))
        assert steps(followed) == [list(range(step + 1))]
    run.rewind(1)
    assert steps(followed) == [[0, 1]]


def test_a_run_whose_settings_are_being_written_can_be_followed(tmp_path, monkeypatch):
    path = tmp_path / "run"
    seen: list[list[list[int]]] = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(steps(Followed([path]))))
    RunDirectory.create(path, "steps = 2\n")
    assert seen == [[[]]]


def test_what_is_followed_is_what_a_report_reads(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "steps = 2\n")
    followed = Followed([run.path])
    for step in range(3):
        run.append(StepRecord(step=step, metrics={"reward/mean": step / 2}))
        assert followed.runs() == [load(run.path)]


def test_several_directories_keep_their_order(tmp_path):
    paths = [tmp_path / name for name in "cab"]
    for number, path in enumerate(paths):
        RunDirectory.create(path, "").append(StepRecord(step=number, metrics={}))
    assert steps(Followed(paths)) == [[0], [1], [2]]


def test_an_audit_can_be_watched_too(tmp_path):
    record = AuditRecord(
        sources=["log.jsonl"],
        formats=["trl"],
        likelihood="text",
        scorer="words",
        settings={},
        rows=Rows(read=1, used=1),
        steps=[StepRecord(step=3, metrics={})],
    )
    (tmp_path / "audit.json").write_text(record.model_dump_json())
    assert steps(Followed([tmp_path])) == [[3]]


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RunError, match="is neither a run directory"):
        Followed([tmp_path])
    with pytest.raises(RunError, match="is neither a run directory"):
        Followed([tmp_path / "notes.txt"])


def test_a_run_file_that_is_no_toml_is_told(tmp_path):
    RunDirectory.create(tmp_path / "run", "steps = = 2")
    with pytest.raises(RunError, match=r"run.toml is not valid TOML"):
        Followed([tmp_path / "run"]).runs()


def test_the_same_directory_twice_is_shown_once(tmp_path: Path):
    path = RunDirectory.create(tmp_path / "run", "").path
    assert steps(Followed([path, path])) == [[]]
