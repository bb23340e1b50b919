"""Data is built once for each state of the files, and a bad moment does not lose the page."""

from __future__ import annotations

import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ragen2.errors import RunError
from ragen2.reports.watch import Snapshot, Snapshots, file_state
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", "")


class Builder:
    """Counts how often it is asked; can be told to fail."""

    def __init__(self) -> None:
        self.calls = 0
        self.made: list[str] = []
        self.problem = ""

    def __call__(self):
        self.calls += 1
        if self.problem:
            raise RunError(self.problem)
        blocks = {"heavy": lambda: self._make("heavy"), "gone": Path("gone").read_text}
        return {"calls": self.calls, "notes": ["a note"]}, blocks

    def _make(self, name: str) -> list[int]:
        self.made.append(name)
        return [1, 2, 3]


def data(snapshot: Snapshot) -> dict[str, object]:
    return json.loads(gzip.decompress(snapshot.packed))


def test_nothing_is_built_again_while_the_files_stay_as_they_are(run):
    build = Builder()
    snapshots = Snapshots([run.path], build)
    first, second = snapshots.newest(), snapshots.newest()
    assert build.calls == 1
    assert first is second
    assert data(first)["live"] == {"since": first.since, "every_s": 0.5}


@pytest.mark.parametrize("what", ["record", "rewind", "checkpoint", "settings"])
def test_a_change_of_the_run_is_a_new_snapshot(run, what):
    run.append(StepRecord(step=0, metrics={}))
    run.append(StepRecord(step=1, metrics={}))
    (run.path / "checkpoints").mkdir()
    snapshots = Snapshots([run.path], Builder())
    before = snapshots.newest()
    if what == "record":
        run.append(StepRecord(step=2, metrics={}))
    elif what == "rewind":
        run.rewind(0)
    elif what == "checkpoint":
        (run.path / "checkpoints" / "step_000001").mkdir()
    else:
        (run.path / "run.toml").write_text("seed = 1")
    after = snapshots.newest()
    assert after.since != before.since
    assert data(after)["calls"] == 2


def test_a_run_that_appears_later_is_a_change(tmp_path):
    paths = [tmp_path / "later"]
    before = file_state(paths)
    RunDirectory.create(paths[0], "")
    assert file_state(paths) != before


def test_many_readers_at_once_cost_one_build(run):
    build = Builder()
    snapshots = Snapshots([run.path], build)
    together = threading.Barrier(20)

    def ask(_: int) -> str:
        together.wait()
        return snapshots.newest().since

    with ThreadPoolExecutor(20) as pool:
        assert len(set(pool.map(ask, range(20)))) == 1
    assert build.calls == 1


def test_a_block_is_made_when_it_is_asked_for_and_once(run):
    build = Builder()
    newest = Snapshots([run.path], build).newest()
    assert build.made == []
    assert newest.block("other") is None
    assert json.loads(gzip.decompress(newest.block("heavy"))) == [1, 2, 3]
    newest.block("heavy")
    assert build.made == ["heavy"]


def test_a_run_that_cannot_be_read_for_a_while_keeps_its_last_page_and_says_so(run):
    build = Builder()
    snapshots = Snapshots([run.path], build)
    good = snapshots.newest()
    build.problem = "steps.jsonl line 3 is damaged"
    run.append(StepRecord(step=0, metrics={}))
    stale = snapshots.newest()
    assert stale.since != good.since
    assert data(stale)["notes"] == ["a note", "Not up to date: steps.jsonl line 3 is damaged"]
    assert stale.block("heavy") is not None
    build.problem = ""
    run.append(StepRecord(step=1, metrics={}))
    assert data(snapshots.newest())["notes"] == ["a note"]


def test_trouble_that_lasts_is_told_once_and_tried_again(run, monkeypatch):
    build = Builder()
    snapshots = Snapshots([run.path], build)
    snapshots.newest()
    build.problem = "no such step"
    run.append(StepRecord(step=0, metrics={}))
    stale = snapshots.newest()
    assert snapshots.newest() is stale
    assert build.calls == 2
    monkeypatch.setattr("ragen2.reports.watch.RETRY_S", -1.0)
    assert snapshots.newest() is stale
    assert build.calls == 3
    build.problem = ""
    healed = snapshots.newest()
    assert data(healed)["notes"] == ["a note"]
    assert snapshots.newest() is healed


def test_trouble_at_the_start_is_an_error(run):
    build = Builder()
    build.problem = "run.toml is not valid TOML"
    with pytest.raises(RunError, match=r"run.toml is not valid TOML"):
        Snapshots([run.path], build).newest()


def test_a_block_whose_file_was_removed_is_no_longer_there(run):
    assert Snapshots([run.path], Builder()).newest().block("gone") is None


def test_a_token_of_one_server_is_not_one_of_the_next(run):
    one, other = (Snapshots([run.path], Builder()).newest() for _ in range(2))
    assert one.since != other.since
