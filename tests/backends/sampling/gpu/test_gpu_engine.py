"""The GPU engine writes what the plain path writes.

Runs on a GPU, or anywhere under Triton's interpreter (TRITON_INTERPRET=1), with small blocks so that every
loop goes round more than once.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ragen2.backends.agent import open_model
from ragen2.backends.decoder import describe_decoder
from ragen2.backends.frozen import hold_frozen
from ragen2.backends.learner.optimiser import add_lora
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import ModelSettings
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.policy import Pair, Request, SamplingParams
from ragen2.types import Completion, Finish

pytest.importorskip("triton", reason="needs Triton (make parity runs these under its interpreter)")
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not IS_INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

from ragen2.backends.sampling.gpu import choose, forward  # noqa: E402 - imports Triton
from ragen2.backends.sampling.gpu import engine as gpu  # noqa: E402

DEVICE = "cpu" if IS_INTERPRETED else "cuda"
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "BUCKETS", (2, 4, 8))
    monkeypatch.setattr(gpu, "TOKENS_PER_LOOK", 2)
    monkeypatch.setattr(gpu, "PREFILL_TOKENS", 40)
    for module in (gpu, forward):
        monkeypatch.setattr(module, "PROMPT_BLOCK", 16)
    monkeypatch.setattr(forward, "KEY_BLOCK", 16)
    monkeypatch.setattr(choose, "VOCABULARY_BLOCK", 128)


@pytest.fixture(scope="module")
def tokenizer() -> TemplateTokenizer:
    return open_model("ragen2-tiny", device="cpu")[1]


@pytest.fixture(scope="module")
def tiny() -> Any:
    return open_model("ragen2-tiny", device=DEVICE)[0]


def random_network(kind: Any, config: Any) -> Any:
    """Weights far enough from their start that every part of the network matters."""
    torch.manual_seed(3)
    network = kind(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0).add_(torch.randn_like(parameter), alpha=0.05)
    return network.to(DEVICE)


def engine_of(network: Any, tokenizer: TemplateTokenizer, **more: Any) -> gpu.GPUEngine:
    decoder = describe_decoder(network)
    assert not isinstance(decoder, str)
    return gpu.GPUEngine(decoder, tokenizer, dtype=torch.float32, **more)


def requests_of(*lengths: int, key: str = "a") -> list[Request]:
    made = {n: np.random.default_rng(n).integers(3, 500, size=n) for n in lengths}
    return [Request(made[n], (key, i)) for i, n in enumerate(lengths)]


def assert_same(found: list[Completion], wanted: list[Completion]) -> None:
    assert [c.ids_T.tolist() for c in found] == [c.ids_T.tolist() for c in wanted]
    assert [c.finish for c in found] == [c.finish for c in wanted]
    assert [c.text for c in found] == [c.text for c in wanted]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.logprobs_T, other.logprobs_T, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (LlamaForCausalLM, LlamaConfig(**SHAPE, head_dim=32)),
        (Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=True)),
        (Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=32)),
    ],
)
def test_two_turns_equal_the_plain_path(
    kind: Any, config: Any, tokenizer: TemplateTokenizer
) -> None:
    network = random_network(kind, config)
    engine, plain = engine_of(network, tokenizer), HFPolicy(network, tokenizer, engine="plain")
    params = SamplingParams(max_tokens=5)
    first = requests_of(5, 37, 5)
    replies = engine.sample(first, params)
    assert_same(replies, plain.sample(first, params))
    second = [
        Request(np.concatenate([r.prompt_ids_T, c.ids_T, [7, 8, 9]]), ("b", i))
        for i, (r, c) in enumerate(zip(first, replies, strict=True))
    ]
    known = [one.known for one in engine.cache.assign([r.prompt_ids_T for r in second])]
    assert known == [
        len(r.prompt_ids_T) - 4 for r in second
    ]  # all but the last token and the 3 new
    engine.cache.forget()
    engine.sample(first, params)
    assert_same(engine.sample(second, params), plain.sample(second, params))


@pytest.mark.parametrize("cuts", [{"top_k": 5}, {"top_p": 0.7}, {"temperature": 0.0}])
def test_other_ways_to_choose_equal_the_plain_path(
    cuts: dict[str, Any], tiny: Any, tokenizer: TemplateTokenizer
) -> None:
    params = SamplingParams(max_tokens=4, **cuts)
    requests = requests_of(5, 9)
    plain = HFPolicy(tiny, tokenizer, engine="plain")
    assert_same(engine_of(tiny, tokenizer).sample(requests, params), plain.sample(requests, params))


def test_ended_rows_leave_and_the_rest_go_on(tiny: Any, tokenizer: TemplateTokenizer) -> None:
    """Seven rows in lanes of 8, then fewer; more rows than lanes; a stop string ends some early."""
    params = SamplingParams(max_tokens=12, stop=("e",))
    requests = requests_of(4, 5, 6, 7, 8, 4, 5)
    wanted = HFPolicy(tiny, tokenizer, engine="plain").sample(requests, params)
    lengths = {len(c.ids_T) for c in wanted}
    assert len(lengths) > 2
    assert Finish.STOP in {c.finish for c in wanted}
    assert_same(engine_of(tiny, tokenizer).sample(requests, params), wanted)
    assert_same(engine_of(tiny, tokenizer, max_batch=4).sample(requests, params), wanted)


def test_new_weights_are_seen(tokenizer: TemplateTokenizer) -> None:
    network = random_network(LlamaForCausalLM, LlamaConfig(**SHAPE, head_dim=32))
    engine, plain = engine_of(network, tokenizer), HFPolicy(network, tokenizer, engine="plain")
    params, requests = SamplingParams(max_tokens=3), requests_of(6)
    before = engine.sample(requests, params)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.2)
    after = engine.sample(requests, params)
    assert_same(after, plain.sample(requests, params))
    assert after[0].logprobs_T.tolist() != before[0].logprobs_T.tolist()


def test_adapters_are_part_of_the_weights(tokenizer: TemplateTokenizer) -> None:
    base = random_network(Qwen2ForCausalLM, Qwen2Config(**SHAPE))
    network = add_lora(base, ModelSettings(lora_rank=4), seed=0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    decoder = describe_decoder(network, adapters=True)
    assert not isinstance(decoder, str)
    engine = gpu.GPUEngine(decoder, tokenizer, dtype=torch.float32)
    plain = HFPolicy(network, tokenizer, engine="plain")
    params, requests = SamplingParams(max_tokens=3), requests_of(6)
    adapted = plain.sample(requests, params)
    assert_same(engine.sample(requests, params), adapted)
    with network.disable_adapter():
        without = plain.sample(requests, params)
    assert abs(without[0].logprobs_T[0] - adapted[0].logprobs_T[0]) > 1e-3


def test_frozen_weights_of_its_type_are_read_where_they_are(
    tokenizer: TemplateTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = torch.float16 if IS_INTERPRETED else torch.bfloat16  # the interpreter has no bfloat16
    if IS_INTERPRETED:  # and torch no product of such numbers into float32 on a CPU
        monkeypatch.setattr(
            forward.GPUForward,
            "_logits",
            lambda self, normed, out: out.copy_(normed.float() @ self.weights.head.float().t()),
        )
    base = random_network(Qwen2ForCausalLM, Qwen2Config(**SHAPE))
    network = add_lora(base, ModelSettings(lora_rank=4), seed=0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    hold_frozen(base, low)
    decoder = describe_decoder(network, adapters=True)
    assert not isinstance(decoder, str)
    engine = gpu.GPUEngine(decoder, tokenizer, dtype=low)
    layer, modules = engine.weights.layers[0], base.model.layers[0]
    assert layer.qkv.data_ptr() == modules.self_attn.q_proj.weight.data_ptr()
    assert layer.gate_up[0].data_ptr() == modules.mlp.gate_proj.weight.data_ptr()
    assert engine.weights.head.data_ptr() == base.lm_head.weight.data_ptr()
    params, requests = SamplingParams(max_tokens=4), requests_of(6, 9)
    found = engine.sample(requests, params)
    pairs = [Pair(r.prompt_ids_T, c.ids_T) for r, c in zip(requests, found, strict=True)]
    whole = HFPolicy(network.float(), tokenizer, engine="plain", precision="float32")
    for completion, wanted in zip(found, whole.score(pairs), strict=True):
        assert np.abs(completion.logprobs_T - wanted).max() < (0.03 if IS_INTERPRETED else 0.2)


@pytest.mark.parametrize("where", ["cache", "decoding"])
def test_when_memory_runs_out_fewer_are_written_at_once_and_they_are_the_same(
    where: str, tiny: Any, tokenizer: TemplateTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, requests = SamplingParams(max_tokens=3), requests_of(4, 5, 6, 7, 8)
    wanted = HFPolicy(tiny, tokenizer, engine="plain").sample(requests, params)
    engine = engine_of(tiny, tokenizer)
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.23 GiB")
    empty, write = engine.cache._empty, engine._write

    def limited_cache(rows: int, tokens: int) -> torch.Tensor:
        if rows > 3:  # two rows, and the spare one
            raise full
        return empty(rows, tokens)

    def limited_decoding(normed: torch.Tensor, *more: Any) -> None:
        write(normed, *more)
        if len(normed) > 2:
            raise full

    if where == "cache":
        monkeypatch.setattr(engine.cache, "_empty", limited_cache)
    else:
        monkeypatch.setattr(engine, "_write", limited_decoding)
    assert_same(engine.sample(requests, params), wanted)
    assert engine._most == 2
    assert_same(engine.sample(requests[:2], params), wanted[:2])
    assert engine.give_back()
    assert not engine.give_back()
    monkeypatch.setattr(engine, "_prefill", lambda *_: fail())
    with pytest.raises(torch.OutOfMemoryError):
        engine.sample(requests, params)


def fail() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.23 GiB")
