"""Leaving out each prompt in one pass gives what leaving it out by hand gives."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.diagnostics.metrics.mutual_information import metrics_of
from ragen2.diagnostics.statistics.jackknife import (
    prompt_influence,
    statistics_without_each,
    trace_statistics,
)
from ragen2.types import ScoreMatrix
from tabular_source import TabularSource


def batch(groundedness: float = 0.5, prompts: int = 6, each: int = 3) -> ScoreMatrix:
    source = TabularSource.make(prompts=prompts, groundedness=groundedness, length=4, ends=True)
    return source.sample(each, np.random.default_rng(0))


def without(matrix: ScoreMatrix, prompt: int) -> ScoreMatrix:
    """The batch with neither the prompt's traces nor its column."""
    rows = matrix.owner_N != prompt
    columns = np.arange(matrix.logp_NP.shape[1]) != prompt
    owner = matrix.owner_N[rows]
    return ScoreMatrix(
        matrix.logp_NP[rows][:, columns], matrix.length_N[rows], owner - (owner > prompt)
    )


def half_scored(matrix: ScoreMatrix) -> ScoreMatrix:
    """Two of the six prompts of each trace are not scored, never its own."""
    logp = matrix.logp_NP.copy()
    for row, owner in enumerate(matrix.owner_N):
        logp[row, [(owner + 1 + row) % 5 + (owner <= (owner + 1 + row) % 5), owner - 1]] = np.nan
        logp[row, owner] = matrix.logp_NP[row, owner]
    return ScoreMatrix(logp, matrix.length_N, matrix.owner_N)


@pytest.mark.parametrize("weight_P", [None, np.array([3.0, 1.0, 2.0, 5.0, 1.0, 4.0])])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("groundedness", [0.0, 0.5, 0.95, 1.0])
def test_every_statistic_without_a_prompt_is_that_of_the_smaller_batch(
    groundedness, partial, weight_P
):
    matrix = batch(groundedness)
    matrix = half_scored(matrix) if partial else matrix
    found = statistics_without_each(matrix, weight_P)
    for prompt in range(6):
        rows = matrix.owner_N != prompt
        left_P = None if weight_P is None else np.delete(weight_P, prompt)
        expected = trace_statistics(without(matrix, prompt), left_P)
        for name, values in expected.items():
            assert found[name][rows, prompt] == pytest.approx(values, abs=1e-9), name


def test_a_rival_that_holds_nearly_all_the_mixture_is_taken_out_without_rounding():
    logp = np.array([[-60.0, 0.0, -61.0], [-1.0, -2.0, -3.0], [-2.0, -2.0, -1.0]])
    matrix = ScoreMatrix(logp, np.ones(3, int), np.arange(3))
    expected = np.log((np.exp(-60.0) + np.exp(-61.0)) / 2)
    assert statistics_without_each(matrix)["marginal"][0, 1] == pytest.approx(expected, rel=1e-12)


def test_influence_is_what_the_metric_loses_without_the_prompt():
    matrix = batch()
    by_hand = [
        {name: float(v) for name, v in metrics_of(trace_statistics(without(matrix, p))).items()}
        for p in range(6)
    ]
    seen: list[list[str]] = []

    def metrics(moments):
        std = {"": moments["marginal_std"], "_seq": moments["marginal_std_seq"]}
        found = {
            "mi_estimate": moments["matched"] - moments["marginal"],
            "mi_zscore_seq": (moments["matched_seq"] - moments["marginal_seq"])
            / (std["_seq"] + 1e-3),
            "retrieval_accuracy": moments["recall@1"],
        }
        seen.append(list(found))
        return found

    influence = prompt_influence(matrix, metrics)
    for column, name in enumerate(seen[0]):
        left = np.array([one[name] for one in by_hand])
        assert influence.values_PM[:, column] == pytest.approx(5 * (left.mean() - left), abs=1e-9)


def test_effects_of_single_prompts_are_not_counted_twice():
    """Scores that are a sum of a trace's and a column's part have no effect of pairs."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(6), 2)
    logp = np.full((12, 6), -5.0) + rng.normal(size=(12, 1))
    matrix = ScoreMatrix(logp, np.ones(12, int), owner)
    influence = prompt_influence(matrix, lambda m: {"reasoning_entropy": -m["marginal"]})
    assert influence.twice_M[0] == pytest.approx(0.0, abs=1e-20)


def test_effects_of_pairs_are_what_a_two_way_table_leaves_over():
    matrix = batch(prompts=6, each=1)
    influence = prompt_influence(matrix, lambda m: {"reasoning_entropy_seq": -m["marginal_seq"]})
    table = statistics_without_each(matrix)["marginal_seq"]
    off = ~np.eye(6, dtype=bool)
    i, j = np.nonzero(off)
    design = np.zeros((30, 12))
    design[np.arange(30), i] = design[np.arange(30), 6 + j] = 1.0
    fitted = design @ np.linalg.lstsq(design, table[off], rcond=None)[0]
    left = ((table[off] - fitted) ** 2).sum() / (30 - 11)
    assert influence.twice_M[0] == pytest.approx(left)
