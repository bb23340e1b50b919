"""The rollout benchmark lets both sides do equal work, and notices when they do not agree."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.bench import rollout as bench_rollout
from ragen2.bench.rollout import (
    DYNAMIC,
    OURS,
    Generate,
    RolloutSize,
    draw_requests,
    endless_policy,
    engine_of,
    greedy_agreement,
    limit_of,
    logprob_gap,
    rollout_costs,
    timed_in_turn,
    write_ours,
)
from ragen2.errors import ConfigError, ModelError

SIZE = RolloutSize(sequences=6, prompts=2, prompt_tokens=9, new_tokens=12)


@pytest.fixture
def ending(small) -> tuple[object, TemplateTokenizer]:
    """A model to which every token is an end of text."""
    network, tokenizer = small
    every = list(range(network.config.vocab_size))
    network.generation_config.eos_token_id = every
    return network, TemplateTokenizer(tokenizer.hf, every)


@pytest.fixture
def endless(small) -> HFPolicy:
    return endless_policy(*small)


def test_requests_are_whole_groups_of_ordinary_tokens(endless):
    requests = draw_requests(endless, SIZE, 0)
    prompts = [request.prompt_ids_T.tobytes() for request in requests]
    assert len(requests) == 6
    assert {len(request.prompt_ids_T) for request in requests} == {9}
    assert prompts[0] == prompts[1] == prompts[2] != prompts[3] == prompts[4] == prompts[5]
    assert len({request.key for request in requests}) == 6
    used = set(np.concatenate([request.prompt_ids_T for request in requests]).tolist())
    assert not used & set(endless.tokenizer.hf.all_special_ids)


def test_every_round_has_new_prompts(endless):
    first, second = (draw_requests(endless, SIZE, round_)[0] for round_ in (0, 1))
    assert first.prompt_ids_T.tolist() != second.prompt_ids_T.tolist()
    assert first.prompt_ids_T.tolist() == draw_requests(endless, SIZE, 0)[0].prompt_ids_T.tolist()


def test_sequences_that_are_no_whole_groups_are_refused():
    with pytest.raises(ConfigError, match=r"multiple of --prompts, got 6 and 4$"):
        RolloutSize(sequences=6, prompts=4)


def test_a_size_that_the_model_cannot_read_is_refused(endless):
    size = dataclasses.replace(SIZE, new_tokens=250)
    with pytest.raises(ModelError, match=r"reads 256 tokens, but 9 \+ 250 were asked for"):
        draw_requests(endless, size, 0)


def test_no_end_of_text_ends_a_completion_on_either_side(ending):
    policy = endless_policy(*ending)
    requests = draw_requests(policy, SIZE, 0)
    assert {len(one.ids_T) for one in write_ours(policy, requests, 12)} == {12}
    written = Generate(policy.network, torch.float32)(requests, 12)
    assert [ids.shape for ids in written] == [(12,)] * 6
    assert policy.network.generation_config.eos_token_id  # only the copy forgets it


def test_a_completion_that_ends_early_is_not_timed(ending):
    policy = HFPolicy(*ending)
    with pytest.raises(AssertionError, match=r"ours wrote \[1\] tokens instead of 12"):
        write_ours(policy, draw_requests(policy, SIZE, 0), 12)


def test_samplers_take_turns_on_the_same_requests(endless):
    calls = []
    ways = {name: lambda requests, name=name: calls.append((name, requests)) for name in "ab"}
    costs = timed_in_turn(endless, ways, SIZE, 2)
    assert [name for name, _ in calls] == ["a", "b"] * 3
    assert all(calls[n][1] is calls[n + 1][1] for n in (0, 2, 4))
    assert len({requests[0].prompt_ids_T.tobytes() for _, requests in calls}) == 3
    assert [len(cost.repeats) for cost in costs.values()] == [2, 2]


def test_tokens_per_second_are_those_of_the_median_run(endless, monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 12.0, 20.0, 24.0, 30.0, 33.0])  # 9 the first time, then 2, 4, 3
    monkeypatch.setattr(bench_rollout.time, "perf_counter", lambda: next(clock))
    cost = timed_in_turn(endless, {"a": list}, SIZE, 3)["a"]
    assert (cost.first_seconds, cost.repeats, cost.seconds) == (9.0, (2.0, 4.0, 3.0), 3.0)
    assert cost.tokens_per_second == 6 * 12 / 3.0


def test_both_samplers_are_timed_on_a_cpu(endless):
    costs = rollout_costs(endless, SIZE, repeats=1)
    assert list(costs) == [OURS, DYNAMIC]
    assert all(cost.seconds > 0 for cost in costs.values())


def test_log_probs_of_the_sampler_are_those_of_a_forward_pass(endless):
    found = logprob_gap(endless, SIZE)
    assert 0 <= found.mean <= found.largest < 1e-4


def test_a_sampler_whose_log_probs_are_off_is_found_out(endless, monkeypatch):
    def off(policy, requests, tokens):
        written = write_ours(policy, requests, tokens)
        return [dataclasses.replace(one, logprobs_T=one.logprobs_T + 0.25) for one in written]

    monkeypatch.setattr(bench_rollout, "write_ours", off)
    found = logprob_gap(endless, SIZE)
    assert found.mean == pytest.approx(0.25, abs=1e-4)
    assert found.largest == pytest.approx(0.25, abs=1e-4)


def test_greedy_tokens_are_those_of_generate(endless):
    found = greedy_agreement(endless, SIZE)
    assert (found.sequences, found.equal_sequences) == (6, 6)
    assert (found.equal_ratio, found.margin) == (1.0, 0.0)


def test_a_greedy_token_that_differs_is_counted_from_its_place(endless, monkeypatch):
    def off(policy, requests, tokens, *, greedy):
        first, *rest = write_ours(policy, requests, tokens, greedy=greedy)
        ids_T = first.ids_T.copy()
        ids_T[3] = (ids_T[3] + 1) % policy.network.config.vocab_size
        return [dataclasses.replace(first, ids_T=ids_T), *rest]

    monkeypatch.setattr(bench_rollout, "write_ours", off)
    found = greedy_agreement(endless, SIZE)
    assert found.equal_sequences == 5
    assert found.equal_ratio == pytest.approx((5 * 12 + 3) / (6 * 12))
    assert found.margin > 1e-3


def test_the_limit_is_for_the_mean_length_of_the_cache(endless):
    limit = limit_of(endless, SIZE, 1e9)
    shape = endless.network.config
    a_token = 2 * shape.num_hidden_layers * shape.hidden_size * 4  # as many key heads as heads
    assert limit.cache_bytes == (9 + 12 / 2) * a_token
    assert limit.weight_bytes == 4 * sum(p.numel() for p in endless.network.parameters())


def test_an_engine_that_is_not_ours_is_named_with_the_reason(small):
    plain = endless_policy(*small, engine="plain")
    assert engine_of(plain) == "plain, because the plain path was asked for"
