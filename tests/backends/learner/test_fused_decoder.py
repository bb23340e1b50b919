"""Our own fused layers give Hugging Face's hidden states and gradients."""

from __future__ import annotations

from collections.abc import Callable
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

from ragen2.backends.learner import fused as fused_module
from ragen2.backends.learner.fused import FusedDecoder, fused_decoder
from ragen2.backends.learner.packing import Packing, packed_attention, run_packed

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODELS = [
    (LlamaForCausalLM, LlamaConfig(**SHAPE)),
    (Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    (Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=16)),
]
LENGTHS = (30, 12, 5, 12, 20, 4)
SHARED = ((0, 0), (0, 18), (0, 18), (0, 18), (0, 0), (4, 16))
CHOSEN = torch.tensor([3, 20, 33, 45, 50, 60, 80])


def random_network(kind: Any, config: Any) -> Any:
    torch.manual_seed(3)
    network = kind(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return network


def packed_row() -> tuple[torch.Tensor, Packing]:
    torch.manual_seed(4)
    packing = Packing.of(LENGTHS, torch.device("cpu"), SHARED)
    return torch.randint(0, SHAPE["vocab_size"], (1, sum(LENGTHS))), packing


def own(network: Any) -> FusedDecoder:
    found = fused_decoder(network, torch.float32)
    assert found is not None
    found.refresh()
    return found


def gradients(
    network: Any, run: Callable[[], torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    network.zero_grad()
    rows = run()
    torch.manual_seed(5)
    (rows * torch.randn_like(rows)).sum().backward()
    grads = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    return rows.detach(), grads


@pytest.mark.parametrize(("kind", "config"), MODELS)
@pytest.mark.parametrize("repeats", [False, True, None])
def test_rows_and_gradients_are_those_of_hugging_face(
    kind: Any, config: Any, repeats: bool | None
) -> None:
    network = random_network(kind, config)
    ids, packing = packed_row()

    def theirs() -> torch.Tensor:
        with packed_attention(network.model):
            out = run_packed(network.model, ids, packing)
        rows: torch.Tensor = out.last_hidden_state[0][CHOSEN]
        return rows

    fused = own(network)
    wanted, wanted_grads = gradients(network, theirs)
    found, grads = gradients(network, lambda: fused.rows(ids[0], packing, CHOSEN, repeats=repeats))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert grads.keys() == wanted_grads.keys()
    for name, grad in grads.items():
        scale = float(wanted_grads[name].abs().max())
        assert scale > 0
        torch.testing.assert_close(grad, wanted_grads[name], atol=1e-5 * scale, rtol=1e-4)


def test_without_gradients_the_rows_are_the_same() -> None:
    network = random_network(*MODELS[0])
    ids, packing = packed_row()
    fused = own(network)
    with torch.no_grad():
        rows = fused.rows(ids[0], packing, CHOSEN, repeats=None)
    assert not rows.requires_grad
    assert torch.equal(rows, fused.rows(ids[0], packing, CHOSEN, repeats=True).detach())


def test_frozen_parameters_get_no_gradient() -> None:
    network = random_network(*MODELS[2])
    ids, packing = packed_row()
    frozen = network.model.layers[1].mlp.up_proj.weight.requires_grad_(False)
    fused = own(network)
    _, grads = gradients(network, lambda: fused.rows(ids[0], packing, CHOSEN, repeats=None))
    assert frozen.grad is None
    assert "model.layers.1.mlp.gate_proj.weight" in grads
    assert "model.layers.0.self_attn.q_norm.weight" in grads


def test_new_weights_count_after_a_refresh() -> None:
    network = random_network(*MODELS[0])
    ids, packing = packed_row()
    fused = own(network)
    before = fused.rows(ids[0], packing, CHOSEN, repeats=None).detach()
    with torch.no_grad():
        network.model.layers[0].mlp.down_proj.weight.mul_(2.0)
    assert torch.equal(fused.rows(ids[0], packing, CHOSEN, repeats=None).detach(), before)
    fused.refresh()
    assert not torch.equal(fused.rows(ids[0], packing, CHOSEN, repeats=None).detach(), before)


def test_longer_samples_than_any_before_have_their_rotations() -> None:
    network = random_network(*MODELS[0])
    fused = own(network)
    for length in (8, 100):
        packing = Packing.of([length], torch.device("cpu"))
        ids = torch.arange(length)[None] % SHAPE["vocab_size"]
        chosen = torch.tensor([length - 1])
        found = fused.rows(ids[0], packing, chosen, repeats=None)
        wanted = network.model(input_ids=ids).last_hidden_state[0][chosen]
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_what_we_cannot_run_is_left_to_hugging_face() -> None:
    config = GPT2Config(vocab_size=96, n_embd=32, n_layer=1, n_head=2)
    assert fused_decoder(GPT2LMHeadModel(config), torch.float32) is None
    network = random_network(*MODELS[0])
    assert fused_decoder(network, torch.bfloat16) is None
    assert fused_decoder(network.to(torch.bfloat16), torch.float32) is None


@pytest.mark.parametrize(("model", "heads", "width"), [(0, 12, 8), (2, 12 + 8, 16)])
def test_a_gpu_keeps_as_many_layers_as_memory_allows(
    monkeypatch: pytest.MonkeyPatch, model: int, heads: int, width: int
) -> None:
    """Queries, what they attended to, keys and values; with norms of heads, what went into these too."""
    fused = own(random_network(*MODELS[model]))
    assert fused._kept_layers(10**9) == SHAPE["num_hidden_layers"]  # a CPU keeps them all
    per_token = 4 * 32 + (heads * width + 2 * 48) * 4 + 4 * 4
    weight = torch.nn.Parameter(torch.empty(96, 32, device="meta"))
    monkeypatch.setattr(fused.decoder.embed, "weight", weight)
    monkeypatch.setattr(torch.nn.Parameter, "device", torch.device("cuda:0"), raising=False)
    free = 10 * fused_module.KEPT_BYTES
    monkeypatch.setattr(fused_module, "free_memory", lambda _: free)
    tokens = fused_module.KEPT_BYTES // (2 * per_token)
    assert fused._kept_layers(tokens) == 2
    assert fused._kept_layers(3 * tokens) == 0
    free = fused_module.KEPT_BYTES
    assert fused._kept_layers(tokens) == 1  # half of what is free
