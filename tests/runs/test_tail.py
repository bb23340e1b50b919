"""Following the records of a run that another process writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen2.runs.files import write_atomically
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.runs.tail import RecordTail


def line(step: int) -> str:
    return StepRecord(step=step, metrics={"eval/success": step / 10}).model_dump_json() + "\n"


def steps(tail: RecordTail) -> list[int]:
    return [record.step for record in tail.records]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


def test_a_run_without_records_is_empty(file: Path) -> None:
    tail = RecordTail(file)
    assert not tail.read()
    assert steps(tail) == []


def test_records_are_taken_in_once_and_as_they_come(file: Path) -> None:
    tail = RecordTail(file)
    file.write_text(line(0) + line(1))
    assert tail.read()
    assert not tail.read()
    with file.open("a") as more:
        more.write(line(2))
    assert tail.read()
    assert steps(tail) == [0, 1, 2]
    assert tail.records[2].metrics == {"eval/success": 0.2}


@pytest.mark.parametrize("cut", [1, 20, len(line(1)) - 1])
def test_a_line_half_written_is_waited_for(file: Path, cut: int) -> None:
    tail = RecordTail(file)
    file.write_text(line(0) + line(1)[:cut])
    assert tail.read()
    assert steps(tail) == [0]
    assert not tail.read()
    with file.open("a") as more:
        more.write(line(1)[cut:])
    assert tail.read()
    assert steps(tail) == [0, 1]


def test_only_what_is_new_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = RecordTail(file)
    file.write_text(line(0))
    tail.read()
    with file.open("a") as more:
        more.write(line(1))
    seen: list[bytes] = []
    really = tail._parse
    monkeypatch.setattr(tail, "_parse", lambda text: seen.append(text) or really(text))
    tail.read()
    assert seen == [line(1).rstrip().encode()]


def test_a_run_that_goes_back_is_read_again(file: Path) -> None:
    """Resuming puts a new file in place, which may soon be as long as the old one."""
    tail = RecordTail(file)
    file.write_text(line(0) + line(1) + line(2))
    tail.read()
    write_atomically(file, line(0) + line(7) + line(8))
    assert tail.read()
    assert steps(tail) == [0, 7, 8]


def test_rewinding_a_run_is_seen(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", "")
    for step in range(4):
        run.append(StepRecord(step=step, metrics={}))
    tail = RecordTail(run.steps_file)
    tail.read()
    run.rewind(1)
    assert tail.read()
    assert steps(tail) == [0, 1]
    run.append(StepRecord(step=2, metrics={}))
    assert tail.read()
    assert steps(tail) == [0, 1, 2]


def test_a_damaged_line_is_told_and_the_rest_is_read(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tail = RecordTail(file)
    file.write_text(line(0) + '{"step": "x"}\n' + line(2))
    assert tail.read()
    assert steps(tail) == [0, 2]
    assert 'has a damaged line: \'{"step": "x"}\'' in caplog.text
