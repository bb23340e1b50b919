"""Reading a file of records while a run writes it, is killed, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen2.errors import RunError
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RecordTail, RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", "")


@pytest.fixture
def tail(run: RunDirectory) -> RecordTail:
    return RecordTail(run.steps_file)


def record(step: int, mark: float = 0.0) -> StepRecord:
    return StepRecord(step=step, metrics={"mark": mark})


def steps(tail: RecordTail) -> list[int]:
    return [one.step for one in tail.records()]


def test_a_run_that_is_not_there_yet_has_no_records(tmp_path):
    assert RecordTail(tmp_path / "later" / "steps.jsonl").records() == ()


def test_records_show_as_they_are_written(run, tail):
    for step in range(4):
        run.append(record(step))
        assert steps(tail) == list(range(step + 1))


def test_what_is_known_is_not_read_again(run, tail, monkeypatch):
    run.append(record(0))
    run.append(record(1))
    tail.records()
    parsed: list[bytes] = []
    real = StepRecord.model_validate_json
    monkeypatch.setattr(
        StepRecord, "model_validate_json", lambda line: parsed.append(line) or real(line)
    )
    run.append(record(2))
    assert steps(tail) == [0, 1, 2]
    assert len(parsed) == 1


def test_a_half_written_line_shows_once_it_is_whole(run, tail):
    run.append(record(0))
    line = record(1).model_dump_json().encode() + b"\n"
    for cut in (1, len(line) // 2, len(line) - 1):
        with run.steps_file.open("ab") as file:
            file.write(line[:cut])
        assert steps(tail) == [0]
        with run.steps_file.open("ab") as file:
            file.truncate(run.steps_file.stat().st_size - cut)
    with run.steps_file.open("ab") as file:
        file.write(line[:9])
    assert steps(tail) == [0]
    with run.steps_file.open("ab") as file:
        file.write(line[9:])
    assert steps(tail) == [0, 1]


def test_a_rewound_run_is_read_from_its_start(run, tail):
    for step in range(5):
        run.append(record(step))
    assert steps(tail) == [0, 1, 2, 3, 4]
    run.rewind(2)
    assert steps(tail) == [0, 1, 2]


def test_a_run_that_was_rewound_and_grew_longer_is_noticed(run, tail):
    for step in range(3):
        run.append(record(step))
    assert steps(tail) == [0, 1, 2]
    run.rewind(1)
    for step in range(2, 6):
        run.append(record(step, mark=1.0))
    assert [one.metrics["mark"] for one in tail.records()] == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


def test_a_file_that_was_written_over_in_place_is_noticed(run, tail):
    lines = [record(step).model_dump_json() + "\n" for step in range(3)]
    run.steps_file.write_text("".join(lines))
    assert steps(tail) == [0, 1, 2]
    changed = [record(step, mark=1.5).model_dump_json() + "\n" for step in range(4)]
    run.steps_file.write_text("".join(changed))  # the same inode, and longer
    assert [one.metrics["mark"] for one in tail.records()] == [1.5] * 4


def test_a_run_that_was_removed_and_made_again_is_followed(run, tail):
    run.append(record(0))
    assert steps(tail) == [0]
    run.steps_file.unlink()
    assert steps(tail) == []
    run.append(record(0, mark=2.0))
    assert [one.metrics["mark"] for one in tail.records()] == [2.0]


def test_a_last_line_that_a_crash_cut_is_left_out(run, tail):
    run.append(record(0))
    with run.steps_file.open("ab") as file:
        file.write(b'{"step": 1, "metr')
    assert steps(tail) == [0]
    assert steps(tail) == [one.step for one in run.records()]


@pytest.mark.parametrize("is_last", [True, False])
def test_a_damaged_line_is_named_for_a_crash_leaves_none_with_an_end(run, tail, is_last):
    run.append(record(0))
    after = b"" if is_last else record(2).model_dump_json().encode() + b"\n"
    with run.steps_file.open("ab") as file:
        file.write(b"nonsense\n" + after)
    for read in (tail.records, run.records):
        with pytest.raises(RunError, match=r"steps.jsonl line 2 is damaged: 'nonsense'"):
            read()
