"""One number per trace for each metric, and what each prompt contributes to it: the two-way jackknife."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ragen2.types import BoolArray, FloatArray, IntArray, ScoreMatrix

RECALL_AT = (2, 4, 8)
TIE = 1e-9
"""Scores closer than this are tied."""
Moments = dict[str, FloatArray]
"""Mean of each trace statistic, and ``marginal_std``, over some weightings of a batch."""


def trace_statistics(
    matrix: ScoreMatrix, weight_P: FloatArray | None = None
) -> dict[str, FloatArray]:
    """Matched and marginal score of each trace in both forms, and its retrieval at each k.

    ``weight_P`` are the prompts' weights in the mixture, up to a factor; left out, all are equal.
    """
    statistics: dict[str, FloatArray] = {}
    for suffix, scores_NP in score_forms(matrix).items():
        statistics[f"matched{suffix}"] = own_scores(scores_NP, matrix.owner_N)
        statistics[f"marginal{suffix}"] = marginals(scores_NP, matrix.owner_N, weight_P)
    better_NP, tied_NP = rivals(score_forms(matrix)[""], matrix.owner_N)
    for k in (1, *RECALL_AT):
        statistics[f"recall@{k}"] = credit(better_NP.sum(1), tied_NP.sum(1), k)
    return statistics


def score_forms(matrix: ScoreMatrix) -> dict[str, FloatArray]:
    """The scores per token, under the empty suffix, and per sequence, under ``_seq``."""
    return {"": matrix.logp_NP / matrix.length_N[:, None], "_seq": matrix.logp_NP}


def own_scores(scores_NP: FloatArray, owner_N: IntArray) -> FloatArray:
    """Score of each trace under its own prompt."""
    return scores_NP[np.arange(len(owner_N)), owner_N]


def marginals(
    scores_NP: FloatArray, owner_N: IntArray, weight_P: FloatArray | None = None
) -> FloatArray:
    """``log mean_j exp score[i, j]`` of each trace over all P prompts, scored or not.

    The own prompt has its weight (1/P where all are equal), and the other scored ones share the rest as
    their weights are. Where the scored ones are a uniform draw, the mean inside the log is estimated
    without bias.
    """
    mixture = _Mixture.of(scores_NP, owner_N, weight_P)
    total = mixture.weight_P.sum()
    own_N = mixture.own_N - np.log(total)
    with np.errstate(divide="ignore", invalid="ignore"):
        share_N = np.log((total - mixture.own_weight_N) / total / mixture.scored_N)
        mixed_N = np.logaddexp(own_N, _log_sum_exp(mixture.others_NP) + share_N)
    # Without any other prompt of weight the own one is all.
    return np.asarray(np.where(mixture.scored_N > 0.0, mixed_N, own_N))


def marginals_without_each(
    scores_NP: FloatArray, owner_N: IntArray, weight_P: FloatArray | None = None
) -> FloatArray:
    """Marginal of trace i over all prompts but j, at [i, j]; only read where j is not i's own.

    The term of one prompt is taken out of the sum of all. Where that term is the largest the rest is
    summed anew, since the difference would be all rounding.
    """
    mixture = _Mixture.of(scores_NP, owner_N, weight_P)
    others_NP, weight_P = mixture.others_NP, mixture.weight_P
    rows = np.arange(len(owner_N))
    total_N = _log_sum_exp(others_NP)
    top_N = others_NP.argmax(1)
    without_top_NP = others_NP.copy()
    without_top_NP[rows, top_N] = -np.inf
    total_P = weight_P.sum() - weight_P
    left_NP = mixture.scored_N[:, None] - np.where(np.isfinite(others_NP), weight_P, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rest_NP = total_N[:, None] + np.log1p(-np.exp(others_NP - total_N[:, None]))
        rest_NP[rows, top_N] = _log_sum_exp(without_top_NP)
        own_NP = mixture.own_N[:, None] - np.log(total_P)
        share_NP = np.log((total_P - mixture.own_weight_N[:, None]) / total_P / left_NP)
        mixed_NP = np.logaddexp(own_NP, rest_NP + share_NP)
    # A trace scored under one other prompt alone keeps it: there is nothing to put in its place.
    return np.where(left_NP > 0.0, mixed_NP, marginals(scores_NP, owner_N, weight_P)[:, None])


def rivals(scores_NP: FloatArray, owner_N: IntArray) -> tuple[BoolArray, BoolArray]:
    """Which prompts score a trace better than its own, and which as well (the own one included)."""
    ahead_NP = scores_NP - own_scores(scores_NP, owner_N)[:, None]
    return ahead_NP > TIE, np.abs(ahead_NP) <= TIE


def credit(better: IntArray, tied: IntArray, k: int) -> FloatArray:
    """Chance that the own prompt is among the k best, ties broken fairly.

    With g prompts strictly better and t tied (the own one included), that is ``clip((k - g) / t, 0, 1)``;
    equal scores give exactly k / P.
    """
    return np.asarray(np.clip((k - better) / tied, 0.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Mixture:
    """The terms of each trace's mixture, as logs of weight times likelihood, before they are normalised."""

    weight_P: FloatArray
    own_weight_N: FloatArray
    own_N: FloatArray
    others_NP: FloatArray
    """Minus infinity at the own prompt and where there is no score or no weight."""
    scored_N: FloatArray
    """Weight of the other prompts that a trace was scored under."""

    @classmethod
    def of(cls, scores_NP: FloatArray, owner_N: IntArray, weight_P: FloatArray | None) -> _Mixture:
        if weight_P is None:
            weight_P = np.ones(scores_NP.shape[1])
        with np.errstate(divide="ignore"):
            log_weight_P = np.log(weight_P)
        others_NP = np.where(np.isnan(scores_NP), -np.inf, scores_NP) + log_weight_P
        others_NP[np.arange(len(owner_N)), owner_N] = -np.inf
        return cls(
            weight_P,
            weight_P[owner_N],
            own_scores(scores_NP, owner_N) + log_weight_P[owner_N],
            others_NP,
            np.where(np.isfinite(others_NP), weight_P, 0.0).sum(1),
        )


def _log_sum_exp(values_NP: FloatArray) -> FloatArray:
    """Row-wise ``log(sum(exp(x)))`` without overflow; minus infinity for a row of nothing."""
    top_N = np.maximum(values_NP.max(1), np.finfo(np.float64).min)
    with np.errstate(divide="ignore"):
        return np.asarray(top_N + np.log(np.exp(values_NP - top_N[:, None]).sum(1)))


@dataclass(frozen=True, slots=True, eq=False)
class Influence:
    """Pseudo-values of P prompts for each metric: their mean has the metric's uncertainty."""

    values_PM: FloatArray
    twice_M: FloatArray
    """Variance that the pseudo-values count twice: of effects that belong to a pair of prompts."""


def prompt_influence(
    matrix: ScoreMatrix,
    metrics: Callable[[Moments], dict[str, FloatArray]],
    weight_P: FloatArray | None = None,
) -> Influence:
    """Leave out each prompt in turn; ``metrics`` makes the metrics of the moments that are left."""
    prompts = matrix.logp_NP.shape[1]
    statistics = statistics_without_each(matrix, weight_P)
    kept_NP = matrix.owner_N[:, None] != np.arange(prompts)
    without = metrics(_moments(statistics, kept_NP))
    pairs = {name: _pair_variance(values, matrix) for name, values in statistics.items()}
    # Tukey's pseudo-values less their mean: (P - 1) times how far the metric moves without each prompt.
    values_PM = np.array(
        [(prompts - 1) * (values_P.mean() - values_P) for values_P in without.values()]
    ).T
    twice_M = np.array([_counted_twice(name, pairs) for name in without])
    return Influence(values_PM, twice_M)


def statistics_without_each(
    matrix: ScoreMatrix, weight_P: FloatArray | None = None
) -> dict[str, FloatArray]:
    """``trace_statistics`` of trace i when prompt j is not there, at [i, j]; 0 where j is i's own."""
    own_NP = matrix.owner_N[:, None] == np.arange(matrix.logp_NP.shape[1])
    found: dict[str, FloatArray] = {}
    for suffix, scores_NP in score_forms(matrix).items():
        matched_N = own_scores(scores_NP, matrix.owner_N)
        found[f"matched{suffix}"] = np.broadcast_to(matched_N[:, None], own_NP.shape)
        found[f"marginal{suffix}"] = marginals_without_each(scores_NP, matrix.owner_N, weight_P)
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
