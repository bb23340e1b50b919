"""How much reasoning Z tells about its prompt X: the MI proxies, retrieval and entropies of RAGEN-2.

Definitions are those of the paper (arXiv 2604.06268). All start from the matrix of summed log-probs of N
traces under P distinct prompts. In nats, with ``L = logp / length`` per token or ``S = logp`` per sequence:

    matched_i   = L[i, owner_i]
    marginal_i  = log mean_j exp L[i, j]
    MI          = mean(matched - marginal)          at most log P
    H(Z|X)      = -mean matched
    H(Z)        = -mean marginal                    so H(Z) - H(Z|X) = MI

The bound: the own prompt is one of the P in the mean, so marginal_i is at least matched_i - log P. Per token
the mixture is one of geometric means, a proxy free of length; per sequence it is a true mixture, but soon at
its bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ragen2.diagnostics.metrics.grounding import measure_grounding, retrieval_chance
from ragen2.diagnostics.statistics.jackknife import (
    RECALL_AT,
    TIE,
    Moments,
    prompt_influence,
    score_forms,
    trace_statistics,
)
from ragen2.diagnostics.statistics.resampling import (
    Interval,
    Spread,
    permutation_p_value,
    permuted_owners,
    scored_owners,
    stratified_spread,
    student_quantile,
    wilson_interval,
)
from ragen2.seeding import stream
from ragen2.types import FloatArray, IntArray, ScoreMatrix

IntervalKind = Literal["batch", "population"]
STD_FLOOR = 1e-3
"""Added to the spread a z-score divides by, as the reference does."""
EMA_DECAY = 0.9
"""Weight of the earlier steps in the moving average, as in the reference."""
LEAST_SHARE = 0.8
"""Share of the jackknife's variance that a correction for pairs leaves at least: with few prompts the
correction is itself noise."""
LEAST_SHARE_OF_RETRIEVAL = 0.25
"""The same for retrieval, where single rivals decide and the correction is large."""


@dataclass(frozen=True, slots=True)
class Ema:
    """Moving average of the marginal's spread over steps; passed in and returned, saved with a run."""

    std: float
    std_seq: float


@dataclass(frozen=True, slots=True)
class _Average:
    """The moving average as a function of this batch's spread: ``offset + slope * std``."""

    offset: dict[str, float]
    slope: float

    @classmethod
    def after(cls, ema: Ema | None) -> _Average:
        """What ``next_ema`` will fold this batch into; the first batch is its own average."""
        if ema is None:
            return cls({"": 0.0, "_seq": 0.0}, 1.0)
        return cls({"": EMA_DECAY * ema.std, "_seq": EMA_DECAY * ema.std_seq}, 1.0 - EMA_DECAY)


def measure(
    logp_NP: FloatArray,
    length_N: IntArray,
    owner_N: IntArray,
    *,
    interval: IntervalKind = "batch",
    resamples: int = 1000,
    ema: Ema | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """The whole family of proxies, each estimate with a 95% interval.

    Args:
        logp_NP: summed log-prob of trace i under prompt j, NaN where it was not scored; equal prompts
            must be one column.
        length_N: tokens of each trace.
        owner_N: column of each trace's true prompt.
        interval: ``batch`` is for these prompts: traces vary, prompts stay. ``population`` is for
            batches of this size from where the prompts were drawn.
        resamples: bootstrap and permutation draws; 0 leaves intervals (but that of the grounded share)
            and p-values out.
        ema: spread of the marginal averaged over earlier steps; this batch is folded in, and the result
            is returned as ``marginal_std_ema`` and ``marginal_std_ema_seq``.
        seed: of the resampling.

    Intervals are left out where the batch cannot tell: of kind ``batch`` with one trace per prompt, of
    kind ``population`` with fewer than three prompts.
    """
    matrix = ScoreMatrix(
        np.asarray(logp_NP, dtype=np.float64),
        np.asarray(length_N, dtype=np.int64),
        np.asarray(owner_N, dtype=np.int64),
    )
    per_trace = trace_statistics(matrix)
    average = _Average.after(ema)
    moments = _moments(per_trace)
    estimates = {name: float(value) for name, value in _metrics(moments, average).items()}
    metrics = estimates | _facts(moments, average, matrix)
    metrics["retrieval_above_chance"] = (
        estimates["retrieval_accuracy"] - metrics["retrieval_chance"]
    )
    metrics |= measure_grounding(matrix, by_prompt=interval == "population")
    if resamples:
        rng = stream("measure", seed)
        if interval == "batch":
            bounds = _batch_intervals(matrix, per_trace, average, estimates, (resamples, rng))
        else:
            bounds = _population_intervals(matrix, average, estimates, (resamples, rng))
        for name, (low, high) in bounds.items():
            metrics[f"{name}_low"], metrics[f"{name}_high"] = low, high
        found = p_values(matrix, np.zeros_like(matrix.owner_N), resamples, rng)
        metrics |= {f"{name}_p_value": value for name, value in found.items()}
    return metrics


def p_values(
    matrix: ScoreMatrix, stratum_N: IntArray, resamples: int, rng: np.random.Generator
) -> dict[str, float]:
    """Chance of ``mi`` and ``retrieval`` this large if traces ignored their prompts.

    Owners are permuted among the traces of each stratum.
    """
    rows = np.arange(len(matrix.owner_N))
    token_NP = score_forms(matrix)[""]
    # The marginal does not depend on who owns a trace, so the matched part decides the rank of MI.
    best_NP = np.nanmax(token_NP, axis=1, keepdims=True) - token_NP <= TIE
    credit_NP = best_NP / best_NP.sum(1, keepdims=True)
    owners_BN = permuted_owners(matrix.owner_N, stratum_N, resamples, rng)
    owners_BN = scored_owners(owners_BN, np.isfinite(token_NP), rng)
    return {
        name: permutation_p_value(
            float(values_NP[rows, matrix.owner_N].mean()), values_NP[rows, owners_BN].mean(1)
        )
        for name, values_NP in (("mi", token_NP), ("retrieval", credit_NP))
    }


def metrics_of(
    per_trace: dict[str, FloatArray], weight_N: FloatArray | None = None
) -> dict[str, FloatArray]:
    """The estimates of a batch from its ``trace_statistics``, traces weighted (weights sum to 1)."""
    return _metrics(_moments(per_trace, weight_N), _Average.after(None))


def next_ema(ema: Ema | None, matrix: ScoreMatrix) -> Ema:
    """Fold this batch's spread of the marginal into the average; the first batch starts it."""
    moments, average = _moments(trace_statistics(matrix)), _Average.after(ema)
    return Ema(
        average.offset[""] + average.slope * float(moments["marginal_std"]),
        average.offset["_seq"] + average.slope * float(moments["marginal_std_seq"]),
    )


def _moments(per_trace: dict[str, FloatArray], weight_N: FloatArray | None = None) -> Moments:
    """Mean of each statistic and the spread of the marginals over traces."""

    def mean(values_N: FloatArray) -> FloatArray:
        return np.asarray(values_N.mean() if weight_N is None else weight_N @ values_N)

    moments = {name: mean(values_N) for name, values_N in per_trace.items()}
    for suffix in ("", "_seq"):
        marginal_N = per_trace[f"marginal{suffix}"]
        moments[f"marginal_std{suffix}"] = np.sqrt(mean((marginal_N - mean(marginal_N)) ** 2))
    return moments


def _metrics(moments: Moments, average: _Average) -> dict[str, FloatArray]:
    """Every estimate that has an interval, of as many batches as the moments describe."""
    metrics: dict[str, FloatArray] = {}
    for suffix, name in (("", "mi_estimate"), ("_seq", "mi_seq_estimate")):
        matched, marginal = moments[f"matched{suffix}"], moments[f"marginal{suffix}"]
        std = moments[f"marginal_std{suffix}"]
        averaged = average.offset[suffix] + average.slope * std
        metrics[name] = matched - marginal
        metrics[f"mi_zscore{suffix}"] = metrics[name] / (std + STD_FLOOR)
        metrics[f"mi_zscore_ema{suffix}"] = metrics[name] / (averaged + STD_FLOOR)
        metrics[f"conditional_entropy{suffix}"] = -matched
        metrics[f"reasoning_entropy{suffix}"] = -marginal
    metrics["retrieval_accuracy"] = moments["recall@1"]
    for k in RECALL_AT:
        metrics[f"retrieval_accuracy@{k}"] = moments[f"recall@{k}"]
    return metrics


def _facts(moments: Moments, average: _Average, matrix: ScoreMatrix) -> dict[str, float]:
    """What is reported without an interval: scores, spreads, chance, bound and counts."""
    traces, prompts = matrix.logp_NP.shape
    facts: dict[str, float] = {}
    for suffix in ("", "_seq"):
        std = float(moments[f"marginal_std{suffix}"])
        facts[f"matched_logprob{suffix}"] = float(moments[f"matched{suffix}"])
        facts[f"marginal_logprob{suffix}"] = float(moments[f"marginal{suffix}"])
        facts[f"marginal_std{suffix}"] = std
        facts[f"marginal_std_ema{suffix}"] = average.offset[suffix] + average.slope * std
    facts["retrieval_chance"] = retrieval_chance(matrix)
    facts["mi_bound"] = float(np.log(prompts))
    facts["num_traces"] = float(traces)
    facts["num_prompts"] = float(prompts)
    return facts


def _batch_intervals(
    matrix: ScoreMatrix,
    per_trace: dict[str, FloatArray],
    average: _Average,
    estimates: dict[str, float],
    draws: tuple[int, np.random.Generator],
) -> dict[str, Interval]:
    """Traces vary within each prompt; the columns stay."""
    linear = _linear(per_trace, average)
    values_NM = np.array([linear[name] for name in estimates]).T
    spread = stratified_spread(values_NM, matrix.owner_N, *draws)
    if spread is None:
        return {}
    return _intervals(spread, estimates, matrix, "batch")


def _population_intervals(
    matrix: ScoreMatrix,
    average: _Average,
    estimates: dict[str, float],
    draws: tuple[int, np.random.Generator],
) -> dict[str, Interval]:
    """Prompts vary, as owners of traces and as columns of the mixture."""
    prompts = matrix.logp_NP.shape[1]
    if prompts < 3:
        return {}
    influence = prompt_influence(matrix, lambda moments: _metrics(moments, average))
    spread = stratified_spread(influence.values_PM, np.zeros(prompts, dtype=np.int64), *draws)
    if spread is None:
        return {}
    kept_M = _kept_once(spread.error_M**2, influence.twice_M, list(estimates))
    error_M = np.sqrt(kept_M) * spread.error_M
    corrected = Spread(error_M, spread.freedom_M, spread.low_M, spread.high_M)
    return _intervals(corrected, estimates, matrix, "population")


def _kept_once(variance_M: FloatArray, twice_M: FloatArray, names: list[str]) -> FloatArray:
    """Share of each variance that is left when what was counted twice is taken out once.

    A z-score is an information over a spread: its share is that of the information.
    """
    kept = {}
    for name, variance, twice in zip(names, variance_M, twice_M, strict=True):
        least = LEAST_SHARE_OF_RETRIEVAL if name.startswith("retrieval") else LEAST_SHARE
        kept[name] = max(1.0 - twice / variance, least) if variance > 0.0 else 1.0
    for name in names:
        if name.startswith("mi_zscore"):
            kept[name] = kept["mi_seq_estimate" if name.endswith("_seq") else "mi_estimate"]
    return np.array([kept[name] for name in names])


def _linear(per_trace: dict[str, FloatArray], average: _Average) -> dict[str, FloatArray]:
    """One value per trace, whose mean moves like each metric: a ratio is replaced by its tangent."""
    metrics: dict[str, FloatArray] = {}
    for suffix, name in (("", "mi_estimate"), ("_seq", "mi_seq_estimate")):
        matched_N, marginal_N = per_trace[f"matched{suffix}"], per_trace[f"marginal{suffix}"]
        information_N, std = matched_N - marginal_N, float(marginal_N.std())
        square_N = (marginal_N - marginal_N.mean()) ** 2
        # The delta method: a std moves like (squares - variance) / (2 std), a / b like (a - (a / b) b') / b.
        widening_N = (square_N - std**2) / (2.0 * std) if std > 0.0 else np.zeros_like(square_N)
        metrics[name] = information_N
        for kind, offset, slope in (
            ("mi_zscore", 0.0, 1.0),
            ("mi_zscore_ema", average.offset[suffix], average.slope),
        ):
            divisor = offset + slope * std + STD_FLOOR
            metrics[f"{kind}{suffix}"] = (
                information_N - information_N.mean() / divisor * slope * widening_N
            ) / divisor
        metrics[f"conditional_entropy{suffix}"] = -matched_N
        metrics[f"reasoning_entropy{suffix}"] = -marginal_N
    metrics["retrieval_accuracy"] = per_trace["recall@1"]
    for k in RECALL_AT:
        metrics[f"retrieval_accuracy@{k}"] = per_trace[f"recall@{k}"]
    return metrics


def _intervals(
    spread: Spread, estimates: dict[str, float], matrix: ScoreMatrix, interval: IntervalKind
) -> dict[str, Interval]:
    """Ends of each metric, by the rule that suits it: a share, an information, or a plain mean."""
    traces, prompts = matrix.logp_NP.shape
    # All right says little about other prompts if there are few, however many traces each has.
    fewest, most = (traces, 2 * traces) if interval == "batch" else (prompts, traces)
    owners = len(np.unique(matrix.owner_N))
    quantile = student_quantile(float(traces - owners if interval == "batch" else prompts - 1))
    bounds: dict[str, Interval] = {}
    for index, (name, value) in enumerate(estimates.items()):
        error = float(spread.error_M[index])
        if name.startswith("retrieval_accuracy"):
            bounds[name] = wilson_interval(value, error, quantile, fewest=fewest, most=most)
            continue
        below, above = float(spread.low_M[index]) * error, float(spread.high_M[index]) * error
        if name == "mi_seq_estimate":
            below = max(below, quantile * _with_unseen(error, value, traces))
        if name.startswith("mi_") and interval == "population":
            above += _towards_zero(value, above)
        bounds[name] = (value - below, value + above)
    for name in ("mi_estimate", "mi_seq_estimate"):
        low, high = bounds[name]
        bounds[name] = (low, max(estimates[name], min(high, float(np.log(prompts)))))
    low, high = bounds["retrieval_accuracy"]
    chance = retrieval_chance(matrix)
    return bounds | {"retrieval_above_chance": (low - chance, high - chance)}


def _with_unseen(error: float, value: float, traces: int) -> float:
    """The error as if one more trace had been seen that tells nothing.

    At the bound nearly all traces tell everything and the rare ones that do not are missing from the
    batch: without this the interval of a batch that has none would have no width.
    """
    return float(np.hypot(error, value / (traces + 1)))


def _towards_zero(value: float, above: float) -> float:
    """What the high end gains where spread shrinks towards an information of 0.

    A batch with little information also shows little spread. On the scale of the square root the spread
    is even; back on the plain scale that adds ``above**2 / (4 * value)``. Half of it, and at most half
    of ``above``, is what the counts of docs/diagnostics/mutual-information.md ask for.
    """
    return min(above, above**2 / (4.0 * value)) / 2.0 if value > 0.0 else above / 2.0
