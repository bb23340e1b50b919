"""Under LoRA: frozen matrices in bfloat16 and once for all, adapters in float32 beside them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ragen2.algorithms import GRPO
from ragen2.backends.adapters import named_weights
from ragen2.backends.agent import open_agent, open_model
from ragen2.backends.decoder import Decoder, DecoderWeights, describe_decoder
from ragen2.backends.frozen import hold_frozen, in_one_piece
from ragen2.backends.learner.fused import FusedDecoder
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.learner.operations import Heads, Norms, Rotation, TorchOperations
from ragen2.backends.learner.optimiser import add_lora
from ragen2.backends.learner.packing import Packing
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.errors import ConfigError, DependencyError
from ragen2.policy import Pair, Request, SamplingParams
from ragen2.types import Sample

Samples = Callable[..., list[Sample]]
LOW = ModelSettings(device="cpu", lora_rank=4, precision="bfloat16")
PLAIN = ModelSettings(device="cpu", lora_rank=4)
LENGTHS = [40, 44, 31, 50, 27, 42]
SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def learner_of(parts: Any, model: ModelSettings = LOW, **settings: Any) -> TorchLearner:
    """A learner with its own copy of the network, whose adapters add something."""
    chosen = LearnerSettings(**{"lr": 1e-3, "micro_tokens": 90, **settings})
    learner = TorchLearner(copy.deepcopy(parts[0]), parts[1], model, chosen, seed=0)
    use_adapters(learner.network)
    return learner


@torch.no_grad()
def use_adapters(network: Any) -> None:
    """Adapters begin by adding nothing; from here on they add a little."""
    drawn = torch.Generator().manual_seed(1)
    for name, weight in network.named_parameters():
        if "lora_B" in name:
            weight.copy_(0.05 * torch.randn(weight.shape, generator=drawn))


def flat(learner: TorchLearner) -> torch.Tensor:
    return torch.cat([value.flatten().float() for value in learner.network.state_dict().values()])


# --- what is stored --------------------------------------------------------------------------------


def test_matrices_that_are_not_trained_are_bfloat16_and_all_else_is_float32(
    small: Any, random_samples: Samples
) -> None:
    learner = learner_of(small)
    learner.update(random_samples(LENGTHS), GRPO(), scale=1.0)
    for name, weight in learner.network.named_parameters():
        is_frozen_matrix = "lora_" not in name and weight.ndim == 2
        assert weight.dtype is (torch.bfloat16 if is_frozen_matrix else torch.float32), name
        assert weight.requires_grad is ("lora_" in name), name
    moments = list(learner.optimiser.state.values())
    assert len(moments) == sum("lora_" in name for name, _ in learner.network.named_parameters())
    assert {one["exp_avg"].dtype for one in moments} == {torch.float32}


def test_in_float32_nothing_is_rounded(small: Any) -> None:
    learner = learner_of(small, PLAIN)
    assert {weight.dtype for weight in learner.network.parameters()} == {torch.float32}


def test_a_model_to_be_adapted_is_opened_in_bfloat16_and_any_other_in_float32() -> None:
    low, _ = open_model("ragen2-tiny", device="cpu", frozen=torch.bfloat16)
    whole, _ = open_model("ragen2-tiny", device="cpu")
    found = dict(low.named_parameters())
    assert not any(weight.requires_grad for weight in found.values())
    for name, weight in whole.named_parameters():
        assert weight.dtype is torch.float32
        wanted = weight.to(torch.bfloat16) if weight.ndim == 2 else weight
        assert torch.equal(found[name], wanted), name
    ids = torch.arange(5, 40)[None]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rows = low.model(ids).last_hidden_state
        assert low.model.embed_tokens(ids).dtype is torch.float32, "the residual stream is"
        wanted = whole.model(ids).last_hidden_state
    assert (rows - wanted).norm() < 0.02 * wanted.norm()


def test_weights_that_are_trained_stay_as_they_are_under_a_frozen_type(small: Any) -> None:
    network = copy.deepcopy(small[0]).requires_grad_(False)
    network.model.layers[1].mlp.up_proj.weight.requires_grad_(True)
    hold_frozen(network, torch.bfloat16)
    assert network.model.layers[1].mlp.up_proj.weight.dtype is torch.float32
    assert network.model.layers[0].mlp.up_proj.weight.dtype is torch.bfloat16


# --- one copy --------------------------------------------------------------------------------------


def test_matrices_put_in_one_piece_keep_their_values_and_are_found_so_again() -> None:
    parts = [torch.nn.Parameter(torch.randn(n, 5), requires_grad=False) for n in (3, 1, 2)]
    before = torch.cat([part.detach().clone() for part in parts])
    joined = in_one_piece(parts)
    assert torch.equal(joined, before)
    assert [part.data_ptr() for part in parts] == [joined[row].data_ptr() for row in (0, 3, 4)]
    again = in_one_piece(parts)
    assert again.data_ptr() == joined.data_ptr()
    assert torch.equal(again, before)
    assert in_one_piece(parts[1:]).data_ptr() == parts[1].data_ptr(), "a part of it, too"
    other = in_one_piece(parts[::-1])
    assert torch.equal(other, torch.cat([before[4:], before[3:4], before[:3]]))


@pytest.mark.parametrize("model", [LOW, PLAIN])
def test_sampler_and_learner_read_the_models_own_memory(small: Any, model: ModelSettings) -> None:
    learner = learner_of(small, model)
    dtype = torch.bfloat16 if model is LOW else torch.float32
    decoder = describe_decoder(learner.network, adapters=True)
    assert isinstance(decoder, Decoder)
    held = [DecoderWeights(decoder, dtype), DecoderWeights(decoder, dtype, has_head=False)]
    modules = decoder.network.model.layers[1]
    attention, mlp = modules.self_attn, modules.mlp
    own = [attention.q_proj, attention.o_proj, mlp.gate_proj, mlp.down_proj]
    for weights in held:
        layer = weights.layers[1]
        read = [layer.qkv, layer.o, layer.gate_up[0], layer.down]
        assert [each.data_ptr() for each in read] == [one.weight.data_ptr() for one in own]
        assert layer.qkv[-1].data_ptr() == attention.v_proj.weight[-1].data_ptr()
    assert held[0].head.data_ptr() == decoder.head.weight.data_ptr()
    if model is PLAIN:
        fused = learner.forward._fused
        assert fused is not None
        assert fused._weights.layers[1].qkv.data_ptr() == attention.q_proj.weight.data_ptr()
    policy = HFPolicy(learner.whole, small[1], precision=model.precision)
    assert policy.network is learner.network


def test_the_reference_is_the_model_without_adapters_and_no_copy(
    small: Any, random_samples: Samples
) -> None:
    learner = TorchLearner(*small, LOW, LearnerSettings(lr=1e-2), seed=0)
    learner.keep_reference()
    assert learner._reference is None
    objective, samples = GRPO(kl_coefficient=0.1), random_samples(LENGTHS)
    kl = [learner.update(samples, objective, scale=1.0).metrics["kl"] for _ in range(2)]
    assert kl[0] == 0.0
    assert kl[1] > 1e-6


# --- what is computed ------------------------------------------------------------------------------


def adapter_gradients(learner: TorchLearner, samples: list[Sample]) -> torch.Tensor:
    return learner.gradient(samples, GRPO()).values


def rounded(parts: Any) -> Any:
    """The same model with weights that bfloat16 can hold: what is compared are the products."""
    network = copy.deepcopy(parts[0])
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(weight.to(torch.bfloat16))
    return network, parts[1]


def test_storing_in_bfloat16_changes_no_bit_of_what_products_in_bfloat16_gave(
    small: Any, random_samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = random_samples(LENGTHS)
    found = adapter_gradients(learner_of(rounded(small)), samples)
    monkeypatch.setattr("ragen2.backends.learner.learner.hold_frozen", lambda *_: None)
    stored_wide = learner_of(rounded(small))
    assert {weight.dtype for weight in stored_wide.network.parameters()} == {torch.float32}
    assert torch.equal(found, adapter_gradients(stored_wide, samples))


def test_gradients_of_adapters_are_those_of_float32_up_to_rounding(
    small: Any, random_samples: Samples
) -> None:
    """5% on this model, whose weights are six times what training leaves."""
    samples = random_samples(LENGTHS)
    wanted = adapter_gradients(learner_of(rounded(small), PLAIN), samples)
    found = adapter_gradients(learner_of(rounded(small)), samples)
    assert found.dtype is torch.float32
    assert 0 < (found - wanted).norm() < 0.08 * wanted.norm()


class RoundedOperations(TorchOperations):
    """What a GPU does between products: sums in float32, and what products read in bfloat16."""

    def norm(self, x_TH: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return super().norm(x_TH.float(), weight).bfloat16()

    def norm_back(
        self,
        grad: torch.Tensor,
        x_TH: torch.Tensor,
        weight: torch.Tensor,
        beside_TH: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        x_grad, _, normed, found = super().norm_back(grad.float(), x_TH, weight, beside_TH)
        return x_grad, x_grad.bfloat16(), normed.bfloat16(), found

    def split_heads(self, qkv: torch.Tensor, rotation: Rotation, norms: Norms) -> Heads:
        q, k, v = super().split_heads(qkv.float(), rotation, norms)
        return q.bfloat16(), k.bfloat16(), v.bfloat16()

    def join_heads(
        self, grads: Heads, qkv: torch.Tensor | None, rotation: Rotation, norms: Norms
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        q, k, v = (each.float() for each in grads)
        found, norm_grads = super().join_heads((q, k, v), qkv, rotation, norms)
        return found.bfloat16(), norm_grads


def adapted_network(dtype: torch.dtype) -> Any:
    torch.manual_seed(3)
    base = Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)).eval()
    with torch.no_grad():
        for weight in base.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.02).copy_(weight.to(torch.bfloat16))
    network = add_lora(base, PLAIN, seed=0)
    use_adapters(network)
    hold_frozen(base, dtype)
    return network


def fused_gradients(
    network: Any, dtype: torch.dtype, operations: type[TorchOperations], *, repeats: bool
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    decoder = describe_decoder(network, adapters=True)
    assert isinstance(decoder, Decoder)
    heads = (decoder.num_heads, decoder.num_kv_heads, decoder.head_dim)
    fused = FusedDecoder(decoder, dtype, operations(decoder.eps, heads))
    fused.refresh()
    torch.manual_seed(4)
    packing = Packing.of((30, 12, 20), torch.device("cpu"))
    ids_T, chosen_N = torch.randint(0, 96, (62,)), torch.tensor([3, 20, 33, 45, 60])
    rows = fused.rows(ids_T, packing, chosen_N, repeats=repeats)
    (rows * torch.randn_like(rows)).sum().backward()
    grads = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return rows.detach(), grads


@pytest.mark.parametrize("repeats", [False, True])
def test_our_own_layers_in_bfloat16_have_the_gradients_of_float32_up_to_rounding(
    repeats: bool,
) -> None:
    low, whole = adapted_network(torch.bfloat16), adapted_network(torch.float32)
    rows, grads = fused_gradients(low, torch.bfloat16, RoundedOperations, repeats=repeats)
    wanted, wanted_grads = fused_gradients(whole, torch.float32, TorchOperations, repeats=repeats)
    assert (rows - wanted).norm() < 0.02 * wanted.norm()
    assert grads.keys() == wanted_grads.keys()
    assert all("lora_" in name for name in grads)
    assert len(grads) == 2 * 7 * SHAPE["num_hidden_layers"]
    assert {grad.dtype for grad in grads.values()} == {torch.float32}
    found, wanted = (
        torch.cat([each[name].flatten() for name in grads]) for each in (grads, wanted_grads)
    )
    assert (found - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["k_proj", "up_proj", "down_proj"]])
def test_adapters_of_some_projections_only_are_read_as_hugging_face_reads_them(
    targets: list[str],
) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    base = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval()
    network = peft.get_peft_model(base, peft.LoraConfig(r=3, target_modules=targets))
    use_adapters(network)
    ids_T, chosen_N = torch.randint(0, 96, (20,)), torch.tensor([3, 7, 18])
    wanted = network(ids_T[None], output_hidden_states=True).hidden_states[-1][0, chosen_N]
    decoder = describe_decoder(network, adapters=True)
    assert isinstance(decoder, Decoder)
    heads = (decoder.num_heads, decoder.num_kv_heads, decoder.head_dim)
    fused = FusedDecoder(decoder, torch.float32, TorchOperations(decoder.eps, heads))
    fused.refresh()
    packing = Packing.of((20,), torch.device("cpu"))
    found = fused.rows(ids_T, packing, chosen_N, repeats=False)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    grads = []
    for rows in (found, wanted):
        network.zero_grad()
        rows.square().sum().backward()
        grads.append([p.grad.clone() for p in network.parameters() if p.requires_grad])
    torch.testing.assert_close(grads[0], grads[1], atol=1e-5, rtol=1e-4)


def test_the_sampler_writes_with_the_weights_that_are_trained(small: Any) -> None:
    """After updates whose steps would be lost in bfloat16: log-probs are the learner's, at any step."""
    learner = learner_of(small, lr=1e-4)
    policy = HFPolicy(learner.whole, small[1], precision="bfloat16")
    prompt = np.arange(10, 30)
    for step in range(3):
        (written,) = policy.sample(
            [Request(prompt, (step,))], SamplingParams(max_tokens=12, stop=())
        )
        mask = np.arange(len(prompt) + len(written.ids_T)) >= len(prompt)
        old = np.concatenate([np.zeros(len(prompt)), written.logprobs_T])
        sample = Sample(np.concatenate([prompt, written.ids_T]), mask, old, mask * 1.0)
        assert learner.update([sample], GRPO(), scale=1.0).metrics["sampler_mismatch"] < 0.03


def test_scores_are_those_of_the_adapted_model(small: Any) -> None:
    learner = learner_of(small)
    whole = AutoModelForCausalLM.from_config(small[0].config)
    whole.load_state_dict({n: v.float() for n, v in named_weights(learner.network)}, strict=False)
    pairs = [Pair(np.arange(10, 30), np.arange(40, 52))]
    (found,) = HFPolicy(learner.whole, small[1], precision="bfloat16").score(pairs)
    (wanted,) = HFPolicy(whole.eval(), small[1]).score(pairs)
    assert np.abs(found - wanted).max() < 0.1
    with learner.network.disable_adapter():
        (without,) = HFPolicy(learner.whole, small[1], precision="bfloat16").score(pairs)
    assert np.abs(without - wanted).max() > 0.5, "adapters matter in this test"


# --- what is saved ---------------------------------------------------------------------------------


def test_a_checkpoint_goes_on_bit_for_bit(
    small: Any, random_samples: Samples, tmp_path: Path
) -> None:
    one, two = (learner_of(small, minibatches=2) for _ in range(2))
    one.update(random_samples(LENGTHS), GRPO(), scale=1.0)
    one.save(tmp_path)
    two.load(tmp_path)
    assert torch.equal(flat(one), flat(two))
    found = [
        dict(each.update(random_samples(LENGTHS, seed=1), GRPO(), scale=1.0).metrics)
        for each in (one, two)
    ]
    assert found[0] == found[1]
    assert torch.equal(flat(one), flat(two))


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_saved_model_is_the_adapted_one_without_rounding(
    small: Any, tmp_path: Path, is_tied: bool
) -> None:
    parts = small
    if is_tied:
        config = Qwen2Config(**SHAPE, tie_word_embeddings=True)
        parts = (Qwen2ForCausalLM(config).eval(), small[1])
    learner = learner_of(parts)
    before = flat(learner)
    learner.save(tmp_path)
    assert torch.equal(flat(learner), before), "saving changes nothing"
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert {weight.dtype for weight in again.parameters()} == {torch.float32}
    wanted = dict(again.named_parameters())
    for name, weight in named_weights(learner.network):
        assert torch.equal(weight.float(), wanted[name]), name
    applied = copy.deepcopy(learner.network).float()
    ids = torch.arange(10, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, applied(ids).logits, atol=1e-4, rtol=1e-4)


def test_a_whole_agent_under_lora_in_bfloat16(random_samples: Samples) -> None:
    agent = open_agent(LOW, LearnerSettings(lr=1e-3), seed=0)
    requests = [Request(np.arange(10, 30), (n,)) for n in range(3)]
    written = agent.policy.sample(requests, SamplingParams(max_tokens=6))
    assert len(written) == 3
    update = agent.learner.update(random_samples(LENGTHS, vocabulary=500), GRPO(), scale=1.0)
    assert update.num_steps == 1
    frozen = [
        weight for name, weight in agent.learner.network.named_parameters() if "lora_" not in name
    ]
    assert {weight.dtype for weight in frozen if weight.ndim == 2} == {torch.bfloat16}


# --- 4 bits, where they cannot be had --------------------------------------------------------------


def test_four_bits_without_adapters_or_without_bitsandbytes_are_refused_in_one_line(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    for rank, wanted in (
        (0, ConfigError('model.frozen is "nf4", which trains adapters only; set model.lora_rank')),
        (4, DependencyError('model.frozen is "nf4", which needs bitsandbytes (')),
    ):
        model = ModelSettings(device="cpu", lora_rank=rank, frozen="nf4")
        network = Qwen2ForCausalLM(Qwen2Config(**{**SHAPE, "hidden_size": 64}))
        with pytest.raises(type(wanted)) as caught:
            TorchLearner(network, small[1], model, LearnerSettings(), seed=0)
        assert str(caught.value).startswith(str(wanted))
        assert len(str(caught.value).splitlines()) == 1
