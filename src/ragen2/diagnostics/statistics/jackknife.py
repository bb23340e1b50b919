"""The two-way jackknife: what each prompt contributes to each metric, all computed without it in one pass.

A prompt acts twice: its traces are rows, and it is a column of every other trace's mixture and ranking.
Leaving it out removes both. Drawing prompts again with replacement would instead make equal columns,
which no batch has: retrieval would be a guess among copies. Shape letters: N traces, P prompts, M metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ragen2.diagnostics.statistics.trace_statistics import (
    RECALL_AT,
    credit,
    marginals_without_each,
    own_scores,
    rivals,
    score_forms,
)
from ragen2.types import BoolArray, FloatArray, ScoreMatrix

Moments = dict[str, FloatArray]
"""Mean of each trace statistic, and ``marginal_std``, over some weightings of a batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Influence:
    """Pseudo-values of P prompts for each metric: their mean has the metric's uncertainty."""

    values_PM: FloatArray
    twice_M: FloatArray
    """Variance that the pseudo-values count twice: of effects that belong to a pair of prompts."""


def prompt_influence(
    matrix: ScoreMatrix, metrics: Callable[[Moments], dict[str, FloatArray]]
) -> Influence:
    """Leave out each prompt in turn; ``metrics`` makes the metrics of the moments that are left."""
    prompts = matrix.logp_NP.shape[1]
    statistics = statistics_without_each(matrix)
    kept_NP = matrix.owner_N[:, None] != np.arange(prompts)
    without = metrics(_moments(statistics, kept_NP))
    pairs = {name: _pair_variance(values, matrix) for name, values in statistics.items()}
    # Tukey's pseudo-values less their mean: (P - 1) times how far the metric moves without each prompt.
    values_PM = np.array(
        [(prompts - 1) * (values_P.mean() - values_P) for values_P in without.values()]
    ).T
    twice_M = np.array([_counted_twice(name, pairs) for name in without])
    return Influence(values_PM, twice_M)


def statistics_without_each(matrix: ScoreMatrix) -> dict[str, FloatArray]:
    """``trace_statistics`` of trace i when prompt j is not there, at [i, j]; 0 where j is i's own."""
    own_NP = matrix.owner_N[:, None] == np.arange(matrix.logp_NP.shape[1])
    found: dict[str, FloatArray] = {}
    for suffix, scores_NP in score_forms(matrix).items():
        matched_N = own_scores(scores_NP, matrix.owner_N)
        found[f"matched{suffix}"] = np.broadcast_to(matched_N[:, None], own_NP.shape)
        found[f"marginal{suffix}"] = marginals_without_each(scores_NP, matrix.owner_N)
    better_NP, tied_NP = rivals(score_forms(matrix)[""], matrix.owner_N)
    fewer_better_NP = better_NP.sum(1, keepdims=True) - better_NP
    fewer_tied_NP = np.maximum(tied_NP.sum(1, keepdims=True) - tied_NP, 1)
    for k in (1, *RECALL_AT):
        found[f"recall@{k}"] = credit(fewer_better_NP, fewer_tied_NP, k)
    return {name: np.where(own_NP, 0.0, values_NP) for name, values_NP in found.items()}


def _moments(statistics: dict[str, FloatArray], kept_NP: BoolArray) -> Moments:
    """Means over the traces that are left when each prompt is gone."""
    left_P = kept_NP.sum(0)
    moments = {name: values_NP.sum(0) / left_P for name, values_NP in statistics.items()}
    for suffix in ("", "_seq"):
        around_NP = statistics[f"marginal{suffix}"] - moments[f"marginal{suffix}"]
        moments[f"marginal_std{suffix}"] = np.sqrt(
            np.where(kept_NP, around_NP**2, 0.0).sum(0) / left_P
        )
    return moments


def _pair_variance(without_NP: FloatArray, matrix: ScoreMatrix) -> float:
    """Variance of what is left of column j's effect on prompt i after row and column effects.

    The least-squares fit of a two-way table without its diagonal. Leaving out i and leaving out j both
    show this part, so that the jackknife counts it twice (Efron and Stein, 1981).
    """
    prompts = matrix.logp_NP.shape[1]
    counts_P = np.bincount(matrix.owner_N, minlength=prompts)
    if prompts < 4 or (counts_P == 0).any():
        return 0.0
    table_PP = np.zeros((prompts, prompts))
    np.add.at(table_PP, matrix.owner_N, without_NP)
    table_PP /= counts_P[:, None]
    off_PP = ~np.eye(prompts, dtype=bool)
    row_P, column_P = table_PP.sum(1) / (prompts - 1), table_PP.sum(0) / (prompts - 1)
    grand = row_P.mean()
    # Normal equations of y_ij = grand + row_i + column_j, i != j: the missing diagonal couples the effects.
    factor = (prompts - 1) / (prompts * (prompts - 2))
    row_effect_P = factor * ((prompts - 1) * row_P + column_P - prompts * grand)
    column_effect_P = factor * ((prompts - 1) * column_P + row_P - prompts * grand)
    fitted_PP = grand + row_effect_P[:, None] + column_effect_P
    # Cells off the diagonal, less the parameters of the fit.
    freedom = prompts * (prompts - 1) - 2 * (prompts - 1) - 1
    return float(((table_PP - fitted_PP)[off_PP] ** 2).sum() / freedom)


def _counted_twice(metric: str, pairs: dict[str, float]) -> float:
    """The pair variance of the statistic whose mean a metric is; a matched score has none."""
    if metric.startswith("retrieval_accuracy"):
        return pairs[f"recall{metric.removeprefix('retrieval_accuracy') or '@1'}"]
    if metric in {"mi_estimate", "reasoning_entropy"}:
        return pairs["marginal"]
    if metric in {"mi_seq_estimate", "reasoning_entropy_seq"}:
        return pairs["marginal_seq"]
    return 0.0
