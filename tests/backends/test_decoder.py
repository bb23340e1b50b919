"""Which models the engines run themselves, and which are left to Hugging Face, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ragen2.backends.decoder import Decoder, describe_decoder
from ragen2.backends.learner.learner import add_lora
from ragen2.backends.settings import ModelSettings

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    "network",
    [
        LlamaForCausalLM(LlamaConfig(**SHAPE)),
        Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
        Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
        LlamaForCausalLM(
            LlamaConfig(
                **SHAPE, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
            )
        ),
    ],
)
def test_rotation_is_the_models_own(network: Any) -> None:
    decoder = describe_decoder(network)
    assert isinstance(decoder, Decoder)
    cos, sin = network.model.rotary_emb(torch.zeros(1, 9, 32), torch.arange(9)[None])
    own_cos, own_sin = decoder.rotary(9)
    torch.testing.assert_close(torch.cat([own_cos, own_cos], -1), cos[0])
    torch.testing.assert_close(torch.cat([own_sin, own_sin], -1), sin[0])


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64)), "GPT2LMHead"),
        (LlamaForCausalLM(LlamaConfig(**SHAPE, mlp_bias=True)), "a bias in the MLP"),
        (LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True)), "a bias after attention"),
        (LlamaForCausalLM(LlamaConfig(**SHAPE, hidden_act="gelu")), "activation gelu"),
        (
            Qwen2ForCausalLM(
                Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=0)
            ),
            "a sliding window",
        ),
        (
            LlamaForCausalLM(
                LlamaConfig(
                    **SHAPE,
                    rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
                )
            ),
            "rotary embedding dynamic",
        ),
    ],
)
def test_what_would_change_the_mathematics_is_refused_with_its_name(
    network: Any, reason: str
) -> None:
    found = describe_decoder(network)
    assert isinstance(found, str)
    assert reason in found


def test_adapted_layers_are_refused_unless_the_engine_reads_adapters() -> None:
    network = add_lora(LlamaForCausalLM(LlamaConfig(**SHAPE)), ModelSettings(lora_rank=2), seed=0)
    assert isinstance(describe_decoder(network, adapters=True), Decoder)
    assert (
        describe_decoder(network)
        == "PeftModelForCausalLM is not of the Llama, Qwen2 or Qwen3 family"
    )
    assert "adapted or quantised layers" in str(describe_decoder(network.get_base_model()))


def test_kernels_need_heads_of_a_power_of_two_and_no_narrow_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ragen2.backends.decoder.find_spec", lambda _: object())
    problems = [
        decoder.kernel_problem
        for width in (32, 24, 16)
        if isinstance(
            decoder := describe_decoder(LlamaForCausalLM(LlamaConfig(**SHAPE, head_dim=width))),
            Decoder,
        )
    ]
    assert problems == [
        None,
        "heads are 24 wide, and our kernels count in powers of two",
        "heads are 16 wide, and our kernels need 32",
    ]
    monkeypatch.setattr("ragen2.backends.decoder.find_spec", lambda _: None)
    decoder = describe_decoder(LlamaForCausalLM(LlamaConfig(**SHAPE)))
    assert isinstance(decoder, Decoder)
    assert decoder.kernel_problem == "Triton is not installed"
