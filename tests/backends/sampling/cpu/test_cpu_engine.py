"""The CPU engine writes what Hugging Face's own forward pass says, over turns, batches and updates."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from ragen2.backends.decoder import Decoder, describe_decoder
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.sampling.cpu import engine as cpu
from ragen2.backends.sampling.cpu import engine as cpu_batch
from ragen2.backends.sampling.cpu.engine import CPUEngine
from ragen2.backends.sampling.cpu.forward import CPUForward
from ragen2.backends.sampling.hf import HFPolicy, _PlainDecodeLoop
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.errors import RunError
from ragen2.policy import Request, SamplingParams
from ragen2.types import Completion, Finish, FloatArray, IntArray

SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS = {
    "llama, own head": LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "llama, a head each": LlamaConfig(
        **(SHAPE | {"num_key_value_heads": 4}), tie_word_embeddings=True
    ),
    "llama3 rotation": LlamaConfig(**SHAPE, rope_parameters=STRETCHED),
    "qwen2, biases": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3, wide heads": Qwen3Config(**SHAPE, head_dim=24, tie_word_embeddings=False),
    "one key-value head": LlamaConfig(**(SHAPE | {"num_key_value_heads": 1})),
}
PLAY = SamplingParams(max_tokens=64)
FREE = SamplingParams(max_tokens=16, stop=())


@pytest.fixture(params=CONFIGS)
def network(request: pytest.FixtureRequest) -> Any:
    """A random model in which every weight counts: norms, biases and all."""
    made = AutoModelForCausalLM.from_config(CONFIGS[request.param]).float().eval()
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, generator=numbers)
            parameter.copy_(noise * 0.2 if parameter.ndim > 1 else 1.0 + 0.3 * noise)
    return made


def engine_of(network: Any, tokenizer: TemplateTokenizer) -> CPUEngine:
    decoder = describe_decoder(network)
    assert isinstance(decoder, Decoder)
    return CPUEngine(decoder, tokenizer)


@pytest.fixture
def engine(embedded: tuple[Any, TemplateTokenizer]) -> CPUEngine:
    """A fresh engine over the embedded model."""
    return engine_of(*embedded)


def asked(prompts: list[IntArray], *key: int | str) -> list[Request]:
    return [Request(prompt, (*key, index)) for index, prompt in enumerate(prompts)]


def random_prompts(*lengths: int, start: int = 0, seed: int = 0) -> list[IntArray]:
    """Prompts of random ids; the first ``start`` ids of all are the same."""
    rng = np.random.default_rng(seed)
    head = rng.integers(5, 512, start)
    return [np.concatenate([head, rng.integers(5, 512, n - start)]) for n in lengths]


def continued(
    requests: list[Request],
    found: list[Completion],
    turn: int,
    lengths: tuple[int, ...] = (5, 9, 7),
) -> list[Request]:
    """The next turn: all before, and new words of different lengths."""
    rng = np.random.default_rng(turn)
    return [
        Request(
            np.concatenate(
                [
                    request.prompt_ids_T,
                    completion.ids_T,
                    rng.integers(5, 260, lengths[index % len(lengths)]),
                ]
            ),
            ("turn", turn, index),
        )
        for index, (request, completion) in enumerate(zip(requests, found, strict=True))
    ]


def ids_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.ids_T.tolist() for completion in completions]


def assert_exact(
    network: Any,
    requests: list[Request],
    found: list[Completion],
    forward_logprobs: Callable[..., FloatArray],
    temperature: float = 1.0,
    atol: float = 5e-5,
) -> None:
    """The default allows for float32 sums in another order, with the trained model's large logits."""
    for request, completion in zip(requests, found, strict=True):
        wanted = forward_logprobs(network, request.prompt_ids_T, completion.ids_T, temperature)
        np.testing.assert_allclose(completion.logprobs_T, wanted, atol=atol)


@pytest.mark.parametrize("start", [0, 11])
def test_logprobs_are_those_of_the_model_over_three_turns(
    network: Any, embedded: Any, forward_logprobs: Callable[..., FloatArray], start: int
) -> None:
    engine = engine_of(network, embedded[1])
    params = replace(FREE, temperature=0.8)
    requests = asked(random_prompts(12, 30, 23, 12, 41, start=start), "first")
    for turn in range(3):
        found = engine.sample(requests, params)
        assert_exact(network, requests, found, forward_logprobs, 0.8, atol=1e-5)
        requests = continued(requests, found, turn)[1:]


def test_greedy_is_what_generate_writes(network: Any, embedded: Any) -> None:
    requests = asked(random_prompts(12, 30, 23, 12, start=10), "greedy")
    found = engine_of(network, embedded[1]).sample(requests, replace(FREE, temperature=0.0))
    for request, completion in zip(requests, found, strict=True):
        ids = torch.tensor(request.prompt_ids_T)[None]
        wanted = network.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16
        )
        assert completion.ids_T.tolist() == wanted[0, ids.shape[1] :].tolist()


def test_greedy_logprobs_are_those_at_temperature_one(
    engine: CPUEngine, lake_prompts: list[IntArray], forward_logprobs: Callable[..., FloatArray]
) -> None:
    requests = asked(lake_prompts, "greedy")
    found = engine.sample(requests, replace(PLAY, temperature=0.0))
    assert_exact(engine.network, requests, found, forward_logprobs)


@pytest.mark.parametrize(
    "params",
    [
        PLAY,
        replace(PLAY, temperature=1.5, max_tokens=20),
        replace(PLAY, top_k=3),
        replace(PLAY, top_p=0.7),
        replace(PLAY, stop=("#", "nk><ans")),
    ],
)
def test_the_plain_path_writes_the_same(
    policy: HFPolicy, engine: CPUEngine, lake_prompts: list[IntArray], params: SamplingParams
) -> None:
    requests = asked(lake_prompts * 4, "same")
    with torch.no_grad():
        wanted = _PlainDecodeLoop(policy, requests, params).run()
    found = engine.sample(requests, params)
    assert ids_of(found) == ids_of(wanted)
    for one, two in zip(found, wanted, strict=True):
        assert (one.text, one.finish) == (two.text, two.finish)
        np.testing.assert_allclose(one.logprobs_T, two.logprobs_T, atol=1e-4)


def test_the_end_of_a_message_the_stop_string_and_the_limit_are_told_apart(
    embedded: Any, lake_prompts: list[IntArray]
) -> None:
    network, tokenizer = copy.deepcopy(embedded[0]), embedded[1]
    (eos,) = tokenizer.eos_ids
    requests = asked(lake_prompts * 8, "ends")
    first = engine_of(network, tokenizer).sample(requests, replace(PLAY, max_tokens=1))
    assert {completion.finish for completion in first} == {Finish.LENGTH}
    # The end of a message becomes as likely as the token that most begin with.
    with torch.no_grad():
        network.lm_head.weight[eos] = network.lm_head.weight[int(first[0].ids_T[0])]
    engine = engine_of(network, tokenizer)
    found = engine.sample(requests, replace(PLAY, max_tokens=25))
    assert {completion.finish for completion in found} == set(Finish)
    for completion in found:
        ids, text = completion.ids_T.tolist(), completion.text
        assert eos not in ids[:-1]
        assert (ids[-1] == eos) == (completion.finish is Finish.EOS)
        assert text.endswith("</answer>") == (completion.finish is Finish.STOP)
        assert (len(ids) == 25) or completion.finish is not Finish.LENGTH


def test_rows_that_finish_at_different_times_are_continued_exactly(
    engine: CPUEngine, lake_prompts: list[IntArray], forward_logprobs: Callable[..., FloatArray]
) -> None:
    requests = asked(lake_prompts * 3, "leaving")
    for turn in range(3):
        found = engine.sample(requests, PLAY)
        assert len({len(completion.ids_T) for completion in found}) > 2
        assert_exact(engine.network, requests, found, forward_logprobs)
        requests = continued(requests, found, turn)[::-2][::-1]


@pytest.fixture
def tokens_prefilled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each prefill had, padding included; decoding does not count."""
    counts: list[int] = []
    plain = CPUForward.prefill

    def noted(self: CPUForward, cache: Any, token_RT: torch.Tensor, *more: Any) -> torch.Tensor:
        counts.append(token_RT.numel())
        return plain(self, cache, token_RT, *more)

    monkeypatch.setattr(CPUForward, "prefill", noted)
    return counts


def test_a_group_reads_its_prompt_once_and_all_groups_what_they_share(
    engine: CPUEngine, tokens_prefilled: list[int]
) -> None:
    one, two = random_prompts(30, 30, start=20)
    engine.sample(asked([one] * 5 + [two] * 5, "group"), FREE)
    assert sum(tokens_prefilled) == 20 + 10 + 10


def test_a_second_turn_reads_only_what_is_new(
    engine: CPUEngine, tokens_prefilled: list[int]
) -> None:
    requests = asked(random_prompts(30, 44, 52), "new")
    requests = continued(requests, engine.sample(requests, FREE), 0, lengths=(6,))
    tokens_prefilled.clear()
    engine.sample(requests, FREE)
    assert sum(tokens_prefilled) == 3 * (6 + 1)  # the last token of the reply is still to be read


def test_equal_conversations_are_both_continued(
    engine: CPUEngine, tokens_prefilled: list[int], forward_logprobs: Callable[..., FloatArray]
) -> None:
    (prompt,) = random_prompts(40)
    requests = [Request(prompt, ("same",))] * 2
    requests = continued(requests, engine.sample(requests, FREE), 0, lengths=(6, 8))
    tokens_prefilled.clear()
    found = engine.sample(requests, FREE)
    assert sum(tokens_prefilled) <= 2 * (8 + 1)
    assert_exact(engine.network, requests, found, forward_logprobs)


def test_batches_that_take_turns_are_both_continued(
    engine: CPUEngine, tokens_prefilled: list[int], forward_logprobs: Callable[..., FloatArray]
) -> None:
    batches = [asked(random_prompts(30, 40, seed=seed), seed) for seed in (1, 2)]
    for turn in range(2):
        for at, requests in enumerate(batches):
            tokens_prefilled.clear()
            found = engine.sample(requests, FREE)
            assert_exact(engine.network, requests, found, forward_logprobs)
            batches[at] = continued(requests, found, turn, lengths=(6,))
            assert turn == 0 or sum(tokens_prefilled) == 2 * 7


def test_a_fresh_batch_does_not_depend_on_what_was_sampled_before(
    embedded: Any, lake_prompts: list[IntArray]
) -> None:
    used, fresh = engine_of(*embedded), engine_of(*embedded)
    first = asked(random_prompts(30, 200, 90), "before")
    used.sample(continued(first, used.sample(first, FREE), 0), FREE)
    requests = asked(lake_prompts, "after")
    for one, two in zip(used.sample(requests, PLAY), fresh.sample(requests, PLAY), strict=True):
        assert one.ids_T.tolist() == two.ids_T.tolist()
        assert one.logprobs_T.tolist() == two.logprobs_T.tolist()


def test_memory_that_is_used_again_leaves_no_trace(
    small: Any, forward_logprobs: Callable[..., FloatArray]
) -> None:
    engine = engine_of(*small)
    requests = asked([np.arange(20, 50), np.arange(60, 80)], "update")
    for _ in range(3):
        found = engine.sample(requests, FREE)
        assert_exact(engine.network, requests, found, forward_logprobs)
        with torch.no_grad():
            for parameter in engine.network.parameters():
                parameter.mul_(0.9)
    assert len(engine._caches) + len(engine._spares) == 1


def test_a_step_of_the_learner_is_noticed(
    small: Any, forward_logprobs: Callable[..., FloatArray]
) -> None:
    engine = engine_of(*small)
    learner = TorchLearner(*small, ModelSettings(), LearnerSettings(lr=0.03), seed=0)
    requests = asked([np.arange(20, 50), np.arange(60, 80)], "step")
    found = engine.sample(requests, FREE)
    engine.network(input_ids=torch.arange(20, 50)[None]).logits.square().mean().backward()
    learner.optimiser.step()
    requests = continued(requests, found, 0)
    assert_exact(engine.network, requests, engine.sample(requests, FREE), forward_logprobs)


def test_long_prompts_are_read_in_pieces(
    engine: CPUEngine,
    forward_logprobs: Callable[..., FloatArray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_batch, "PIECE", 16)
    monkeypatch.setattr(cpu_batch, "PREFILL_TOKENS", 40)
    requests = asked(random_prompts(70, 33, 80, 69, 17, 16), "long")
    for turn in range(2):
        found = engine.sample(requests, FREE)
        assert_exact(engine.network, requests, found, forward_logprobs)
        requests = continued(requests, found, turn, lengths=(3, 50, 20))


def test_what_is_too_large_to_keep_is_read_again(
    engine: CPUEngine,
    tokens_prefilled: list[int],
    forward_logprobs: Callable[..., FloatArray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "MAX_BYTES", 0)
    requests = asked(random_prompts(30, 44), "large")
    requests = continued(requests, engine.sample(requests, FREE), 0)
    tokens_prefilled.clear()
    found = engine.sample(requests, FREE)
    assert sum(tokens_prefilled) >= sum(len(request.prompt_ids_T) for request in requests)
    assert_exact(engine.network, requests, found, forward_logprobs)


def test_two_threads_write_parts_of_their_own_and_nothing_else_changes(
    embedded: Any, lake_prompts: list[IntArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    plain = cpu_batch.DecodeBatch._write

    def noted(self: cpu_batch.DecodeBatch, hidden: torch.Tensor) -> list[Completion]:
        seen.append((len(hidden), torch.get_num_threads()))
        assert not torch.is_grad_enabled()
        return plain(self, hidden)

    monkeypatch.setattr(cpu_batch.DecodeBatch, "_write", noted)
    monkeypatch.setattr(cpu, "LEAST_PART", 4)
    requests = asked(lake_prompts * 2, "threads")
    alone = engine_of(*embedded).sample(requests, PLAY)
    torch.set_num_threads(2)
    try:
        engine = engine_of(*embedded)
        first = engine.sample(requests, PLAY)
        engine.sample(continued(requests, first, 0), PLAY)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert seen == [(12, 1)] + [(6, 1)] * 4
    assert ids_of(first) == ids_of(alone)


def test_large_products_get_the_threads_that_parts_leave(
    engine: CPUEngine, lake_prompts: list[IntArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    plain = cpu_batch.DecodeBatch._write

    def noted(self: cpu_batch.DecodeBatch, hidden: torch.Tensor) -> list[Completion]:
        seen.append(torch.get_num_threads())
        return plain(self, hidden)

    monkeypatch.setattr(cpu_batch.DecodeBatch, "_write", noted)
    monkeypatch.setattr(cpu, "THREADED_WORK", 1)
    torch.set_num_threads(2)
    try:
        engine.sample(asked(lake_prompts, "large"), replace(FREE, max_tokens=2))
    finally:
        torch.set_num_threads(1)
    assert seen == [2]


def test_weights_that_are_not_numbers_end_in_one_line_and_leave_nothing_behind(
    embedded: Any, lake_prompts: list[IntArray]
) -> None:
    network, tokenizer = copy.deepcopy(embedded[0]), embedded[1]
    engine = engine_of(network, tokenizer)
    requests = asked(lake_prompts[:2], "broken")
    wanted = engine.sample(requests, PLAY)
    good = network.model.norm.weight.detach().clone()
    with torch.no_grad():
        network.model.layers[1].self_attn.v_proj.weight.mul_(math.nan)
    with pytest.raises(RunError, match=r"^the model's output is not a number; .+$"):
        engine.sample(requests, PLAY)
    network.load_state_dict(embedded[0].state_dict())
    assert torch.equal(good, network.model.norm.weight)
    assert ids_of(engine.sample(requests, PLAY)) == ids_of(wanted)


def test_no_requests_give_no_completions(engine: CPUEngine) -> None:
    assert engine.sample([], PLAY) == []
