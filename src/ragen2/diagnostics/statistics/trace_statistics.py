"""One number per trace for each quantity whose mean over traces is a metric.

Shape letters: N traces, P prompts. Scores are log-probs of traces under prompts, summed (``_seq``) or
per token. NaN marks a pair that was not scored.
"""

from __future__ import annotations

import numpy as np

from ragen2.types import BoolArray, FloatArray, IntArray, ScoreMatrix

RECALL_AT = (2, 4, 8)
TIE = 1e-9
"""Scores closer than this are tied."""


def trace_statistics(matrix: ScoreMatrix) -> dict[str, FloatArray]:
    """Matched and marginal score of each trace in both forms, and its retrieval at each k."""
    statistics: dict[str, FloatArray] = {}
    for suffix, scores_NP in score_forms(matrix).items():
        statistics[f"matched{suffix}"] = own_scores(scores_NP, matrix.owner_N)
        statistics[f"marginal{suffix}"] = marginals(scores_NP, matrix.owner_N)
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


def marginals(scores_NP: FloatArray, owner_N: IntArray) -> FloatArray:
    """``log mean_j exp score[i, j]`` of each trace over all P prompts, scored or not.

    The own prompt has weight 1/P and the other scored ones share the rest equally. Where the scored
    ones are a uniform draw, the mean inside the log is estimated without bias.
    """
    prompts = scores_NP.shape[1]
    own_N = own_scores(scores_NP, owner_N)
    if prompts == 1:
        return own_N
    others_NP = _others(scores_NP, owner_N)
    share_N = np.log((prompts - 1) / prompts / np.isfinite(others_NP).sum(1))
    return np.asarray(np.logaddexp(own_N - np.log(prompts), _log_sum_exp(others_NP) + share_N))


def marginals_without_each(scores_NP: FloatArray, owner_N: IntArray) -> FloatArray:
    """Marginal of trace i over all prompts but j, at [i, j]; only read where j is not i's own.

    The term of one prompt is taken out of the sum of all. Where that term is the largest the rest is
    summed anew, since the difference would be all rounding.
    """
    prompts = scores_NP.shape[1]
    rows = np.arange(len(owner_N))
    others_NP = _others(scores_NP, owner_N)
    total_N = _log_sum_exp(others_NP)
    top_N = others_NP.argmax(1)
    with np.errstate(divide="ignore"):
        rest_NP = total_N[:, None] + np.log1p(-np.exp(others_NP - total_N[:, None]))
    without_top_NP = others_NP.copy()
    without_top_NP[rows, top_N] = -np.inf
    rest_NP[rows, top_N] = _log_sum_exp(without_top_NP)
    scored_NP = np.isfinite(others_NP)
    left_NP = scored_NP.sum(1, keepdims=True) - scored_NP
    own_NP = own_scores(scores_NP, owner_N)[:, None] - np.log(prompts - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        share_NP = np.log((prompts - 2) / (prompts - 1) / left_NP)
        mixed_NP = np.logaddexp(own_NP, rest_NP + share_NP)
    # A trace scored under one other prompt alone keeps it: there is nothing to put in its place.
    return np.where(left_NP > 0, mixed_NP, marginals(scores_NP, owner_N)[:, None])


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


def _others(scores_NP: FloatArray, owner_N: IntArray) -> FloatArray:
    """The scores under other prompts; minus infinity where there is none."""
    others_NP = np.where(np.isnan(scores_NP), -np.inf, scores_NP)
    others_NP[np.arange(len(owner_N)), owner_N] = -np.inf
    return others_NP


def _log_sum_exp(values_NP: FloatArray) -> FloatArray:
    """Row-wise ``log(sum(exp(x)))`` without overflow; minus infinity for a row of nothing."""
    top_N = np.maximum(values_NP.max(1), np.finfo(np.float64).min)
    with np.errstate(divide="ignore"):
        return np.asarray(top_N + np.log(np.exp(values_NP - top_N[:, None]).sum(1)))
