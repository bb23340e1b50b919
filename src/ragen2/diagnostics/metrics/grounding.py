"""The grounded share: how many reasoning traces carry information about their prompt.

Of each trace only the rank of its own prompt counts, among the prompts that it was scored under. A trace that
ignores its prompt has every rank with the same chance, whatever the scores look like. A grounded one prefers
its own prompt: its rank is that of a normal score of mean mu among P - 1 of mean 0. Several strengths mu are
mixed with free weights, because traces differ in how much they say. With share s the chance of rank r is

    (1 - s) / P  +  s sum_m w_m h_m(r)

The interval has all s whose profile likelihood, maximised over w, is near the maximum; the estimate is the
smallest that is very near. The weakest strength is the definition of grounded: such a trace prefers its own
prompt to another in three of four cases. Below it nothing tells "all traces, hardly" from "none".

Ranks of several batches add up, so steps are pooled by giving them together.

Shape letters: S shares, M strengths, B bins of ranks, P prompts, X points of an integral.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ragen2.diagnostics.statistics.jackknife import RECALL_AT, credit, rivals, score_forms
from ragen2.types import FloatArray, IntArray, ScoreMatrix

RANKS = (1, 2, 4, 8, 16, 32)
"""Last rank of each bin but the last bin, which has the rest."""
LEAST_CHANCE, MOST_TRACES = 1e-9, 1e9
"""Of a record that can be believed; the chance is one over its prompts."""
STRENGTHS = (1.0, 1.5, 2.0, 3.0, math.inf)
"""Means mu of grounded traces; infinity has its own prompt first, always."""
SHARES_S = np.linspace(0.0, 1.0, 51)
ITERATIONS = 300
"""Of expectation and maximisation: more move the ends of no interval by a step of ``SHARES_S``."""
DROP = 2.7
"""Loss of log-likelihood up to which a share is in the interval: the 98% point of chi-squared (half of 5.4),
which covers in 95% of cases where the estimate lies at an end of the range or the strengths are off."""
SPARING = 0.2
"""Loss of log-likelihood up to which a smaller share is the estimate: weakly grounded traces can nearly
stand for ungrounded ones, and where both explain the ranks the likeliest share is too large by a tenth."""
REACH_X = np.linspace(-8.0, 12.0, 1001)
"""Where the normal densities are summed: beyond, less than 1e-14 of them lies."""
TINY = 1e-300
FEWEST_FITTED = 3
"""Other traces of its prompt that wording must be compared with for a lack of likeness to say anything:
with two, 9 of 200 healthy logs of 16 x 4 had none to show (benchmarks/grounded_share.py)."""


@dataclass(frozen=True, slots=True)
class RankCounts:
    """How many traces of a batch have their own prompt at which rank."""

    prompts: int
    edges: tuple[int, ...]
    """Last rank of each bin, the last being ``prompts``."""
    counts: tuple[float, ...]
    """Traces of each bin; ties are shared, so these need not be whole."""

    @property
    def traces(self) -> float:
        """All of them."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class GroundedShare:
    """An estimate with its 95% interval."""

    share: float
    low: float
    high: float


def rank_edges(prompts: int, ranks: tuple[int, ...] = RANKS) -> tuple[int, ...]:
    """Last rank of each bin among so many prompts."""
    return (*(rank for rank in ranks if rank < prompts), prompts)


def counts_of_ranks(better_N: IntArray, tied_N: IntArray, prompts: int) -> RankCounts:
    """Of traces with so many prompts ahead of their own, and so many level with it (itself included)."""
    edges = rank_edges(prompts)
    within = [credit(better_N, tied_N, last).sum() for last in edges]
    return RankCounts(prompts, edges, tuple(np.diff(within, prepend=0.0).tolist()))


def rank_counts(matrix: ScoreMatrix) -> RankCounts:
    """Those of a batch of at least two prompts."""
    counts = _ranks(matrix)[2]
    if counts is None:
        raise ValueError("the traces were scored under one prompt; ranks need two at least")
    return counts


def recorded_counts(metrics: Mapping[str, float]) -> RankCounts | None:
    """Those behind recorded metrics (names without prefix); None where nothing was compared.

    Records of earlier versions stop at rank 8: they have fewer bins.
    """
    chance, traces = metrics.get("retrieval_chance", 1.0), metrics.get("num_traces", 0.0)
    prompts = round(1.0 / chance) if chance > LEAST_CHANCE else 1
    if prompts < 2 or not 1.0 <= traces < MOST_TRACES or "retrieval_accuracy" not in metrics:
        return None
    known = {1: metrics["retrieval_accuracy"]}
    known |= {k: metrics[name] for k in RANKS[1:] if (name := f"retrieval_accuracy@{k}") in metrics}
    edges = rank_edges(prompts, tuple(known))
    within = [*(min(1.0, max(0.0, known[last])) for last in edges[:-1]), 1.0]
    counts = np.maximum(np.diff(within, prepend=0.0), 0.0) * traces
    return RankCounts(prompts, edges, tuple(counts.tolist()))


def grounded_share(batches: Iterable[RankCounts], *, inflation: float = 1.0) -> GroundedShare:
    """The share over all batches together; without a trace nothing is known.

    ``inflation`` is how many times as much the ranks vary as those of independent traces would.
    """
    return _interval(_fit(_pooled(batches))[0], DROP * inflation)


def strengths(batches: Iterable[RankCounts]) -> FloatArray:
    """The weights of ``STRENGTHS`` at the best share: how grounded the grounded traces are."""
    profile_S, weight_SM = _fit(_pooled(batches))
    return np.asarray(weight_SM[_best(profile_S)])


def share_of_strength(batches: Iterable[RankCounts], weight_M: FloatArray) -> GroundedShare:
    """The share of traces as grounded as ``strengths`` says, if the others are not at all."""
    profile_S = np.zeros(len(SHARES_S))
    for one in _pooled(batches):
        ranks_B = weight_M @ _ranks_of_grounded(one.prompts, one.edges)
        chance_SB = (1.0 - SHARES_S[:, None]) * _null(one) + SHARES_S[:, None] * ranks_B
        profile_S += np.log(np.maximum(chance_SB, TINY)) @ np.array(one.counts)
    return _interval(profile_S, DROP)


def detectable_share(batches: Iterable[RankCounts]) -> float:
    """The smallest share that would have shown: high end of the interval if no trace were grounded."""
    uniform = tuple(
        RankCounts(one.prompts, one.edges, tuple((_null(one) * one.traces).tolist()))
        for one in _pooled(batches)
    )
    return grounded_share(uniform).high


def high_with_unseen(high: float, num_fitted: float) -> float:
    """High end for traces that were compared with ``num_fitted`` other traces of each prompt.

    A grounded trace is recognised if one of those is grounded too. Where each is with chance s, that is
    seen of a share ``s (1 - (1 - s)^n)``. With fewer than ``FEWEST_FITTED`` nothing can be ruled out.
    """
    if num_fitted < FEWEST_FITTED:
        return 1.0
    seen_S = SHARES_S * (1.0 - (1.0 - SHARES_S) ** num_fitted)
    return float(np.interp(high, seen_S, SHARES_S))


def allow_for_unseen(metrics: Mapping[str, float], num_fitted: int) -> dict[str, float]:
    """The share of ``measure`` as comparing wording can know it (see ``high_with_unseen``)."""
    names = ("grounded_share_high", "grounded_share_detectable")
    return {"fitted_traces": float(num_fitted)} | {
        name: high_with_unseen(metrics[name], num_fitted) for name in names if name in metrics
    }


def traces_to_detect(batches: Sequence[RankCounts], share: float) -> float:
    """How many traces of these prompts it takes for ``share`` to show."""
    factor = 1.0
    while detectable_share([_times(one, factor) for one in batches]) > share:
        factor *= 1.25
    return factor * sum(one.traces for one in batches)


def measure_grounding(matrix: ScoreMatrix, *, by_prompt: bool) -> dict[str, float]:
    """The grounded share of traces and of prompts, and the ranks that it is read off.

    ``by_prompt``: the interval is for other prompts, so that traces of one prompt count as one draw.
    """
    better_N, tied_N, counts = _ranks(matrix)
    if counts is None:
        return {}
    inflation = _clustering(credit(better_N, tied_N, 1), matrix.owner_N) if by_prompt else 1.0
    found = grounded_share([counts], inflation=inflation)
    of_prompt_P = grounded_by_prompt(matrix)
    further = [rank for rank in RANKS if max(RECALL_AT) < rank < counts.prompts]
    return {
        "grounded_share": found.share,
        "grounded_share_low": found.low,
        "grounded_share_high": found.high,
        "grounded_share_detectable": detectable_share([counts]),
        "grounded_prompts": float((of_prompt_P[np.isfinite(of_prompt_P)] >= 0.5).mean()),
    } | {f"retrieval_accuracy@{k}": float(credit(better_N, tied_N, k).mean()) for k in further}


def grounded_by_prompt(
    matrix: ScoreMatrix, share: float | None = None, weight_M: FloatArray | None = None
) -> FloatArray:
    """How much of each prompt's reasoning is grounded, by the ranks of its traces; NaN where it has none.

    ``share`` and the weights of its strengths are those of a whole period; left out, of this batch.
    """
    better_N, tied_N, counts = _ranks(matrix)
    if counts is None:
        return np.full(matrix.logp_NP.shape[1], np.nan)
    profile_S, weight_SM = _fit((counts,))
    best = _best(profile_S)
    of_all = float(SHARES_S[best]) if share is None else share
    weights = weight_SM[best] if weight_M is None else weight_M
    grounded_B = of_all * (weights @ _ranks_of_grounded(counts.prompts, counts.edges))
    chance_B = grounded_B / np.maximum(grounded_B + (1.0 - of_all) * _null(counts), TINY)
    within_NB = np.stack([credit(better_N, tied_N, last) for last in counts.edges], axis=1)
    chance_N = np.diff(within_NB, axis=1, prepend=0.0) @ chance_B
    traces_P = np.bincount(matrix.owner_N, minlength=matrix.logp_NP.shape[1])
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(matrix.owner_N, chance_N, minlength=len(traces_P)) / traces_P)


def retrieval_chance(matrix: ScoreMatrix) -> float:
    """Retrieval of traces that ignore their prompt: one in the prompts each was scored under."""
    return float((1.0 / np.isfinite(matrix.logp_NP).sum(1)).mean())


def _ranks(matrix: ScoreMatrix) -> tuple[IntArray, IntArray, RankCounts | None]:
    """Prompts ahead of each trace's own, those level with it, and the counts; none for a single prompt."""
    better_NP, tied_NP = rivals(score_forms(matrix)[""], matrix.owner_N)
    better_N, tied_N = better_NP.sum(1), tied_NP.sum(1)
    prompts = round(1.0 / retrieval_chance(matrix))
    return better_N, tied_N, counts_of_ranks(better_N, tied_N, prompts) if prompts > 1 else None


def _clustering(hit_N: FloatArray, owner_N: IntArray) -> float:
    """Variance of a mean over whole prompts, over that of independent traces (Kish's design effect)."""
    around_N = hit_N - hit_N.mean()
    total = float((around_N**2).sum())
    return max(1.0, float((np.bincount(owner_N, around_N) ** 2).sum()) / total) if total else 1.0


def _times(batch: RankCounts, factor: float) -> RankCounts:
    return RankCounts(batch.prompts, batch.edges, tuple(factor * one for one in batch.counts))


def _pooled(batches: Iterable[RankCounts]) -> tuple[RankCounts, ...]:
    """One for each number of prompts, their ranks added up."""
    totals: dict[tuple[int, tuple[int, ...]], FloatArray] = {}
    for one in batches:
        key = (one.prompts, one.edges)
        totals[key] = totals.get(key, 0.0) + np.array(one.counts)
    return tuple(RankCounts(*key, tuple(found.tolist())) for key, found in totals.items())


def _interval(profile_S: FloatArray, drop: float) -> GroundedShare:
    """Ends lie where the profile crosses the least likelihood, between two of the shares that were tried."""
    least = float(profile_S.max()) - drop
    inside = np.flatnonzero(profile_S >= least)
    best = float(SHARES_S[_best(profile_S)])

    def end(last: int, beyond: int) -> float:
        if not 0 <= beyond < len(SHARES_S):
            return float(SHARES_S[last])
        part = (profile_S[last] - least) / (profile_S[last] - profile_S[beyond])
        return float(SHARES_S[last] + part * (SHARES_S[beyond] - SHARES_S[last]))

    return GroundedShare(best, end(inside[0], inside[0] - 1), end(inside[-1], inside[-1] + 1))


def _best(profile_S: FloatArray) -> int:
    """Place of the estimate: the smallest share that is nearly as likely as the likeliest."""
    return int(np.flatnonzero(profile_S >= profile_S.max() - SPARING)[0])


@lru_cache(maxsize=256)
def _fit(batches: tuple[RankCounts, ...]) -> tuple[FloatArray, FloatArray]:
    """Log-likelihood of each share at its best weights of the strengths, and these weights."""
    data = [
        (np.array(one.counts), _null(one), _ranks_of_grounded(one.prompts, one.edges))
        for one in batches
    ]
    share_S1 = SHARES_S[:, None]
    weight_SM = np.full((len(SHARES_S), len(STRENGTHS)), 1.0 / len(STRENGTHS))
    profile_S = np.zeros(len(SHARES_S))
    for turn in range(ITERATIONS + 1):
        claimed_SM = np.zeros_like(weight_SM)
        for counts_B, null_B, ranks_MB in data:
            chance_SB = (1.0 - share_S1) * null_B + share_S1 * (weight_SM @ ranks_MB)
            if turn == ITERATIONS:
                profile_S += np.log(np.maximum(chance_SB, TINY)) @ counts_B
            else:
                claimed_SM += weight_SM * ((counts_B / np.maximum(chance_SB, TINY)) @ ranks_MB.T)
        if turn < ITERATIONS:
            weight_SM = claimed_SM / np.maximum(claimed_SM.sum(1, keepdims=True), TINY)
    return profile_S, weight_SM


def _null(batch: RankCounts) -> FloatArray:
    """Chance of each bin for a trace that ignores its prompt."""
    return np.diff(batch.edges, prepend=0) / batch.prompts


@lru_cache(maxsize=256)
def _ranks_of_grounded(prompts: int, edges: tuple[int, ...]) -> FloatArray:
    """Chance of each bin of ranks for a grounded trace, one row per strength.

    ``P(rank <= k) = integral of phi(x - mu) P(Binomial(P - 1, 1 - Phi(x)) < k) dx``.
    """
    ahead_X = np.array([0.5 * math.erfc(x / math.sqrt(2.0)) for x in REACH_X])
    with np.errstate(divide="ignore"):
        log_ahead_X, log_behind_X = np.log(ahead_X), np.log1p(-ahead_X)
    below_X = np.zeros_like(ahead_X)
    within_BX = []
    for rank in range(edges[-2] if len(edges) > 1 else 0):
        ways = math.lgamma(prompts) - math.lgamma(rank + 1) - math.lgamma(prompts - rank)
        below_X = below_X + np.exp(ways + rank * log_ahead_X + (prompts - 1 - rank) * log_behind_X)
        if rank + 1 in edges:
            within_BX.append(below_X)
    step = REACH_X[1] - REACH_X[0]
    rows = []
    for strength in STRENGTHS:
        if math.isinf(strength):
            rows.append([1.0] + [0.0] * (len(edges) - 1))
            continue
        density_X = np.exp(-0.5 * (REACH_X - strength) ** 2) * step / math.sqrt(2.0 * math.pi)
        within = [float(density_X @ one_X) for one_X in within_BX]
        rows.append(np.diff([0.0, *within, 1.0]).tolist())
    return np.array(rows)
