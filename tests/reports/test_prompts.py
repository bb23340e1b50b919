"""Prompts whose reasoning ignores them: named where only part of the reasoning is grounded."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.diagnostics import measure
from ragen2.reports.load import Run
from ragen2.reports.prompts import MOST, ungrounded_prompts
from ragen2.reports.verdict import judge
from ragen2.runs.record import StepRecord
from ragen2.runs.scores import RowSource, ScopeScores, ScoreRecord, write_scores
from ragen2.types import ScoreMatrix


@pytest.fixture
def run_with(tmp_path):
    """A run of four steps of 16 prompts x 4 in which some prompts' reasoning is a template."""

    def make(lost: int) -> Run:
        rng = np.random.default_rng(0)
        records = []
        for step in range(1, 5):
            owner_N = np.repeat(np.arange(16), 4)
            logp_NP = rng.normal(-40.0, 1.0, (64, 16))
            grounded_N = owner_N >= lost
            logp_NP[grounded_N, owner_N[grounded_N]] += 10.0
            found = measure(logp_NP, np.full(64, 20), owner_N, resamples=0)
            named = {f"collapse/first_turn/{name}": value for name, value in found.items()}
            records.append(StepRecord(step=step, metrics=named))
            sources = [
                RowSource(text="so", label="", prompt=f"board {p}", prompt_label=f"seed {p}")
                for p in owner_N
            ]
            matrix = ScoreMatrix(logp_NP, np.full(64, 20), owner_N)
            scores = ScopeScores.of("first_turn", matrix, sources)
            write_scores(tmp_path, ScoreRecord(step=step, scopes=[scores]))
        return Run(tmp_path, {}, tuple(records))

    return make


def test_the_prompts_of_a_partial_collapse_are_named(run_with):
    found = ungrounded_prompts(run_with(8))
    assert len(found) == MOST
    assert {one.label for one in found} <= {f"seed {number}" for number in range(8)}
    assert {(one.step, one.scope, one.num_traces) for one in found} == {(4, "first_turn", 16)}
    assert all(one.text == one.label.replace("seed", "board") for one in found)
    assert [one.share for one in found] == sorted(one.share for one in found)


@pytest.mark.parametrize("lost", [0, 16])
def test_where_all_or_none_is_grounded_no_prompt_stands_out(run_with, lost):
    assert ungrounded_prompts(run_with(lost)) == ()


def test_the_verdict_has_them(run_with):
    run = run_with(8)
    assert judge(run).prompts == ungrounded_prompts(run)
