"""The grounded share: exact ranks, planted mixtures, pooling, and what a batch could have shown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.diagnostics import measure
from ragen2.diagnostics.metrics.grounding import (
    RankCounts,
    _ranks_of_grounded,
    counts_of_ranks,
    detectable_share,
    grounded_by_prompt,
    grounded_share,
    recorded_counts,
    traces_to_detect,
)
from ragen2.types import ScoreMatrix


def normal_scores(rng, prompts, traces, share, strength=3.0):
    """Scores of traces of which ``share`` prefer their own prompt by ``strength`` deviations."""
    owner_N = np.repeat(np.arange(prompts), traces)
    logp_NP = rng.normal(size=(len(owner_N), prompts)) - 50.0
    is_grounded_N = rng.random(len(owner_N)) < share
    logp_NP[np.arange(len(owner_N)), owner_N] += strength * is_grounded_N
    return ScoreMatrix(logp_NP, np.full(len(owner_N), 10), owner_N)


def measured(matrix, **settings):
    return measure(matrix.logp_NP, matrix.length_N, matrix.owner_N, resamples=0, **settings)


@pytest.mark.parametrize("prompts", [2, 3, 8, 40])
def test_ranks_of_grounded_traces_are_those_of_a_shifted_normal_score(prompts):
    edges = (*(rank for rank in (1, 2, 4, 8, 16, 32) if rank < prompts), prompts)
    ranks_MB = _ranks_of_grounded(prompts, edges)
    assert ranks_MB.sum(1) == pytest.approx(1.0)
    own_N = np.random.default_rng(0).normal(1.0, 1.0, 40_000)
    others = np.random.default_rng(1).normal(size=(40_000, prompts - 1))
    rank_N = 1 + (others > own_N[:, None]).sum(1)
    seen_B = np.diff([(rank_N <= last).mean() for last in edges], prepend=0.0)
    assert ranks_MB[0] == pytest.approx(seen_B, abs=0.01)
    assert ranks_MB[-1].tolist() == [1.0] + [0.0] * (len(edges) - 1)


def test_ties_share_their_ranks():
    counts = counts_of_ranks(np.array([0, 1]), np.array([4, 1]), 4)
    assert counts == RankCounts(4, (1, 2, 4), (0.25, 1.25, 0.5))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("strength", [1.5, 3.0])
def test_intervals_cover_planted_shares(share, strength):
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(40):
        found = measured(normal_scores(rng, 12, 6, share, strength))
        covered += found["grounded_share_low"] <= share + 1e-9
        covered += share - 1e-9 <= found["grounded_share_high"]
    assert covered >= 77, "of 80 ends, 2.5% would miss"


def test_prompts_that_tell_the_same_are_still_told_from_the_others():
    # Eight prompts, four directions: the own prompt is always first or second, by a coin flip.
    owner_N = np.repeat(np.arange(8), 8)
    same_NP = owner_N[:, None] % 4 == np.arange(8) % 4
    found = measured(ScoreMatrix(np.where(same_NP, -5.0, -9.0), np.full(64, 5), owner_N))
    assert found["retrieval_accuracy"] == 0.5
    assert found["grounded_share"] == 1.0
    assert found["grounded_share_low"] >= 0.8


def test_steps_are_pooled():
    rng = np.random.default_rng(0)
    steps = [recorded_counts(measured(normal_scores(rng, 8, 2, 0.3, 2.0))) for _ in range(20)]
    alone = [grounded_share([one]) for one in steps]
    together = grounded_share(steps)
    assert np.median([one.low for one in alone]) == 0.0
    assert 0.0 < together.low <= 0.3 <= together.high < 0.75
    assert detectable_share(steps) < 0.2 < detectable_share(steps[:1])


def test_batches_of_other_sizes_are_pooled_too():
    rng = np.random.default_rng(0)
    sizes = [(4, 4), (8, 4), (16, 2), (3, 5)] * 5
    steps = [recorded_counts(measured(normal_scores(rng, *size, 0.5))) for size in sizes]
    found = grounded_share(steps)
    assert found.low <= 0.5 <= found.high
    assert found.high - found.low < 0.35


def test_recorded_metrics_give_the_counts_back():
    matrix = normal_scores(np.random.default_rng(0), 40, 3, 0.5)
    found = measured(matrix)
    counts = recorded_counts(found)
    assert counts.edges == (1, 2, 4, 8, 16, 32, 40)
    assert counts.traces == pytest.approx(120)
    again = grounded_share([counts])
    assert again.share == found["grounded_share"]
    assert again.low == pytest.approx(found["grounded_share_low"])


def test_records_of_earlier_versions_have_fewer_bins():
    found = measured(normal_scores(np.random.default_rng(0), 40, 3, 0.5))
    old = {name: value for name, value in found.items() if not name.endswith(("@16", "@32"))}
    assert recorded_counts(old).edges == (1, 2, 4, 8, 40)


@pytest.mark.parametrize("metrics", [{}, {"retrieval_chance": 1.0, "retrieval_accuracy": 1.0}])
def test_where_nothing_was_compared_there_are_no_counts(metrics):
    assert recorded_counts(metrics) is None


def test_one_prompt_has_no_grounded_share():
    one = measure(np.full((3, 1), -5.0), np.full(3, 5), np.zeros(3, dtype=int))
    assert not [name for name in one if name.startswith("grounded")]


def test_nothing_is_known_without_a_trace():
    assert grounded_share([]).low == 0.0
    assert grounded_share([]).high == 1.0


def test_a_larger_batch_shows_a_smaller_share():
    batch = RankCounts(8, (1, 2, 4, 8), (4.0, 4.0, 8.0, 16.0))
    needed = traces_to_detect([batch], 0.25)
    assert needed > batch.traces
    enough = RankCounts(8, batch.edges, tuple(one * needed / 32.0 for one in batch.counts))
    assert detectable_share([enough]) <= 0.25 < detectable_share([batch])


def test_a_population_interval_counts_prompts_not_traces():
    # Half of the prompts are grounded in all their traces: another draw of prompts has another share.
    rng = np.random.default_rng(0)
    matrix = normal_scores(rng, 12, 12, 0.0)
    logp_NP = matrix.logp_NP.copy()
    grounded = matrix.owner_N < 6
    logp_NP[grounded, matrix.owner_N[grounded]] += 8.0
    by_trace = measured(ScoreMatrix(logp_NP, matrix.length_N, matrix.owner_N))
    by_prompt = measured(
        ScoreMatrix(logp_NP, matrix.length_N, matrix.owner_N), interval="population"
    )
    assert by_prompt["grounded_share_low"] < by_trace["grounded_share_low"] - 0.1
    assert by_prompt["grounded_share_high"] > by_trace["grounded_share_high"] + 0.05
    assert by_trace["grounded_prompts"] == 0.5


def test_prompts_without_grounded_reasoning_are_named():
    matrix = normal_scores(np.random.default_rng(1), 8, 8, 0.0)
    logp_NP = matrix.logp_NP.copy()
    grounded = matrix.owner_N < 5
    logp_NP[grounded, matrix.owner_N[grounded]] += 8.0
    share_P = grounded_by_prompt(ScoreMatrix(logp_NP, matrix.length_N, matrix.owner_N))
    assert (share_P[:5] > 0.9).all()
    assert (share_P[5:] < 0.5).all()


@given(
    counts=st.lists(st.floats(0.0, 50.0), min_size=4, max_size=4).filter(lambda one: sum(one) > 0.1)
)
def test_the_estimate_lies_in_its_interval(counts):
    found = grounded_share([RankCounts(8, (1, 2, 4, 8), tuple(counts))])
    assert 0.0 <= found.low <= found.share <= found.high <= 1.0
