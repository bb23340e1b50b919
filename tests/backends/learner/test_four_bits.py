"""Frozen linear layers in 4 bits: the model is the unpacked one, wherever it is multiplied by.

Needs bitsandbytes; its functions run on a CPU as on a GPU.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

pytest.importorskip("bitsandbytes", reason="needs bitsandbytes (make peers)")

from ragen2.algorithms import GRPO
from ragen2.backends.adapters import named_weights
from ragen2.backends.agent import open_agent
from ragen2.backends.decoder import Decoder, DecoderWeights, describe_decoder
from ragen2.backends.four_bits import FourBitLinear, pack_linear_layers
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.learner.optimiser import add_lora
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.errors import ConfigError
from ragen2.policy import Request, SamplingParams

CPU = torch.device("cpu")
LENGTHS = [40, 44, 31, 50, 27, 42]
SHAPE: dict[str, Any] = {
    "vocab_size": 275,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def model_of(precision: Any = "float32") -> ModelSettings:
    return ModelSettings(device="cpu", lora_rank=4, frozen="nf4", precision=precision)


@pytest.fixture
def plain() -> Any:
    torch.manual_seed(0)
    network = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.mul_(5.0)
    return network


def learner_of(network: Any, small: Any, model: ModelSettings) -> TorchLearner:
    settings = LearnerSettings(lr=1e-3, micro_tokens=90)
    learner = TorchLearner(copy.deepcopy(network), small[1], model, settings, seed=0)
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in learner.network.named_parameters():
            if "lora_B" in name:
                weight.copy_(0.05 * torch.randn(weight.shape, generator=drawn))
    return learner


def unpacked(network: Any, dtype: torch.dtype) -> Any:
    """The plain model whose matrices are those that 4 bits stand for."""
    packed, found = copy.deepcopy(network), copy.deepcopy(network)
    pack_linear_layers(packed, dtype, CPU)
    for (_, layer), (_, target) in zip(packed.named_modules(), found.named_modules(), strict=True):
        if isinstance(layer, FourBitLinear):
            target.weight.data = layer.matrix.unpack().float()
    return found


def test_a_layer_in_four_bits_is_near_the_plain_one_and_an_eighth_as_large(plain: Any) -> None:
    layer = plain.model.layers[0].mlp.up_proj
    packed = FourBitLinear(layer, torch.float32, CPU)
    assert (packed.weight.dtype, packed.scales.dtype) == (torch.uint8, torch.float32)
    assert packed.weight.nbytes == layer.weight.nbytes / 8
    assert packed.scales.numel() == layer.weight.numel() / 64
    gap = packed.matrix.unpack() - layer.weight
    assert 0 < gap.norm() < 0.12 * layer.weight.norm()
    rows = torch.randn(3, 64)
    torch.testing.assert_close(packed(rows), rows @ packed.matrix.unpack().T)


def test_linear_layers_are_packed_and_nothing_else_is(plain: Any) -> None:
    pack_linear_layers(plain, torch.float32, CPU)
    kinds = {name: type(module) for name, module in plain.named_modules()}
    assert sum(kind is FourBitLinear for kind in kinds.values()) == 7 * SHAPE["num_hidden_layers"]
    assert kinds["lm_head"] is torch.nn.Linear
    narrow = LlamaForCausalLM(LlamaConfig(**{**SHAPE, "hidden_size": 32}))
    pack_linear_layers(narrow, torch.float32, CPU)
    found = [name for name, module in narrow.named_modules() if type(module) is FourBitLinear]
    assert found == [f"model.layers.{n}.mlp.down_proj" for n in range(2)], "rows of whole blocks"


def test_joined_matrices_are_unpacked_as_one_from_the_layers_own_memory(plain: Any) -> None:
    network = copy.deepcopy(plain)
    pack_linear_layers(network, torch.bfloat16, CPU)
    adapted = add_lora(network, model_of(), seed=0)
    attention = network.model.layers[1].self_attn
    apart = torch.cat(
        [
            each.base_layer.matrix.unpack()
            for each in (attention.q_proj, attention.k_proj, attention.v_proj)
        ]
    )
    decoder = describe_decoder(adapted, adapters=True)
    assert isinstance(decoder, Decoder)
    for _ in range(2):
        weights = DecoderWeights(decoder, torch.bfloat16)
        assert torch.equal(weights.opened(1).qkv, apart)
        stored = attention.q_proj.base_layer.weight
        assert weights.layers[1].qkv.data_ptr() == stored.data_ptr()
        assert weights.opened(1).qkv.dtype is torch.bfloat16


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gradients_of_adapters_are_those_over_the_unpacked_matrices(
    plain: Any, small: Any, random_samples: Any, precision: Any
) -> None:
    samples = random_samples(LENGTHS)
    whole = ModelSettings(device="cpu", lora_rank=4, precision=precision)
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    wanted = learner_of(unpacked(plain, dtype), small, whole)
    learner = learner_of(plain, small, model_of(precision))
    assert learner.forward.is_fused is wanted.forward.is_fused is (precision == "float32")
    found, same = (each.gradient(samples, GRPO()).values for each in (learner, wanted))
    assert same.norm() > 0.1
    assert torch.equal(found, same)
    assert learner.describe()["parameters"] == wanted.describe()["parameters"]


def test_what_is_sampled_saved_and_loaded_is_the_same_policy(
    plain: Any, small: Any, random_samples: Any, tmp_path: Path
) -> None:
    one, two = (learner_of(plain, small, model_of()) for _ in range(2))
    for _ in range(2):
        one.update(random_samples(LENGTHS), GRPO(), scale=1.0)
    one.save(tmp_path)
    two.load(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    wanted = dict(again.named_parameters())
    for name, weight in named_weights(two.network):
        assert torch.equal(weight.float(), wanted[name]), name
    requests = [Request(np.arange(5, 20), (0,))]
    params = SamplingParams(max_tokens=8, stop=())
    (found,) = HFPolicy(two.whole, small[1]).sample(requests, params)
    (saved,) = HFPolicy(again, small[1]).sample(requests, params)
    assert found.ids_T.tolist() == saved.ids_T.tolist()
    np.testing.assert_allclose(found.logprobs_T, saved.logprobs_T, atol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_whole_agent_in_four_bits(random_samples: Any, precision: Any) -> None:
    agent = open_agent(model_of(precision), LearnerSettings(lr=1e-3), seed=0)
    layers = [m for m in agent.learner.network.modules() if isinstance(m, FourBitLinear)]
    assert layers
    written = agent.policy.sample([Request(np.arange(5, 20), (0,))], SamplingParams(max_tokens=4))
    assert len(written[0].ids_T)
    update = agent.learner.update(random_samples(LENGTHS), GRPO(), scale=1.0)
    assert update.num_steps == 1


def test_a_critic_beside_four_bits_is_refused_in_one_line(plain: Any, small: Any) -> None:
    with pytest.raises(ConfigError, match=r'^model.frozen is "nf4", but a critic trains whole'):
        learner_of(plain, small, model_of()).start_critic(1e-3)
