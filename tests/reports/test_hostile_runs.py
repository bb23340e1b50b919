"""A run directory from elsewhere: what is no file is never waited for, and no bomb is unpacked."""

from __future__ import annotations

import gzip
import os
import signal
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from report_runs import make_run

from ragen2.errors import RunError
from ragen2.reports.data.episodes import Pictures
from ragen2.reports.data.report import report_of
from ragen2.reports.load import load
from ragen2.reports.watch import Followed
from ragen2.runs import scores
from ragen2.runs.checkpoints import newest_checkpoint
from ragen2.runs.store import RunDirectory
from ragen2.trainer.state import read_state

SECONDS = 20
"""After which a reader counts as blocked."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture(autouse=True)
def never_blocked() -> Iterator[None]:
    def raise_blocked(*_: object) -> None:
        raise AssertionError("a reader waits")

    before = signal.signal(signal.SIGALRM, raise_blocked)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def replace(path: Path, kind: str) -> None:
    """Put something that is no file where a run has one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


def read_all(path: Path) -> None:
    """Everything that a page would show."""
    report = report_of([load(path)])
    for block in report.blocks.values():
        block()


KINDS = pytest.mark.parametrize("kind", ["a named pipe", "a folder", "a device"])


@KINDS
@pytest.mark.parametrize(
    "name",
    [
        "steps.jsonl",
        "sessions.jsonl",
        "rollouts/step_000002.jsonl",
        "scores/step_000002.json.gz",
        "probe/one/probe.json",
    ],
)
def test_a_report_says_which_file_of_a_run_is_none(run: Path, name: str, kind: str):
    replace(run / name, kind)
    with pytest.raises(RunError, match=f"{name}.*it is {kind}, not a file"):
        read_all(run)


@KINDS
def test_watch_says_it_too(run: Path, kind: str):
    replace(run / "steps.jsonl", kind)
    with pytest.raises(RunError, match=f"steps.jsonl cannot be read: it is {kind}, not a file"):
        Followed([run]).runs()


@KINDS
@pytest.mark.parametrize("name", ["run.toml", "audit.json"])
def test_a_run_without_a_file_of_settings_is_none(run: Path, name: str, kind: str):
    (run / "run.toml").unlink()
    replace(run / name, kind)
    with pytest.raises(RunError, match="neither a run directory"):
        load(run)
    with pytest.raises(RunError, match="is not a run directory"):
        RunDirectory.open(run)


@KINDS
def test_images_that_stand_in_no_file_are_missing(run: Path, kind: str):
    replace(run / "images" / "step_000001.zip", kind)
    with pytest.raises(RunError, match=f"step_000001.zip is damaged.*it is {kind}, not a file"):
        RunDirectory.open(run).images.has("0" * 32)


@KINDS
@pytest.mark.parametrize("name", ["manifest.json", "trainer_state.json"])
def test_a_checkpoint_without_its_files_is_not_resumed_from(run: Path, name: str, kind: str):
    folder = run / "checkpoints" / "step_000001"
    replace(folder / name, kind)
    assert newest_checkpoint(run) is None
    with pytest.raises(RunError, match=r"trainer_state.json cannot be read: "):
        read_state(folder)


@pytest.mark.parametrize(
    ("byte", "size", "what"), [(b"[", 2**26, "8 MB"), (b"0,", 2**21, "2,000,000 values")]
)
def test_a_bomb_of_scores_is_told_in_one_line_and_little_memory(
    run: Path, monkeypatch, byte, size, what
):
    monkeypatch.setattr(scores, "LARGEST", 2**23)
    path = run / "scores" / "step_000002.json.gz"
    path.write_bytes(gzip.compress(b"[" + byte * size))
    tracemalloc.start()
    try:
        with pytest.raises(RunError, match=rf"step_000002.json.gz .*it holds more than {what}"):
            read_all(run)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_images_that_no_page_has_room_for_are_not_unpacked(run: Path):
    names = [f"{number:032x}" for number in range(20)]
    path = run / "images" / "step_000001.zip"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(f"{name}.png", bytes(2**23))
    pictures = Pictures(run)
    tracemalloc.start()
    try:
        assert [pictures.uri(name) for name in names] == [""] * len(names)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_a_file_of_nothing_but_length_is_told_at_once(run: Path):
    path = run / "rollouts" / "step_000002.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.truncate(path, 2**42)
    with pytest.raises(RunError, match=r"step_000002.jsonl cannot be read: it holds more than"):
        read_all(run)
    directory = RunDirectory.open(run)
    (record,) = (one for one in directory.records() if one.step == 2)
    recorded = record.model_copy(update={"files": {"rollouts": "0"}})
    assert "step_000002.jsonl has changed" in directory.changed_files([recorded])
