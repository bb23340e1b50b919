"""The periods of a run or a log: cut where grounding changes, each judged by all its steps together.

A single step has few traces. Steps between two change-points are one population: the ranks of their traces
add up, and the last period is the present.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ragen2.diagnostics.base import StepMetrics
from ragen2.diagnostics.judging.regime import GROUNDED, HALF, Entropies, Regime, name_regime
from ragen2.diagnostics.metrics.collapse import main_scope
from ragen2.diagnostics.metrics.grounding import (
    FEWEST_FITTED,
    RANKS,
    GroundedShare,
    RankCounts,
    detectable_share,
    grounded_share,
    high_with_unseen,
    rank_edges,
    recorded_counts,
    share_of_strength,
    strengths,
    traces_to_detect,
)
from ragen2.types import FloatArray

FEWEST_STEPS = 3
"""Measured steps of a period in a run of twelve or more: single steps are too few traces to judge."""
SMALLEST_CHANGE = 0.1
"""Change of the mean credit (0 at chance, 1 when perfect) that is worth a cut."""
EVIDENCE = 6.0
"""Squared z-score that a cut needs beyond 2 log T, the price of having looked at T places."""
ONE_SIDED = (
    "with so few replies per prompt, wording can show that reasoning is about its prompt, but not that it "
    "is not: log at least 6 per prompt, or pass --model"
)
NOISE_OF_VARIETY = 0.1
"""Variance counted for "this step is diverse": one odd step is no cut, three in a row are."""


@dataclass(frozen=True, slots=True)
class Period:
    """Some steps in a row, pooled."""

    first_step: int
    last_step: int
    since: int
    """First step of the first period of the unbroken line of those in the same regime."""
    regime: Regime
    share: float
    low: float
    high: float
    detectable: float
    """Smallest grounded share that these steps would have shown."""
    num_traces: int
    num_prompts: int
    """In the largest of its steps."""
    num_steps: int
    """Measured ones."""
    as_at: tuple[int, int] | None = None
    """First and last step of the longest grounded period before: the share is of traces as grounded as
    those were. None where there was none, or where all that are grounded are as much so."""
    strengths: tuple[float, ...] = ()
    """Weights of ``grounding.STRENGTHS`` in the traces that the share counts."""
    num_fitted: float | None = None
    """Without a model: other traces of its prompt that each was compared with; 0 where only the words of
    the prompt were."""

    @property
    def text(self) -> str:
        """The share with its interval, and what could have been seen, in one sentence."""
        steps = f"{self.num_steps} steps" if self.num_steps > 1 else "1 step"
        return (
            f"{self.what} (95% {self.low:.0%} to {self.high:.0%}); the "
            f"{self.num_traces} traces of {steps}, {self.num_prompts} prompts each, would have shown "
            f"{self.detectable:.0%}"
        ) + (f"; {ONE_SIDED}" if self.is_one_sided else "")

    @property
    def what(self) -> str:
        """The share in words."""
        if self.as_at is None:
            return f"{self.share:.0%} of reasoning traces are about their prompt"
        first, last = self.as_at
        at = f"steps {first} to {last}" if last > first else f"step {first}"
        return f"{self.share:.0%} of reasoning traces are as much about their prompt as at {at}"

    @property
    def traces_needed(self) -> int:
        """About how many traces of so many prompts tell a half from none, rounded up to two digits.

        Twice as many as there are at least, since those did not do.
        """
        edges = rank_edges(self.num_prompts)
        even = np.diff(edges, prepend=0) / self.num_prompts * self.num_traces
        known = RankCounts(self.num_prompts, edges, tuple(even.tolist()))
        needed = max(traces_to_detect([known], HALF), 2.0 * self.num_traces)
        unit = 10 ** max(0, math.floor(math.log10(needed)) - 1)
        return int(math.ceil(needed / unit) * unit)

    @property
    def is_one_sided(self) -> bool:
        """Whether nothing was seen where only dependence could have been."""
        few = self.num_fitted is not None and self.num_fitted < FEWEST_FITTED
        return few and self.low <= 0.0


JUDGED_BY = frozenset(
    {"num_traces", "fitted_traces", "retrieval_chance", "retrieval_accuracy"}
    | {"conditional_entropy_seq", "reasoning_entropy_seq"}
    | {f"retrieval_accuracy@{rank}" for rank in RANKS}
)
"""Names, without prefix, of all metrics that a period is made of."""


class _Measured(NamedTuple):
    step: int
    counts: RankCounts
    entropies: Entropies
    num_fitted: float | None


def periods(records: Sequence[StepMetrics], scope: str | None = None) -> list[Period]:
    """The periods of all measured steps, oldest first; empty where none was measured.

    ``scope`` is one of reasoning, such as ``first_turn``; left out, the one that a run is judged by.
    """
    chosen = scope or main_scope({name for record in records for name in record.metrics})
    measured = [one for record in records if (one := _measured(record, chosen)) is not None]
    if not measured:
        return []
    cuts = sorted(
        {0, len(measured)}
        | change_points(*_credits(measured), smallest=SMALLEST_CHANGE)
        | change_points(_diverse(measured), NOISE_OF_VARIETY, smallest=0.5)
    )
    found: list[Period] = []
    grounded: list[_Measured] = []
    for start, end in pairwise(cuts):
        part = measured[start:end]
        found.append(_period(part, found[-1] if found else None, grounded))
        longest = sum(one.counts.traces for one in grounded)
        if found[-1].regime in GROUNDED and found[-1].num_traces > longest:
            grounded = part
    return found


def change_points(values_T: FloatArray, variance: float, *, smallest: float) -> set[int]:
    """Places before which the mean changes by at least ``smallest``, more than noise would have it.

    Binary segmentation: the best place of all, then the best of each side. Parts have at least
    ``FEWEST_STEPS`` values, fewer in short series.
    """
    fewest = min(FEWEST_STEPS, max(1, len(values_T) // 4))
    least = 2.0 * math.log(max(len(values_T), 2)) + EVIDENCE
    found: set[int] = set()
    waiting = [(0, len(values_T))]
    while waiting:
        start, end = waiting.pop()
        part_T = values_T[start:end]
        if len(part_T) < 2 * fewest:
            continue
        before_T = np.arange(1, len(part_T))
        left_T = np.cumsum(part_T)[:-1] / before_T
        right_T = (part_T.sum() - np.cumsum(part_T)[:-1]) / (len(part_T) - before_T)
        error_T = np.sqrt(variance * (1.0 / before_T + 1.0 / (len(part_T) - before_T)))
        change_T = np.abs(left_T - right_T)
        evidence_T = np.where(change_T >= smallest, (change_T / np.maximum(error_T, 1e-12)) ** 2, 0)
        evidence_T[: fewest - 1] = evidence_T[len(evidence_T) - fewest + 1 :] = 0.0
        best = int(evidence_T.argmax())
        if evidence_T[best] > least:
            place = start + best + 1
            found.add(place)
            waiting += [(start, place), (place, end)]
    return found


def _measured(record: StepMetrics, scope: str) -> _Measured | None:
    prefix = f"collapse/{scope}/"
    plain = {
        name.removeprefix(prefix): value
        for name, value in record.metrics.items()
        if name.startswith(prefix)
    }
    counts = recorded_counts(plain)
    if counts is None:
        return None
    return _Measured(record.step, counts, Entropies.of(plain), plain.get("fitted_traces"))


def _credits(measured: Sequence[_Measured]) -> tuple[FloatArray, float]:
    """Mean of ``(recall@k - k / P) / (1 - k / P)`` over k at each step, and its variance.

    The variance is that of independent traces or, if more, what successive steps differ by.
    """
    values, variances = [], []
    for one in measured:
        edges, prompts, traces = one.counts.edges[:-1], one.counts.prompts, one.counts.traces
        within = np.cumsum(one.counts.counts)[:-1] / traces
        chance = np.array(edges) / prompts
        values.append(float(((within - chance) / (1.0 - chance)).mean()))
        # One more hit and one more miss: a perfect step is not one without noise.
        hits = (within[0] * traces + 1.0) / (traces + 2.0)
        variances.append(hits * (1.0 - hits) / traces / (1.0 - chance[0]) ** 2)
    values_T = np.array(values)
    # 1.4826 times the median size of differences is their deviation; they vary twice as much as values.
    seen = (1.4826 * _usual(np.abs(np.diff(values_T)))) ** 2 / 2.0
    return values_T, max(float(np.mean(variances)), seen)


def _usual(differences_T: FloatArray) -> float:
    """The median; of two the smaller, and of one none: that one may be the change that is looked for."""
    if len(differences_T) < 2:
        return 0.0
    return float(differences_T.min() if len(differences_T) == 2 else np.median(differences_T))


def _diverse(measured: Sequence[_Measured]) -> FloatArray:
    return np.array([float(one.entropies.is_diverse) for one in measured])


def _period(
    measured: Sequence[_Measured], before: Period | None, grounded: Sequence[_Measured]
) -> Period:
    """``grounded`` is the longest of the grounded periods before, if there was one."""
    counts = [one.counts for one in measured]
    found, detectable = grounded_share(counts), detectable_share(counts)
    fitted = min((one.num_fitted for one in measured if one.num_fitted is not None), default=None)
    if fitted is not None:
        found = GroundedShare(found.share, found.low, high_with_unseen(found.high, fitted))
        detectable = high_with_unseen(detectable, fitted)
    as_at, weight_M = None, strengths(counts)
    if grounded:
        before_M = strengths([one.counts for one in grounded])
        likewise = share_of_strength(counts, before_M)
        if likewise.high < found.high:
            found, weight_M = likewise, before_M
            as_at = (grounded[0].step, grounded[-1].step)
    named = name_regime(found, Entropies.median([one.entropies for one in measured]))
    first = measured[0].step
    return Period(
        first_step=first,
        last_step=measured[-1].step,
        since=before.since if before is not None and before.regime is named else first,
        regime=named,
        share=found.share,
        low=found.low,
        high=found.high,
        detectable=detectable,
        num_traces=round(sum(one.traces for one in counts)),
        num_prompts=max(one.prompts for one in counts),
        num_steps=len(measured),
        as_at=as_at,
        strengths=tuple(weight_M.tolist()),
        num_fitted=fitted,
    )
