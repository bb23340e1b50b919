"""Score matrices on disk: what is kept, what is left out, and that a crash or a rewind leaves no lie."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from ragen2.errors import RunError
from ragen2.runs.scores import (
    CUT,
    MAX_CHARACTERS,
    MAX_ROWS,
    RowSource,
    ScopeScores,
    ScoreRecord,
    list_scores,
    read_scores,
    scores_file,
    write_scores,
)
from ragen2.runs.store import RunDirectory
from ragen2.types import ScoreMatrix


def scores_of(
    logp: list[list[float]], owner: list[int], texts: list[str] | None = None
) -> ScopeScores:
    matrix = ScoreMatrix(np.array(logp), np.full(len(owner), 3), np.array(owner))
    sources = [
        RowSource(
            text=(texts or [f"reasoning {row}" for row in range(len(owner))])[row],
            label=f"trace {row}",
            prompt=f"prompt of {row}",
            prompt_label=f"p{column}",
            line=10 + row,
        )
        for row, column in enumerate(owner)
    ]
    return ScopeScores.of("first_turn", matrix, sources)


def test_a_matrix_survives_its_file(tmp_path):
    nan = float("nan")
    scope = scores_of([[-1.5, -2.0, -9.0], [nan, -3.25, -7.0], [-4.0, -1.0, nan]], [0, 1, 1])
    write_scores(tmp_path, ScoreRecord(step=12, scopes=[scope]))
    ((step, path),) = list_scores(tmp_path)
    assert (step, path) == (12, tmp_path / "scores" / "step_000012.json.gz")
    (found,) = read_scores(path).scopes
    assert found == scope
    assert found.logp == [[-1.5, -2.0, -9.0], [None, -3.25, -7.0], [-4.0, -1.0, None]]
    assert found.owner == [0, 1, 1]
    assert found.line == [10, 11, 12]


def test_a_columns_text_is_that_of_the_first_reasoning_that_owns_it():
    scope = scores_of([[-1.0, -2.0]] * 3, [1, 0, 1])
    assert scope.prompts == ["prompt of 1", "prompt of 0"]
    assert scope.prompt_labels == ["p0", "p1"]


def test_a_matrix_over_the_limit_keeps_its_first_rows_and_says_how_many_there_were():
    size = MAX_ROWS + 10
    scope = scores_of([[-1.0] * size for _ in range(size)], list(range(size)))
    assert (len(scope.logp), len(scope.logp[0])) == (MAX_ROWS, MAX_ROWS)
    assert max(scope.owner) < MAX_ROWS
    assert (scope.num_traces, scope.num_prompts) == (size, size)
    assert len(scope.prompts) == len(scope.prompt_labels) == MAX_ROWS
    assert len(scope.reasonings) == len(scope.labels) == len(scope.actions) == MAX_ROWS


def test_rows_whose_own_prompt_is_left_out_are_left_out():
    size = MAX_ROWS + 1
    owners = [MAX_ROWS, *range(MAX_ROWS)]
    scope = scores_of([[-1.0] * size for _ in owners], owners)
    assert scope.labels[0] == "trace 1"
    assert scope.owner == list(range(MAX_ROWS))


def test_long_texts_are_cut_and_halves_of_characters_are_replaced(tmp_path):
    scope = scores_of([[-1.0, -2.0]] * 2, [0, 1], ["x" * (MAX_CHARACTERS + 1), "half \ud800"])
    assert scope.reasonings == ["x" * MAX_CHARACTERS + CUT, "half ?"]
    write_scores(tmp_path, ScoreRecord(step=1, scopes=[scope]))
    assert read_scores(scores_file(tmp_path, 1)).scopes == [scope]


def test_the_same_record_gives_the_same_bytes(tmp_path):
    record = ScoreRecord(step=1, scopes=[scores_of([[-1.0, -2.0]] * 2, [0, 1])])
    write_scores(tmp_path, record)
    first = scores_file(tmp_path, 1).read_bytes()
    os.utime(scores_file(tmp_path, 1), (0, 0))
    write_scores(tmp_path, record)
    assert scores_file(tmp_path, 1).read_bytes() == first


def test_a_step_without_scores_leaves_no_file(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "")
    run.save_scores(1, [])
    assert list_scores(run.path) == []


def test_a_rewind_forgets_later_scores(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "")
    scope = scores_of([[-1.0, -2.0]] * 2, [0, 1])
    for step in (0, 1, 2, 3):
        run.save_scores(step, [scope])
    run.rewind(1)
    assert [step for step, _ in list_scores(run.path)] == [0, 1]
    run.rewind(-1)
    assert list_scores(run.path) == []


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    scope = scores_of([[-1.0, -2.0]] * 2, [0, 1])
    write_scores(tmp_path, ScoreRecord(step=1, scopes=[scope]))

    def killed(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(RunError, match=r"step_000001\.json\.gz cannot be written: No space left"):
        write_scores(tmp_path, ScoreRecord(step=1, scopes=[]))
    assert read_scores(scores_file(tmp_path, 1)).scopes == [scope]
    assert len(list((tmp_path / "scores").iterdir())) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"not gzip",
        gzip.compress(b"{}", mtime=0),
        gzip.compress(json.dumps({"step": 1, "scopes": []}).encode(), mtime=0)[:-9],
    ],
)
def test_a_damaged_file_is_named_with_the_cure(tmp_path: Path, content: bytes):
    path = tmp_path / "step_000001.json.gz"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"step_000001\.json\.gz is damaged .*; remove it"):
        read_scores(path)
