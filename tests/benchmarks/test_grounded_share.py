"""The planted mixtures: drawn as they say, covered, and quoted on the page as they were counted."""

from __future__ import annotations

import json

import numpy as np
import pytest

from grounded_share import PAGE, RESULTS, count, tables, tabular, text


def test_the_page_quotes_what_was_counted():
    assert tables(json.loads(RESULTS.read_text())) in PAGE.read_text(), (
        "run benchmarks/grounded_share.py"
    )


def test_no_plain_case_is_undecided_and_none_is_named_wrong():
    rows = json.loads(RESULTS.read_text())
    assert {row["repetitions"] for row in rows} == {200}
    assert max(row["wrong"] for row in rows) <= 4, "2% of 200"
    # Without a model half of the traces are fitted to, so it takes twice as many.
    enough = {"tabular": 128, "embedded": 128, "text": 256}
    plain = [
        row
        for row in rows
        if row["prompts"] * row["traces"] >= enough[row["kind"]]
        and row["share"] in {0.0, 0.1, 0.2, 0.8, 0.9, 1.0}
    ]
    assert len(plain) == 6 * (3 + 3 + 2)
    assert max(row["verdicts"].get("undecided", 0) for row in plain) <= 4


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_few_mixtures_of_each_share_are_covered(share):
    found = count("tabular", 8, 8, share, 20)
    assert found["covered"] >= 18
    assert found["wrong"] == 0
    assert sum(found["verdicts"].values()) == 20


def test_the_tabular_mixture_is_scored_by_the_policy_that_wrote_it():
    matrix, fitted = tabular(8, 4, 0.0, np.random.default_rng(0))
    assert fitted is None
    assert np.ptp(matrix.logp_NP, axis=1).max() == pytest.approx(0.0), "a template has no prompt"


def test_the_text_of_a_grounded_log_is_seen():
    matrix, fitted = text(16, 8, 1.0, np.random.default_rng(0))
    assert fitted == 4
    best_N = matrix.logp_NP.argmax(1)
    assert (best_N == matrix.owner_N).mean() > 0.4
