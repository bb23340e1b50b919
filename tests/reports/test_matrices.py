"""Score matrices in the page: the right ones, with the numbers and texts they have on disk."""

from __future__ import annotations

import pytest
from report_runs import FIRST, collapse_metrics, make_run, scope_scores

from ragen2.errors import RunError
from ragen2.reports.data import matrices
from ragen2.reports.data.matrices import block_of, matrices_of
from ragen2.reports.load import load
from ragen2.runs.record import StepRecord
from ragen2.runs.scores import scores_file
from ragen2.runs.store import RunDirectory


def test_a_matrix_comes_with_its_numbers_and_texts(tmp_path):
    run = load(make_run(tmp_path / "run", steps=1))
    (entry,), blocks, notes = matrices_of(run, "r0")
    metrics = run.records[-1].metrics
    assert entry["label"] == "step 1, first turn"
    assert (entry["num_traces"], entry["num_prompts"]) == (16, 4)
    assert entry["accuracy"] == metrics[f"{FIRST}retrieval_accuracy"]
    assert entry["chance"] == 0.25
    assert (entry["note"], notes) == ("", [])
    block = blocks[entry["block"]]()
    stored = scope_scores(seed=1)
    assert block["logp_NP"] == stored.logp
    assert block["prompts"][2] == {"label": "seed 2", "text": "board 2", "board": None}
    assert block["traces"][5] == {
        "label": "seed 1, play 5",
        "text": "I see board 1",
        "action": "Up",
    }
    best = [row.index(max(row)) for row in block["logp_NP"]]
    hits = sum(a == b for a, b in zip(best, block["owner_N"], strict=True)) / 16
    assert hits == entry["accuracy"]


def test_phrases_and_likenesses_are_about_the_traces_of_the_block():
    block = block_of(scope_scores(text="let me think step by step about board {}"))
    phrase = block["phrases"][0]
    assert phrase["text"] == "let me think step by step about board"
    assert (phrase["prompts"], phrase["of"]) == (4, 4)
    assert (phrase["traces"], phrase["of_traces"]) == (16, 16)
    pair = block["nearest"][0]
    assert block["owner_N"][pair["a"]] != block["owner_N"][pair["b"]]
    # Seven of the nine different pairs of neighbouring words are shared; the last ones differ.
    assert pair["similarity"] == pytest.approx(7 / 9, abs=1e-5)


def test_a_long_run_shows_some_matrices_evenly_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(matrices, "MOST_STEPS", 3)
    entries, _, (note,) = matrices_of(load(make_run(tmp_path / "run", steps=9)), "r0")
    assert [entry["step"] for entry in entries] == [1, 5, 9]
    assert note.startswith("Score matrices of 3 of 9 scored steps are in this page")


def test_other_scopes_are_shown_at_their_last_step(tmp_path):
    path = make_run(tmp_path / "run", steps=1)
    run = RunDirectory(path)
    for step in (2, 3):
        mine = {
            name.replace("first_turn", "probe"): value
            for name, value in collapse_metrics(seed=step).items()
        }
        scopes = [scope_scores(seed=step).model_copy(update={"name": "probe"})]
        run.save_scores(step, scopes)
        run.append(StepRecord(step=step, metrics=mine))
    entries, blocks, _ = matrices_of(load(path), "r0")
    assert [(entry["step"], entry["scope"]) for entry in entries] == [
        (1, "first_turn"),
        (3, "probe"),
    ]
    assert entries[1]["label"] == "step 3, probe set"
    assert blocks[entries[1]["block"]]()["logp_NP"] == scope_scores(seed=3).logp


def test_scores_of_a_step_that_is_not_recorded_are_not_shown(tmp_path):
    path = make_run(tmp_path / "run", steps=1)
    RunDirectory(path).save_scores(2, [scope_scores()])
    entries, _, _ = matrices_of(load(path), "r0")
    assert [entry["step"] for entry in entries] == [1]


def test_a_capped_matrix_says_how_many_were_scored(tmp_path):
    path = make_run(tmp_path / "run", steps=1)
    metrics = collapse_metrics() | {f"{FIRST}num_traces": 500.0, f"{FIRST}num_prompts": 250.0}
    RunDirectory(path).save_scores(2, [scope_scores()])
    RunDirectory(path).append(StepRecord(step=2, metrics=metrics))
    entries, _, _ = matrices_of(load(path), "r0")
    assert entries[1]["note"] == (
        "The run directory keeps at most 128 traces and prompts of a matrix; 500 traces of "
        "250 prompts were scored."
    )


def test_a_damaged_file_is_named(tmp_path):
    path = make_run(tmp_path / "run", steps=1)
    scores_file(path, 1).write_bytes(b"broken")
    _, blocks, _ = matrices_of(load(path), "r0")
    with pytest.raises(RunError, match=r"step_000001\.json\.gz is damaged"):
        next(iter(blocks.values()))()
