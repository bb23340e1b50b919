"""The 95% intervals cover the truth of their own kind about 95 times in 100.

``benchmarks/calibration.py`` counts all cases with 1,000 repetitions; here are one case of 1,000 and
a few of 150 each. A share of R repetitions at a coverage between 93% and 97% stays, in 999 of 1,000
trials, within 3.3 standard deviations of that range.
"""

from __future__ import annotations

import math

import pytest

from calibration import COVERED, Design, count_misses, coverage
from tabular_source import TabularSource


def plausible(repetitions: int, low: float = 0.93, high: float = 0.97) -> tuple[float, float]:
    """Shares that intervals of a coverage in [low, high] may show."""

    def slack(share: float) -> float:
        return 3.3 * math.sqrt(share * (1.0 - share) / repetitions)

    return low - slack(low), high + slack(high)


@pytest.mark.parametrize("kind", ["batch", "population"])
@pytest.mark.parametrize(("prompts", "traces", "groundedness"), [(8, 8, 0.3), (16, 4, 0.6)])
def test_intervals_cover_in_a_small_number_of_repetitions(kind, prompts, traces, groundedness):
    source = TabularSource.make(
        prompts=400, vocabulary=4, length=6, groundedness=groundedness, ends=True, seed=1
    )
    design = Design(prompts, traces, repetitions=150, resamples=100, truth_batches=1000)
    found = coverage(source, kind, design)
    low, high = plausible(150)
    for name in COVERED:
        assert low <= found[name].share <= high, (name, found[name])


@pytest.mark.slow
def test_batch_intervals_cover_in_a_thousand_repetitions():
    source = TabularSource.make(prompts=8, vocabulary=4, length=5, groundedness=0.5)
    found = coverage(source, "batch", Design(8, 8, repetitions=1000, resamples=200))
    low, high = plausible(1000)
    for name in COVERED:
        assert low <= found[name].share <= high, (name, found[name])


def test_a_deterministic_source_is_always_covered():
    source = TabularSource.make(prompts=8, groundedness=1.0)
    found = coverage(source, "batch", Design(8, 4, repetitions=20, resamples=50))
    assert {name: one.share for name, one in found.items() if one.share < 1.0} == {}


def test_misses_are_counted_on_their_side():
    ends = [(0.0, 1.0), (2.0, 3.0), (2.5, 3.5), (-2.0, -1.0), (0.5, 0.5)]
    found = [{"mi_estimate_low": low, "mi_estimate_high": high} for low, high in ends]
    one = count_misses("mi_estimate", 0.5, found)
    assert (one.low_misses, one.high_misses, one.repetitions) == (2, 1, 5)
    assert one.share == pytest.approx(2 / 5)
    assert one.width == pytest.approx(4 / 5)


def test_population_truth_is_that_of_the_batch_size():
    """Information at most log P: the mean over batches of 4 prompts is below the source's."""
    source = TabularSource.make(prompts=64, groundedness=0.95)
    design = Design(4, 2, repetitions=2, resamples=50, truth_batches=50)
    found = coverage(source, "population", design)
    assert found["mi_seq_estimate"].truth <= math.log(4)
    assert source.mutual_information > math.log(4)
