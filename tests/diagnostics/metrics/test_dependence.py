"""Proxies against the number of prompts and traces."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ragen2.diagnostics import measure
from ragen2.diagnostics.metrics.dependence import DependenceRow, dependence, enough_prompts
from ragen2.errors import ConfigError
from tabular_source import TabularSource


def batch(prompts: int = 16, each: int = 4, groundedness: float = 0.5):
    source = TabularSource.make(prompts=prompts, groundedness=groundedness)
    matrix = source.sample(each, np.random.default_rng(0))
    return matrix.logp_NP, matrix.length_N, matrix.owner_N


def by_size(rows: list[DependenceRow], metric: str) -> dict[int, DependenceRow]:
    return {row.prompts: row for row in rows if row.metric == metric}


def test_sizes_are_powers_of_two_up_to_all():
    rows = dependence(*batch(prompts=12), draws=5)
    assert sorted({row.prompts for row in rows}) == [2, 4, 8, 12]
    assert {row.traces for row in rows} == {4}


def test_information_grows_and_retrieval_falls_with_the_number_of_prompts():
    rows = dependence(*batch(), draws=60)
    information, retrieval = by_size(rows, "mi_seq_estimate"), by_size(rows, "retrieval_accuracy")
    for small, large in ((2, 4), (4, 8), (8, 16)):
        assert information[small].mean < information[large].mean <= math.log(large)
        assert retrieval[small].mean > retrieval[large].mean


def test_conditional_entropy_does_not_depend_on_the_number_of_prompts():
    rows = by_size(dependence(*batch(), draws=200), "conditional_entropy")
    assert rows[2].mean == pytest.approx(rows[16].mean, abs=0.02)


def test_means_are_the_expected_values_of_smaller_batches():
    """Against new batches of four prompts from the same source."""
    source = TabularSource.make(prompts=16, groundedness=0.5)
    matrix = source.sample(32, np.random.default_rng(0))
    arrays = (matrix.logp_NP, matrix.length_N, matrix.owner_N)
    row = by_size(dependence(*arrays, prompts=[4], traces=[4], draws=400), "mi_seq_estimate")[4]
    rng = np.random.default_rng(1)
    fresh = [source.sample(4, rng, rng.permutation(16)[:4]) for _ in range(400)]
    found = [
        measure(b.logp_NP, b.length_N, b.owner_N, resamples=0)["mi_seq_estimate"] for b in fresh
    ]
    assert row.mean == pytest.approx(np.mean(found), abs=0.03)
    # The interval holds about 95 of 100 such batches, though drawn out of one batch.
    inside = np.mean([row.low <= value <= row.high for value in found])
    assert 0.9 <= inside <= 1.0


def test_more_traces_narrow_the_interval():
    rows = dependence(*batch(each=8), prompts=[8], traces=[1, 8], draws=200)
    width = {row.traces: row.high - row.low for row in rows if row.metric == "conditional_entropy"}
    assert width[8] < width[1]


def test_all_prompts_together_are_told_by_measure():
    arrays = batch()
    row = by_size(dependence(*arrays, draws=3), "mi_estimate")[16]
    found = measure(*arrays, resamples=0)
    assert row.mean == pytest.approx(found["mi_estimate"])
    assert row.low < row.mean < row.high


def test_the_same_seed_gives_the_same_rows():
    assert dependence(*batch(), draws=5, seed=1) == dependence(*batch(), draws=5, seed=1)
    assert dependence(*batch(), draws=5, seed=1) != dependence(*batch(), draws=5, seed=2)


def test_prompts_with_too_few_traces_are_not_drawn():
    logp, length, owner = batch(prompts=6, each=4)
    keep = (owner != 2) | (np.arange(24) % 4 == 0)
    rows = dependence(logp[keep], length[keep], owner[keep], prompts=[2, 5], traces=[4], draws=5)
    assert {row.prompts for row in rows} == {2, 5}
    with pytest.raises(ConfigError, match="6 prompts of 4 traces cannot be drawn: 5 prompts have"):
        dependence(logp[keep], length[keep], owner[keep], prompts=[6], traces=[4])


def test_mistakes_are_told():
    logp, length, owner = batch()
    with pytest.raises(ConfigError, match="sizes of 2 and more, got \\[1\\]"):
        dependence(logp, length, owner, prompts=[1])
    with pytest.raises(ConfigError, match="traces of 2 prompts at least, got 1"):
        dependence(logp[:4], length[:4], owner[:4])
    logp = logp.copy()
    logp[0, 5] = np.nan
    with pytest.raises(ConfigError, match="every pair scored"):
        dependence(logp, length, owner)


# --- how many are enough ---------------------------------------------------------------------------


def row(prompts: int, half: float, metric: str = "mi_estimate", traces: int = 4) -> DependenceRow:
    return DependenceRow(prompts, traces, metric, 0.5, 0.5 - half, 0.5 + half)


def test_enough_is_the_first_size_whose_half_width_is_small_beside_the_bound():
    # A tenth of log P: 0.069, 0.139, 0.208.
    rows = [row(8, 0.2), row(2, 0.3), row(4, 0.15)]
    assert enough_prompts(rows) == 8
    assert enough_prompts(rows, share=0.15) == 4
    assert enough_prompts(rows, share=0.05) is None


def test_enough_is_read_at_the_most_traces():
    assert enough_prompts([row(4, 0.1, traces=2), row(4, 0.9), row(8, 0.1)]) == 8


def test_retrieval_is_held_against_one():
    rows = [row(2, 0.2, "retrieval_accuracy"), row(4, 0.1, "retrieval_accuracy")]
    assert enough_prompts(rows, "retrieval_accuracy") == 4


def test_a_metric_without_bound_or_rows_is_refused():
    with pytest.raises(ConfigError, match="conditional_entropy has no bound"):
        enough_prompts([row(2, 0.1)], "conditional_entropy")
    with pytest.raises(ConfigError, match="no row is about retrieval_accuracy; there are"):
        enough_prompts([row(2, 0.1)], "retrieval_accuracy")
