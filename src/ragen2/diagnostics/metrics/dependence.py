"""How many prompts and traces are enough: the proxies of smaller batches drawn out of one.

Every proxy depends on the size of the batch. MI is at most log P, retrieval gets harder with every
rival, and both are noisier with fewer traces. Values of batches of different size do not compare; this
shows by how much. Shape letters: N traces, P prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ragen2.diagnostics.metrics.mutual_information import measure, metrics_of
from ragen2.diagnostics.statistics.inputs import score_matrix
from ragen2.diagnostics.statistics.jackknife import trace_statistics
from ragen2.diagnostics.statistics.resampling import LEVEL
from ragen2.errors import ConfigError
from ragen2.seeding import stream
from ragen2.types import FloatArray, IntArray, ScoreMatrix

METRICS = (
    "mi_estimate",
    "mi_seq_estimate",
    "conditional_entropy",
    "reasoning_entropy",
    "retrieval_accuracy",
)


@dataclass(frozen=True, slots=True)
class DependenceRow:
    """One proxy of batches of one size: its mean over draws and where 95% of such batches lie."""

    prompts: int
    traces: int
    """Traces of each prompt."""
    metric: str
    mean: float
    low: float
    high: float


def dependence(
    logp_NP: FloatArray,
    length_N: IntArray,
    owner_N: IntArray,
    prompts: Sequence[int] | None = None,
    traces: Sequence[int] | None = None,
    draws: int = 200,
    seed: int = 0,
) -> list[DependenceRow]:
    """Proxies against the number of prompts and of traces per prompt, by subsampling one large batch.

    Args:
        logp_NP: as in ``measure``, with every pair scored.
        length_N: as in ``measure``.
        owner_N: as in ``measure``.
        prompts: sizes to try; powers of two up to all when left out.
        traces: traces per prompt to try; as many as every prompt has when left out.
        draws: batches of each size.
        seed: of the draws.

    Batches drawn out of one overlap, which makes them too alike; the ends are moved out by the share of
    prompts they have in common. All prompts together cannot be drawn twice: there the ends are those of
    ``measure`` with ``interval="population"``.
    """
    matrix = score_matrix(logp_NP, length_N, owner_N)
    if np.isnan(matrix.logp_NP).any():
        raise ConfigError(
            "dependence needs every pair scored, but logp_NP holds NaN; score them all"
        )
    counts_P = np.bincount(matrix.owner_N, minlength=matrix.logp_NP.shape[1])
    sizes = _sizes(prompts, int((counts_P > 0).sum()))
    each = sorted(set(traces or [int(counts_P[counts_P > 0].min())]))
    rows: list[DependenceRow] = []
    for num_prompts, num_traces in product(sizes, each):
        enough = np.flatnonzero(counts_P >= num_traces)
        if num_traces < 1 or num_prompts > len(enough):
            raise ConfigError(
                f"{num_prompts} prompts of {num_traces} traces cannot be drawn: {len(enough)} prompts "
                "have as many; take smaller numbers"
            )
        rng = stream("dependence", seed, num_prompts, num_traces)
        batches = [_draw(matrix, enough, (num_prompts, num_traces), rng) for _ in range(draws)]
        rows += _rows(batches, (num_prompts, num_traces), num_prompts / len(enough), seed)
    return rows


def enough_prompts(
    rows: Sequence[DependenceRow], metric: str = "mi_estimate", share: float = 0.1
) -> int | None:
    """Fewest prompts at which half the interval is at most ``share`` of what the metric can reach.

    Read at the largest number of traces per prompt. An MI can reach log P, retrieval 1. None when no size
    in ``rows`` is enough.
    """
    if not metric.startswith(("mi_", "retrieval_")):
        raise ConfigError(
            f"{metric} has no bound to compare with; take an MI or a retrieval metric"
        )
    asked = [row for row in rows if row.metric == metric]
    if not asked:
        raise ConfigError(f"no row is about {metric}; there are {sorted({r.metric for r in rows})}")
    most = max(row.traces for row in asked)
    for row in sorted(asked, key=lambda row: row.prompts):
        bound = math.log(row.prompts) if metric.startswith("mi_") else 1.0
        if row.traces == most and (row.high - row.low) / 2.0 <= share * bound:
            return row.prompts
    return None


def _sizes(prompts: Sequence[int] | None, available: int) -> list[int]:
    if available < 2:
        raise ConfigError(f"dependence needs traces of 2 prompts at least, got {available}")
    if prompts is None:
        powers = [2**power for power in range(1, available.bit_length())]
        return sorted({*(size for size in powers if size <= available), available})
    if not prompts or min(prompts) < 2:
        raise ConfigError(f"prompts must hold sizes of 2 and more, got {list(prompts)}")
    return sorted(set(prompts))


def _draw(
    matrix: ScoreMatrix, enough: IntArray, size: tuple[int, int], rng: np.random.Generator
) -> ScoreMatrix:
    """A batch of some prompts and of some traces of each; their columns go along."""
    chosen = rng.permutation(enough)[: size[0]]
    rows = np.concatenate(
        [rng.permutation(np.flatnonzero(matrix.owner_N == one))[: size[1]] for one in chosen]
    )
    return ScoreMatrix(
        matrix.logp_NP[np.ix_(rows, chosen)],
        matrix.length_N[rows],
        np.repeat(np.arange(size[0]), size[1]),
    )


def _rows(
    batches: list[ScoreMatrix], size: tuple[int, int], overlap: float, seed: int
) -> list[DependenceRow]:
    found = [metrics_of(trace_statistics(batch)) for batch in batches]
    mean = {name: float(np.mean([one[name] for one in found])) for name in METRICS}
    if overlap < 1.0:
        tail = 50.0 * (1.0 - LEVEL)
        ends = {
            name: np.percentile([one[name] for one in found], [tail, 100.0 - tail])
            for name in METRICS
        }
        # Drawing a share f without replacement leaves 1 - f of the variance (finite population correction).
        apart = 1.0 / math.sqrt(1.0 - overlap)
        return [
            DependenceRow(
                *size, name, mean[name], *_ends(name, mean[name], size[0], apart * around)
            )
            for name, around in ((name, ends[name] - mean[name]) for name in METRICS)
        ]
    whole = batches[0]
    found_whole = measure(
        whole.logp_NP, whole.length_N, whole.owner_N, interval="population", seed=seed
    )
    return [
        DependenceRow(
            *size, name, found_whole[name], found_whole[f"{name}_low"], found_whole[f"{name}_high"]
        )
        for name in METRICS
        if f"{name}_low" in found_whole
    ]


def _ends(metric: str, mean: float, prompts: int, around: FloatArray) -> tuple[float, float]:
    """Ends at these distances from the mean, within what the metric can reach."""
    low, high = mean + min(0.0, float(around[0])), mean + max(0.0, float(around[1]))
    if metric.startswith("retrieval_"):
        return max(0.0, low), min(1.0, high)
    return low, min(high, math.log(prompts)) if metric.startswith("mi_") else high
