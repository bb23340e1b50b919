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

from ragen2.backends.decoder import Decoder, DecoderWeights, describe_decoder
from ragen2.backends.learner.optimiser import add_lora
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


def weights_of(**more: bool) -> tuple[Any, DecoderWeights]:
    network = Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16))
    decoder = describe_decoder(network)
    assert isinstance(decoder, Decoder)
    return network, DecoderWeights(decoder, torch.float32, **more)


def test_copies_follow_the_model_only_when_refreshed_and_never_move() -> None:
    network, weights = weights_of()
    layer, attention, mlp = (
        weights.layers[1],
        network.model.layers[1].self_attn,
        network.model.layers[1].mlp,
    )
    addresses = [layer.qkv.data_ptr(), layer.gate_up[0].data_ptr(), weights.head.data_ptr()]
    assert weights.refresh(3)
    with torch.no_grad():
        attention.k_proj.weight.mul_(2.0)
    assert not weights.refresh(3)
    assert not torch.equal(layer.qkv[32:48], attention.k_proj.weight)
    assert weights.refresh(4)
    assert torch.equal(layer.qkv[32:48], attention.k_proj.weight)
    assert torch.equal(layer.gate_up[0], torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
    assert addresses == [layer.qkv.data_ptr(), layer.gate_up[0].data_ptr(), weights.head.data_ptr()]


def test_what_is_shared_is_the_models_own_memory() -> None:
    network, weights = weights_of(shares=True)
    layer, modules = weights.layers[0], network.model.layers[0]
    shared = [weights.embed, weights.head, layer.norm, layer.o, *layer.gate_up, layer.down]
    own = [
        network.model.embed_tokens,
        network.lm_head,
        modules.input_layernorm,
        modules.self_attn.o_proj,
        modules.mlp.gate_proj,
        modules.mlp.up_proj,
        modules.mlp.down_proj,
    ]
    assert [each.data_ptr() for each in shared] == [each.weight.data_ptr() for each in own]


def test_pairs_that_rotate_together_lie_side_by_side() -> None:
    network, weights = weights_of(shares=True, paired=True)
    weights.refresh(0)
    layer, attention = weights.layers[0], network.model.layers[0].self_attn
    heads = attention.q_proj.weight.view(2, 16, -1)
    assert torch.equal(layer.qkv[:32].view(2, 16, -1)[:, 0::2], heads[:, :8])
    assert torch.equal(layer.qkv[:32].view(2, 16, -1)[:, 1::2], heads[:, 8:])
    assert torch.equal(layer.qkv[48:], attention.v_proj.weight), "values are not rotated"
    assert layer.head_norms is not None
    assert torch.equal(layer.head_norms[1][0::2], attention.k_norm.weight[:8])
