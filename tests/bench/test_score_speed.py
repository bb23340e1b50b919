"""The scoring benchmark compares equal work, and counts what really goes through the model."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.scripted import ByteTokenizer
from ragen2.bench.score import compare, expert_traces, measured_on, naive_score
from ragen2.envs import FrozenLake
from ragen2.policy import Pair

CONTEXTS = [np.arange(5, 25), np.arange(30, 50)]
WORDS = [np.array([7, 8, 9]), np.array([7, 8, 6]), np.array([5, 5, 5])]
PAIRS = [Pair(context, words) for context in CONTEXTS for words in WORDS]


@pytest.fixture
def tiny(small) -> HFPolicy:
    return HFPolicy(*small)


def test_tokens_are_counted_where_they_enter_the_model(tiny):
    found = compare(tiny, PAIRS, repeats=2)
    assert found.naive.tokens == 6 * 23
    assert found.ours.tokens == 2 * (20 + 7)  # one tree of 3 + 1 + 3 tokens
    assert len(found.ours.repeats) == len(found.naive.repeats) == 2
    assert found.speedup == found.naive.seconds / found.ours.seconds
    assert found.difference == found.timed_difference < 1e-4


def test_a_share_of_the_naive_work_is_scaled_up_to_all_of_it(tiny):
    found = compare(tiny, PAIRS, repeats=1, naive_pairs=3)
    assert found.naive_ratio == 0.5
    assert found.naive.tokens == 6 * 23


def test_naive_scores_are_those_of_plain_forwards(tiny, forward_logprobs):
    ragged = [*PAIRS, Pair(np.array([9]), np.array([4, 5, 6, 7, 8]))]
    for pair, score in zip(ragged, naive_score(tiny.network, ragged, 0.6, rows=4), strict=True):
        wanted = forward_logprobs(tiny.network, pair.context_ids_T, pair.continuation_ids_T, 0.6)
        np.testing.assert_allclose(score, wanted, atol=1e-5)


def test_the_figures_say_what_they_were_measured_on(tiny):
    found = measured_on(tiny)
    assert set(found) == {"device", "threads", "torch", "transformers", "way"}
    assert found["way"] == "score_by_trees"


@pytest.mark.parametrize(("prompts", "traces"), [(8, 64), (64, 64), (3, 7)])
def test_traces_are_dealt_evenly_over_distinct_prompts(prompts, traces):
    made = expert_traces(FrozenLake(), ByteTokenizer(), prompts=prompts, traces=traces)
    owners = Counter(trace.prompt_ids_T.tobytes() for trace in made)
    assert len(made) == traces
    assert len(owners) == prompts
    assert max(owners.values()) - min(owners.values()) <= 1
    pairs = {(t.prompt_ids_T.tobytes(), t.reasoning_ids_T.tobytes()) for t in made}
    assert len(pairs) == traces


def test_the_same_sizes_give_the_same_batch():
    one, two = (expert_traces(FrozenLake(), ByteTokenizer(), prompts=4, traces=8) for _ in range(2))
    assert [t.reasoning_ids_T.tolist() for t in one] == [t.reasoning_ids_T.tolist() for t in two]
