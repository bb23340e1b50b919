"""Sampling: exact log-probs, streams of their own, and the cuts a user may ask for."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ragen2.backends.sampling.hf import HFPolicy, _PlainDecodeLoop
from ragen2.backends.settings import EngineChoice
from ragen2.errors import RunError
from ragen2.policy import Request, SamplingParams
from ragen2.types import Completion, Finish, FloatArray, IntArray, Message

FREE = SamplingParams(max_tokens=24, stop=())
"""Nothing but an end of message or the limit stops the writing."""
PLAY = SamplingParams(max_tokens=64)


@pytest.fixture(scope="module", params=["auto", "plain"])
def policy(request: pytest.FixtureRequest, embedded: Any) -> HFPolicy:
    """The embedded model played by our engine, and by Hugging Face's own code."""
    made = HFPolicy(*embedded, engine=request.param)
    assert isinstance(made.engine, str) == (request.param == "plain")
    return made


def asked(prompts: Sequence[IntArray], *key: int | str) -> list[Request]:
    """One request a prompt, each with its own stream."""
    return [Request(prompt, (*key, index)) for index, prompt in enumerate(prompts)]


@torch.no_grad()
def next_logp(network: Any, ids: IntArray, temperature: float = 1.0) -> FloatArray:
    """Log-probs of every token after ``ids``."""
    logits = network(input_ids=torch.tensor(ids)[None]).logits[0, -1].double()
    return torch.log_softmax(logits / temperature, dim=-1).numpy()


def greedy(network: Any, prompt: IntArray, count: int) -> list[int]:
    """The likeliest token, ``count`` times, by plain forward passes."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(next_logp(network, np.array(ids)).argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_logprobs_are_those_of_a_plain_forward_at_the_same_temperature(
    policy: HFPolicy,
    lake_prompts: list[IntArray],
    forward_logprobs: Callable[..., FloatArray],
    temperature: float,
) -> None:
    requests = asked(lake_prompts * 3, "logprobs")
    completions = policy.sample(requests, replace(PLAY, temperature=temperature))
    for request, completion in zip(requests, completions, strict=True):
        wanted = forward_logprobs(
            policy.network, request.prompt_ids_T, completion.ids_T, temperature
        )
        np.testing.assert_allclose(completion.logprobs_T, wanted, atol=1e-4)


def test_cutting_the_choice_leaves_logprobs_of_the_whole_distribution(
    policy: HFPolicy, lake_prompts: list[IntArray], forward_logprobs: Callable[..., FloatArray]
) -> None:
    request = Request(lake_prompts[0], ("cut",))
    (completion,) = policy.sample([request], replace(FREE, top_k=3, top_p=0.8))
    wanted = forward_logprobs(policy.network, request.prompt_ids_T, completion.ids_T)
    np.testing.assert_allclose(completion.logprobs_T, wanted, atol=1e-4)


def test_a_key_gives_the_same_completion_whatever_else_is_in_the_batch(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    requests = asked(lake_prompts * 2, "company")
    together = policy.sample(requests, PLAY)
    backwards = policy.sample(requests[::-1], PLAY)[::-1]
    alone = [policy.sample([request], PLAY)[0] for request in requests]
    for one, two, three in zip(together, backwards, alone, strict=True):
        assert one.text == two.text == three.text
        assert one.ids_T.tolist() == two.ids_T.tolist() == three.ids_T.tolist()
        assert one.finish is two.finish is three.finish


def test_a_limit_on_the_batch_changes_nothing(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    requests = asked(lake_prompts, "limit")
    narrow = HFPolicy(policy.network, policy.tokenizer, max_batch=4, engine=policy.engine_choice)
    one, two = policy.sample(requests, PLAY), narrow.sample(requests, PLAY)
    assert [c.ids_T.tolist() for c in one] == [c.ids_T.tolist() for c in two]


def test_members_of_a_group_write_different_things(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    requests = [Request(lake_prompts[0], ("group", luck)) for luck in range(8)]
    assert len({completion.text for completion in policy.sample(requests, PLAY)}) > 4


def test_the_same_call_twice_gives_the_same_bits(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    requests = asked(lake_prompts, "twice")
    for one, two in zip(policy.sample(requests, PLAY), policy.sample(requests, PLAY), strict=True):
        assert one.ids_T.tolist() == two.ids_T.tolist()
        assert one.logprobs_T.tolist() == two.logprobs_T.tolist()


def test_no_requests_give_no_completions(policy: HFPolicy) -> None:
    assert policy.sample([], PLAY) == []


def written_before_the_end(completion: Completion, policy: HFPolicy) -> str:
    """The text without its last token."""
    return policy.tokenizer.decode(completion.ids_T[:-1].tolist())


def test_writing_stops_with_the_token_that_completes_a_stop_string(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    completions = policy.sample(asked(lake_prompts * 4, "stop"), PLAY)
    assert {completion.finish for completion in completions} == {Finish.STOP}
    assert len({len(completion.ids_T) for completion in completions}) > 3
    for completion in completions:
        assert completion.text.endswith("</answer>")
        assert "</answer>" not in written_before_the_end(completion, policy)


def test_a_stop_string_may_run_over_several_tokens(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    stop = "nk><ans"
    assert len(policy.tokenizer.encode(stop)) > 1
    completions = policy.sample(asked(lake_prompts, "long stop"), replace(PLAY, stop=("#", stop)))
    for completion in completions:
        assert completion.finish is Finish.STOP
        assert stop in completion.text
        assert stop not in written_before_the_end(completion, policy)


def test_an_end_of_message_ends_the_writing_and_is_kept_as_a_token(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    params = replace(FREE, max_tokens=64)
    completions = policy.sample(asked(lake_prompts * 4, "eos"), params)
    assert {completion.finish for completion in completions} == {Finish.EOS}
    for completion in completions:
        assert completion.ids_T[-1] in policy.tokenizer.eos_ids
        assert not policy.tokenizer.eos_ids & set(completion.ids_T[:-1].tolist())
        assert "<|im_end|>" not in completion.text


def test_the_token_limit_cuts(policy: HFPolicy, lake_prompts: list[IntArray]) -> None:
    for completion in policy.sample(asked(lake_prompts, "cut"), replace(PLAY, max_tokens=5)):
        assert (len(completion.ids_T), completion.finish) == (5, Finish.LENGTH)


def test_an_end_at_the_very_limit_is_an_end_not_a_cut(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    request = Request(lake_prompts[0], ("exact",))
    (whole,) = policy.sample([request], replace(FREE, max_tokens=64))
    (exact,) = policy.sample([request], replace(FREE, max_tokens=len(whole.ids_T)))
    assert (exact.text, exact.finish) == (whole.text, Finish.EOS)


@pytest.mark.parametrize(
    "params",
    [
        replace(FREE, top_k=1, temperature=3.0),
        replace(FREE, top_p=1e-6),
        replace(FREE, temperature=0.001),
    ],
)
def test_the_narrowest_choice_is_the_likeliest_token(
    policy: HFPolicy, lake_prompts: list[IntArray], params: SamplingParams
) -> None:
    (completion,) = policy.sample([Request(lake_prompts[1], ("greedy",))], params)
    count = len(completion.ids_T)
    assert completion.ids_T.tolist() == greedy(policy.network, lake_prompts[1], count)


@pytest.fixture(scope="module")
def short_prompt(lake_prompts: list[IntArray]) -> IntArray:
    """The end of a prompt: 4000 copies of it are quickly read."""
    return lake_prompts[0][-6:]


def first_tokens(policy: HFPolicy, prompt: IntArray, params: SamplingParams) -> Counter[int]:
    """How often each token is drawn first, over 2000 streams."""
    requests = [Request(prompt, ("first", draw)) for draw in range(2000)]
    completions = policy.sample(requests, replace(params, max_tokens=1))
    return Counter(int(completion.ids_T[0]) for completion in completions)


def worst_deviation(counts: Counter[int], probabilities: FloatArray) -> float:
    """Greatest distance of a count from its mean, in standard deviations."""
    total = sum(counts.values())
    return max(
        abs(counts[token] - total * p) / math.sqrt(total * p * (1 - p) + 1e-9)
        for token, p in enumerate(probabilities)
        if total * p > 5
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_the_softmax_at_the_temperature_says(
    policy: HFPolicy, short_prompt: IntArray, temperature: float
) -> None:
    probabilities = np.exp(next_logp(policy.network, short_prompt, temperature))
    counts = first_tokens(policy, short_prompt, replace(FREE, temperature=temperature))
    assert worst_deviation(counts, probabilities) < 4.0


def test_top_k_draws_from_the_k_likeliest_in_their_proportions(
    policy: HFPolicy, short_prompt: IntArray
) -> None:
    probabilities = np.exp(next_logp(policy.network, short_prompt))
    likeliest = np.argsort(-probabilities)[:3]
    kept = np.zeros_like(probabilities)
    kept[likeliest] = probabilities[likeliest] / probabilities[likeliest].sum()
    counts = first_tokens(policy, short_prompt, replace(FREE, top_k=3))
    assert set(counts) == set(likeliest.tolist())
    assert worst_deviation(counts, kept) < 4.0


def test_top_p_draws_from_the_smallest_set_that_reaches_the_mass(
    policy: HFPolicy, short_prompt: IntArray
) -> None:
    probabilities = np.exp(next_logp(policy.network, short_prompt))
    order = np.argsort(-probabilities)
    needed = int(np.searchsorted(np.cumsum(probabilities[order]), 0.7)) + 1
    assert 1 < needed < 20
    counts = first_tokens(policy, short_prompt, replace(FREE, top_p=0.7))
    assert set(counts) == set(order[:needed].tolist())


def test_a_draw_next_to_one_still_gives_a_token_that_may_be_chosen(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    params = replace(FREE, top_k=2, max_tokens=8)
    with torch.no_grad():
        decoder = _PlainDecodeLoop(policy, [Request(lake_prompts[0], ("edge",))], params)
        decoder.uniforms[:] = np.nextafter(1.0, 0.0)
        (completion,) = decoder.run()
    ids = lake_prompts[0]
    for token in completion.ids_T:
        assert token in np.argsort(-next_logp(policy.network, ids))[:2]
        ids = np.append(ids, token)


def second_turn(
    policy: HFPolicy, requests: list[Request], replies: list[Completion]
) -> list[Request]:
    """What play asks for after these replies: everything before, and a user's words."""
    return [
        Request(
            np.concatenate(
                [
                    request.prompt_ids_T,
                    reply.ids_T,
                    policy.tokenizer.bridge(
                        Message("user", f"turn {index}"), after_eos=reply.finish is Finish.EOS
                    ),
                ]
            ),
            ("second", index),
        )
        for index, (request, reply) in enumerate(zip(requests, replies, strict=True))
    ]


def test_a_second_turn_has_the_logprobs_of_a_plain_forward(
    policy: HFPolicy, lake_prompts: list[IntArray], forward_logprobs: Callable[..., FloatArray]
) -> None:
    requests = asked(lake_prompts * 3, "first turn")
    for _ in range(3):
        completions = policy.sample(requests, PLAY)
        for request, completion in zip(requests, completions, strict=True):
            wanted = forward_logprobs(policy.network, request.prompt_ids_T, completion.ids_T)
            np.testing.assert_allclose(completion.logprobs_T, wanted, atol=1e-4)
        requests = second_turn(policy, requests, completions)[1:]


def test_a_second_turn_writes_the_same_in_a_policy_that_did_not_write_the_first(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    first = asked(lake_prompts * 2, "memory")
    requests = second_turn(policy, first, policy.sample(first, PLAY))
    continued = policy.sample(requests, PLAY)
    again = HFPolicy(policy.network, policy.tokenizer, engine=policy.engine_choice)
    fresh = again.sample(requests, PLAY)
    assert [c.ids_T.tolist() for c in continued] == [c.ids_T.tolist() for c in fresh]


def test_a_second_turn_of_the_plain_path_reads_only_what_is_new(
    embedded: Any, lake_prompts: list[IntArray]
) -> None:
    policy = HFPolicy(*embedded, engine="plain")
    first = asked(lake_prompts, "what is new")
    requests = second_turn(policy, first, policy.sample(first, PLAY))
    widths: list[int] = []

    def note(module: Any, args: Any, given: dict[str, torch.Tensor]) -> None:
        widths.append(given["input_ids"].shape[1])

    hook = policy.network.register_forward_pre_hook(note, with_kwargs=True)
    policy.sample(requests, PLAY)
    hook.remove()
    assert widths[0] < 20 < min(len(request.prompt_ids_T) for request in requests)


@pytest.mark.parametrize("choice", ["auto", "plain"])
def test_a_second_turn_after_an_update_does_not_use_what_old_weights_made(
    small: Any, forward_logprobs: Callable[..., FloatArray], choice: EngineChoice
) -> None:
    policy = HFPolicy(*small, engine=choice)
    first = asked([np.arange(20, 50), np.arange(60, 80)], "update")
    requests = second_turn(policy, first, policy.sample(first, FREE))
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.mul_(0.9)
    for request, completion in zip(requests, policy.sample(requests, FREE), strict=True):
        wanted = forward_logprobs(policy.network, request.prompt_ids_T, completion.ids_T)
        np.testing.assert_allclose(completion.logprobs_T, wanted, atol=1e-4)


def test_weights_that_are_not_numbers_end_in_one_line(
    policy: HFPolicy, lake_prompts: list[IntArray]
) -> None:
    broken = copy.deepcopy(policy.network)
    with torch.no_grad():
        next(broken.parameters()).fill_(math.nan)
    with pytest.raises(RunError, match=r"^the model's output is not a number; .+$"):
        HFPolicy(broken, policy.tokenizer, engine=policy.engine_choice).sample(
            asked(lake_prompts[:2], "broken"), FREE
        )
