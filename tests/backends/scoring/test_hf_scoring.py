"""Scoring: shared contexts and chunks are only quicker; the numbers are those of plain forwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ragen2.backends.learner import logprobs
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.policy import Pair, Request, SamplingParams
from ragen2.scoring import Trace, cross_score
from ragen2.types import FloatArray, IntArray

PLAY = SamplingParams(max_tokens=64)


@pytest.fixture(scope="module")
def traces(policy: HFPolicy, lake_prompts: list[IntArray]) -> list[Trace]:
    """Two sampled replies for each of six lakes, of different lengths."""
    requests = [Request(prompt, (i,)) for i, prompt in enumerate(lake_prompts * 2)]
    completions = policy.sample(requests, PLAY)
    assert len({len(completion.ids_T) for completion in completions}) > 3
    return [
        Trace(request.prompt_ids_T, completion.ids_T)
        for request, completion in zip(requests, completions, strict=True)
    ]


@pytest.fixture(scope="module")
def pairs(traces: list[Trace], lake_prompts: list[IntArray]) -> list[Pair]:
    """Every reply under every lake."""
    return [Pair(prompt, trace.reasoning_ids_T) for trace in traces for prompt in lake_prompts]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_with_shared_contexts_are_those_of_plain_forwards(
    policy: HFPolicy,
    pairs: list[Pair],
    forward_logprobs: Callable[..., FloatArray],
    temperature: float,
) -> None:
    for pair, score in zip(pairs, policy.score(pairs, temperature), strict=True):
        wanted = forward_logprobs(
            policy.network, pair.context_ids_T, pair.continuation_ids_T, temperature
        )
        np.testing.assert_allclose(score, wanted, atol=1e-4)


def test_the_order_of_pairs_changes_nothing(policy: HFPolicy, pairs: list[Pair]) -> None:
    forwards, backwards = policy.score(pairs), policy.score(pairs[::-1])[::-1]
    for one, two in zip(forwards, backwards, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 60])
def test_chunks_of_any_size_give_the_same_scores(
    policy: HFPolicy, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    whole = policy.score(pairs)
    monkeypatch.setattr(policy.scorer, "max_tokens", tokens)
    monkeypatch.setattr(logprobs, "MAX_LOGITS", 512 * tokens)
    for one, two in zip(policy.score(pairs), whole, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


def test_the_scorer_agrees_with_what_the_sampler_said(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    requests = [Request(prompt, ("agree", i)) for i, prompt in enumerate(lake_prompts)]
    completions = policy.sample(requests, replace(PLAY, temperature=0.9))
    scores = policy.score(
        [Pair(r.prompt_ids_T, c.ids_T) for r, c in zip(requests, completions, strict=True)], 0.9
    )
    for completion, score in zip(completions, scores, strict=True):
        np.testing.assert_allclose(score, completion.logprobs_T, atol=1e-4)


def test_cross_scores_are_sums_of_plain_forwards(
    policy: HFPolicy,
    traces: list[Trace],
    lake_prompts: list[IntArray],
    forward_logprobs: Callable[..., FloatArray],
) -> None:
    matrix = cross_score(traces, policy)
    assert matrix is not None
    assert matrix.logp_NP.shape == (12, 6)
    assert matrix.owner_N.tolist() == [*range(6), *range(6)]
    for row, trace in enumerate(traces):
        for column, prompt in enumerate(lake_prompts):
            wanted = forward_logprobs(policy.network, prompt, trace.reasoning_ids_T).sum()
            assert matrix.logp_NP[row, column] == pytest.approx(wanted, abs=1e-3)


def test_grounded_reasoning_is_likeliest_under_its_own_lake(
    policy: HFPolicy, traces: list[Trace]
) -> None:
    matrix = cross_score(traces, policy)
    assert matrix is not None
    assert matrix.logp_NP.argmax(1).tolist() == matrix.owner_N.tolist()


def test_no_pairs_have_no_scores(policy: HFPolicy) -> None:
    assert policy.score([]) == []


@pytest.mark.parametrize(("context", "continuation"), [([], [4]), ([4], [])])
def test_a_pair_with_an_empty_side_is_an_error(
    policy: HFPolicy, context: list[int], continuation: list[int]
) -> None:
    pair = Pair(np.array(context, dtype=np.int64), np.array(continuation, dtype=np.int64))
    with pytest.raises(ValueError, match="pair 0 has an empty context or continuation"):
        policy.score([pair])
