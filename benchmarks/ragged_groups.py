"""Count how often intervals cover on groups of unequal size, and across batches of another size.

python benchmarks/ragged_groups.py results/ragged_groups.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ragen2.diagnostics import measure
from ragen2.seeding import stream
from ragen2.types import FloatArray, IntArray, ScoreMatrix
from tabular_source import TabularSource

SIZES = np.array([1, 2, 2, 4, 4, 8, 8, 16])
"""Traces of each prompt."""
LEVELS = (0.1, 0.3, 0.6, 0.9)
REPEATS = 1000
DRAWS = 200
TRUTHS = 5000
"""Batches whose mean is the truth where there is no exact one."""
METRICS = ("mi_estimate", "mi_seq_estimate")
Draw = Callable[[np.random.Generator], ScoreMatrix]


def information(source: TabularSource, share_P: FloatArray) -> float:
    """I(X;Z) in nats per trace when prompts come with these shares."""
    mixture_S = source.probability_SP @ share_P
    with np.errstate(divide="ignore", invalid="ignore"):
        gain_SP = source.probability_SP * (source.logp_SP - np.log(mixture_S)[:, None])
    return float(np.where(source.probability_SP > 0.0, gain_SP, 0.0).sum(0) @ share_P)


def ragged(
    source: TabularSource, prompts: IntArray, size_P: IntArray, rng: np.random.Generator
) -> ScoreMatrix:
    """A batch with as many traces of each prompt as asked for."""
    whole = source.sample(int(size_P.max()), rng, prompts)
    place_N = np.arange(len(whole.owner_N)) % size_P.max()
    kept_N = place_N < size_P[whole.owner_N]
    return ScoreMatrix(whole.logp_NP[kept_N], whole.length_N[kept_N], whole.owner_N[kept_N])


def mean_of(draw: Draw, name: str, rng: np.random.Generator, **settings: str) -> float:
    """What endless batches give on average."""
    return float(np.mean([found(draw(rng), 0, **settings)[name] for _ in range(TRUTHS)]))


def found(matrix: ScoreMatrix, resamples: int, **settings: str) -> dict[str, float]:
    """All proxies of a batch."""
    return measure(matrix.logp_NP, matrix.length_N, matrix.owner_N, resamples=resamples, **settings)


def coverage(
    draw: Draw, truths: dict[str, float], rng: np.random.Generator, name: str = "", **settings: str
) -> dict[str, float]:
    """Share of intervals that hold each truth; of one metric, if it is named."""
    hits = dict.fromkeys(truths, 0)
    for _ in range(REPEATS):
        one = found(draw(rng), DRAWS, **settings)
        for truth, value in truths.items():
            metric = name or truth
            # At the bound log P the end and the truth are the same number but for rounding.
            hits[truth] += one[f"{metric}_low"] - 1e-9 <= value <= one[f"{metric}_high"] + 1e-9
    return {truth: count / REPEATS for truth, count in hits.items()}


def main() -> None:
    """Count, print and write."""
    rows: dict[str, dict[str, object]] = {}
    for level in LEVELS:
        source = TabularSource.make(prompts=64, groundedness=level, length=4)
        rng = stream("ragged groups", level)

        def fixed(rng: np.random.Generator, source: TabularSource = source) -> ScoreMatrix:
            return ragged(source, np.arange(8), SIZES, rng)

        def drawn(rng: np.random.Generator, source: TabularSource = source) -> ScoreMatrix:
            sizes = rng.permutation(np.tile(SIZES, 2))
            return ragged(source, rng.permutation(64)[:16], sizes, rng)

        def equal(
            rng: np.random.Generator, prompts: int, source: TabularSource = source
        ) -> ScoreMatrix:
            return source.sample(8, rng, rng.permutation(64)[:prompts])

        exact = information(source.only(range(8)), SIZES / SIZES.sum())
        of_these = {"mi_estimate": mean_of(fixed, "mi_estimate", rng, prior="empirical")}
        of_these["mi_seq_estimate"] = exact
        of_others = {name: mean_of(drawn, name, rng, prior="empirical") for name in METRICS}
        sizes = {
            str(count): mean_of(lambda rng, n=count: equal(rng, n), "retrieval_accuracy", rng)
            for count in (8, 32)
        }
        rows[str(level)] = {
            "information": exact,
            "mean_estimate": mean_of(fixed, "mi_seq_estimate", rng, prior="empirical"),
            "batch": coverage(fixed, of_these, rng, prior="empirical"),
            "population": coverage(drawn, of_others, rng, prior="empirical", interval="population"),
            "retrieval_by_prompts": sizes,
            "retrieval_of_8_covers": coverage(
                lambda rng: equal(rng, 8), sizes, rng, "retrieval_accuracy", interval="population"
            ),
        }
        print(level, rows[str(level)], flush=True)
    Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
