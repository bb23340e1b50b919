"""A norm in one kernel is the same norm, forward and backward, and only while it is asked for."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from ragen2.backends.learner.forward import fused_norms

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.mark.parametrize(
    ("network", "count"),
    [
        (LlamaForCausalLM(LlamaConfig(**SHAPE)), 5),
        (Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)), 9),
    ],
)
def test_loss_and_gradient_stay(monkeypatch, network, count):
    ids = torch.arange(20)[None] % 64
    calls = []
    original = torch.nn.functional.rms_norm

    def counted(*args):
        calls.append(args)
        return original(*args)

    monkeypatch.setattr("ragen2.backends.learner.forward.rms_norm", counted)

    def gradient():
        network.zero_grad()
        loss = network(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss.item(), [p.grad.clone() for p in network.parameters()]

    wanted, wanted_grads = gradient()
    assert not calls
    with fused_norms(network):
        found, found_grads = gradient()
    assert len(calls) == count
    assert found == pytest.approx(wanted, abs=1e-6)
    for one, other in zip(found_grads, wanted_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    gradient()
    assert len(calls) == count


def test_a_norm_in_low_precision_keeps_its_own_rounding():
    network = LlamaForCausalLM(LlamaConfig(**SHAPE)).bfloat16()
    ids = torch.arange(9)[None]
    with torch.no_grad():
        plain = network(input_ids=ids).logits
        with fused_norms(network):
            assert torch.equal(network(input_ids=ids).logits, plain)
