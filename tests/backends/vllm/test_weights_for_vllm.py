"""Weights for another engine: all of them, once each, under their checkpoint names, adapters merged."""

from __future__ import annotations

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ragen2.backends.learner.optimiser import add_lora
from ragen2.backends.settings import ModelSettings
from ragen2.backends.vllm.policy import WEIGHTS_FILE, WeightSync, named_weights, save_weights


def test_every_weight_comes_once_under_its_checkpoint_name(small, tmp_path):
    network, _ = small
    network.save_pretrained(tmp_path)
    found = dict(named_weights(network))
    checkpoint = load_file(tmp_path / "model.safetensors")
    assert found.keys() == checkpoint.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, checkpoint[name], rtol=0, atol=0)


def test_a_tied_head_is_not_handed_over_twice(small):
    network, _ = small
    assert network.config.tie_word_embeddings
    assert "lm_head.weight" in network.state_dict()
    assert "lm_head.weight" not in dict(named_weights(network))


def test_adapters_are_merged_into_a_copy(small):
    network, _ = small
    adapted = add_lora(network, ModelSettings(lora_rank=2, lora_alpha=8), seed=1)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.3)
    before = {name: weight.clone() for name, weight in adapted.named_parameters()}
    found = dict(named_weights(adapted))
    for name, weight in adapted.named_parameters():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)
    merged = adapted.merge_and_unload()
    expected = {
        name: weight for name, weight in merged.named_parameters() if name != "lm_head.weight"
    }
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name].detach(), rtol=1e-5, atol=1e-6)
    queries = [name for name in found if "q_proj" in name]
    assert queries
    for name in queries:
        base = before[f"base_model.model.{name.replace('.weight', '.base_layer.weight')}"]
        assert not torch.allclose(found[name], base), "the adapter adds something"


def test_the_file_opens_as_a_models_weights(small, tmp_path):
    network, _ = small
    network.config.save_pretrained(tmp_path)
    save_weights(network, tmp_path)
    assert (tmp_path / WEIGHTS_FILE).is_file()
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(again(ids).logits, network(ids).logits)


def test_weights_are_behind_until_they_are_marked_and_after_a_change(small):
    network, _ = small
    sync = WeightSync(network)
    assert sync.is_behind, "nobody has them yet"
    sync.mark_pushed()
    assert not sync.is_behind
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    network(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    assert not sync.is_behind, "a gradient is no change"
    optimiser.step()
    assert sync.is_behind
