"""How much reasoning Z tells about its prompt X: the MI proxies, retrieval and entropies.

All start from the matrix of summed log-probs of N traces under P distinct prompts. With
``L = logp / length`` (per token) or ``S = logp`` (per sequence), and logs in nats:

    matched_i   = L[i, owner_i]
    marginal_i  = log mean_j exp L[i, j]
    MI          = mean(matched - marginal)          at most log P
    H(Z|X)      = -mean matched
    H(Z)        = -mean marginal                    so H(Z) - H(Z|X) = MI
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ragen2.diagnostics.resampling import (
    Interval,
    percentile_interval,
    permutation_p_value,
    resample,
)
from ragen2.seeding import stream
from ragen2.types import FloatArray, IntArray, ScoreMatrix

STD_FLOOR = 1e-3
"""Added to the spread a z-score divides by, as the reference does."""
EMA_DECAY = 0.9
RECALL_AT = (2, 4, 8)
TIE = 1e-9
"""Scores closer than this are tied."""


@dataclass(frozen=True, slots=True)
class Ema:
    """Moving average of the marginal's spread over steps; passed in and returned, saved with a run."""

    std: float
    std_seq: float


def measure(
    logp_NP: FloatArray,
    length_N: IntArray,
    owner_N: IntArray,
    *,
    interval: Literal["batch", "population"] = "batch",
    resamples: int = 1000,
    ema: Ema | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """The whole family of proxies, each estimate with a 95% interval.

    Args:
        logp_NP: summed log-prob of trace i under prompt j; equal prompts must be one column.
        length_N: tokens of each trace.
        owner_N: column of each trace's true prompt.
        interval: ``batch`` resamples traces within prompts (for these prompts), ``population``
            resamples prompts (for the prompts they were drawn from).
        resamples: bootstrap and permutation draws; 0 leaves intervals and p-values out.
        ema: spread of the marginal averaged over earlier steps; this batch's own when left out.
        seed: of the resampling.
    """
    matrix = ScoreMatrix(
        np.asarray(logp_NP, dtype=np.float64),
        np.asarray(length_N, dtype=np.int64),
        np.asarray(owner_N, dtype=np.int64),
    )
    per_trace = trace_statistics(matrix)
    ema = ema or next_ema(None, matrix)
    prompts = matrix.logp_NP.shape[1]
    everyone = np.full((1, len(matrix.owner_N)), 1.0 / len(matrix.owner_N))
    metrics = {
        name: float(values[0]) for name, values in _estimates(per_trace, everyone, ema).items()
    }
    metrics["retrieval_chance"] = 1.0 / prompts
    metrics["retrieval_above_chance"] = metrics["retrieval_accuracy"] - 1.0 / prompts
    metrics["mi_bound"] = float(np.log(prompts))
    metrics["num_traces"] = float(len(matrix.owner_N))
    metrics["num_prompts"] = float(prompts)
    if resamples:
        rng = stream("measure", seed)
        weights_BN = resample(matrix.owner_N, interval, resamples, rng)
        for name, values in _estimates(per_trace, weights_BN, ema).items():
            bounds: Interval = percentile_interval(values)
            metrics[f"{name}_low"], metrics[f"{name}_high"] = bounds
        metrics |= _p_values(matrix, resamples, rng)
    return metrics


def trace_statistics(matrix: ScoreMatrix) -> dict[str, FloatArray]:
    """One number a trace for each quantity whose mean is a metric."""
    rows = np.arange(len(matrix.owner_N))
    token_NP = matrix.logp_NP / matrix.length_N[:, None]
    statistics = {
        "matched": token_NP[rows, matrix.owner_N],
        "marginal": log_mean_exp(token_NP),
        "matched_seq": matrix.logp_NP[rows, matrix.owner_N],
        "marginal_seq": log_mean_exp(matrix.logp_NP),
    }
    for k in (1, *RECALL_AT):
        statistics[f"recall@{k}"] = recall_credit(token_NP, matrix.owner_N, k)
    return statistics


def recall_credit(scores_NP: FloatArray, owner_N: IntArray, k: int) -> FloatArray:
    """Chance that each trace's own prompt is among its k best, ties broken fairly.

    With g prompts strictly better and t tied (the own one included), that is ``clip((k - g) / t, 0, 1)``;
    a matrix of equal scores gives exactly k / P.
    """
    own_N = scores_NP[np.arange(len(owner_N)), owner_N][:, None]
    better_N = (scores_NP > own_N + TIE).sum(1)
    tied_N = (np.abs(scores_NP - own_N) <= TIE).sum(1)
    return np.asarray(np.clip((k - better_N) / tied_N, 0.0, 1.0))


def log_mean_exp(values_NP: FloatArray) -> FloatArray:
    """Row-wise ``log(mean(exp(x)))`` without overflow."""
    top_N = values_NP.max(1)
    return np.asarray(top_N + np.log(np.exp(values_NP - top_N[:, None]).mean(1)))


def next_ema(ema: Ema | None, matrix: ScoreMatrix) -> Ema:
    """Fold this batch's spread of the marginal into the average; the first batch starts it."""
    statistics = trace_statistics(matrix)
    std, std_seq = float(statistics["marginal"].std()), float(statistics["marginal_seq"].std())
    if ema is None:
        return Ema(std, std_seq)
    keep, add = EMA_DECAY, 1.0 - EMA_DECAY
    return Ema(keep * ema.std + add * std, keep * ema.std_seq + add * std_seq)


def _estimates(
    per_trace: dict[str, FloatArray], weights_BN: FloatArray, ema: Ema
) -> dict[str, FloatArray]:
    """Each metric under B weightings of the traces at once."""

    def mean(name: str) -> FloatArray:
        return np.asarray(weights_BN @ per_trace[name])

    metrics: dict[str, FloatArray] = {}
    for suffix, average in (("", ema.std), ("_seq", ema.std_seq)):
        matched, marginal = mean(f"matched{suffix}"), mean(f"marginal{suffix}")
        # Centred first: the difference of two large squares would be all rounding.
        around_N = per_trace[f"marginal{suffix}"] - per_trace[f"marginal{suffix}"].mean()
        variance = weights_BN @ around_N**2 - (weights_BN @ around_N) ** 2
        std = np.sqrt(np.maximum(variance, 0.0))
        mi = matched - marginal
        metrics["mi_estimate" if not suffix else "mi_seq_estimate"] = mi
        metrics[f"mi_zscore{suffix}"] = mi / (std + STD_FLOOR)
        metrics[f"mi_zscore_ema{suffix}"] = mi / (average + STD_FLOOR)
        metrics[f"conditional_entropy{suffix}"] = -matched
        metrics[f"reasoning_entropy{suffix}"] = -marginal
    metrics["retrieval_accuracy"] = mean("recall@1")
    for k in RECALL_AT:
        metrics[f"retrieval_accuracy@{k}"] = mean(f"recall@{k}")
    return metrics


def _p_values(matrix: ScoreMatrix, resamples: int, rng: np.random.Generator) -> dict[str, float]:
    """Chance of values this large if traces had nothing to do with their prompts."""
    rows = np.arange(len(matrix.owner_N))
    token_NP = matrix.logp_NP / matrix.length_N[:, None]
    # The marginal does not depend on who owns a trace, so the matched part decides the rank of MI.
    best_NP = np.abs(token_NP - token_NP.max(1, keepdims=True)) <= TIE
    credit_NP = best_NP / best_NP.sum(1, keepdims=True)
    owners_BN = [rng.permutation(matrix.owner_N) for _ in range(resamples)]
    return {
        "mi_p_value": permutation_p_value(
            token_NP[rows, matrix.owner_N].mean(), [token_NP[rows, o].mean() for o in owners_BN]
        ),
        "retrieval_p_value": permutation_p_value(
            credit_NP[rows, matrix.owner_N].mean(), [credit_NP[rows, o].mean() for o in owners_BN]
        ),
    }
