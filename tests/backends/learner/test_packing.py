"""Packed samples are read as if each were alone, or not packed at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from ragen2.backends.learner import packing
from ragen2.backends.learner.packing import (
    Packing,
    honours_packing,
    packed_attention,
    run_packed,
)

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}
FAMILIES = {
    "llama": LlamaConfig(**SHAPE),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=8),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
}
OTHERS = {
    "a window": MistralConfig(**SHAPE, sliding_window=8),
    "windows in some layers": Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "no attention": MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2),
    "attention of its own": BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
}


def decoder_of(config: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval().get_decoder()


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_samples_are_read_and_trained_as_if_alone(family: str) -> None:
    decoder = decoder_of(FAMILIES[family])
    lengths = [7, 1, 12, 5]
    ids = torch.randint(64, (1, sum(lengths)), generator=torch.Generator().manual_seed(1))
    pull = torch.randn(sum(lengths), 32, generator=torch.Generator().manual_seed(2))

    def gradient(rows: torch.Tensor) -> torch.Tensor:
        decoder.zero_grad()
        (rows * pull).sum().backward()
        return torch.cat([p.grad.flatten() for p in decoder.parameters()])

    alone = [decoder(input_ids=part).last_hidden_state for part in ids.split(lengths, 1)]
    wanted = torch.cat(alone, 1)[0]
    with packed_attention(decoder):
        chosen = Packing.of(lengths, torch.device("cpu"))
        found = run_packed(decoder, ids, chosen).last_hidden_state[0]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient(found), gradient(wanted), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_families_that_attend_to_all_before_are_packed(family: str, dtype: torch.dtype) -> None:
    assert honours_packing(decoder_of(FAMILIES[family]), dtype)


@pytest.mark.parametrize("kind", OTHERS)
def test_models_that_would_mix_neighbours_are_not_packed(kind: str) -> None:
    assert not honours_packing(decoder_of(OTHERS[kind]), torch.float32)


def test_one_layer_that_goes_its_own_way_is_enough_to_refuse() -> None:
    """Its weights are so small that the hidden rows alone would not tell."""
    decoder = decoder_of(FAMILIES["llama"])
    with torch.no_grad():
        decoder.layers[1].self_attn.o_proj.weight.mul_(1e-9)
    assert honours_packing(decoder, torch.float32)
    decoder.layers[1].self_attn.config = LlamaConfig(**SHAPE, attn_implementation="sdpa")
    assert not honours_packing(decoder, torch.float32)


def test_attention_is_put_back_even_after_an_error() -> None:
    decoder = decoder_of(FAMILIES["llama"])
    before = decoder.config._attn_implementation
    inside = []

    def fail() -> None:
        with packed_attention(decoder):
            inside.append(decoder.config._attn_implementation)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert inside != [before]
    assert decoder.config._attn_implementation == before


def test_the_way_of_a_gpu_is_the_way_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's kernel is replaced by its definition: rows (tokens, heads, width), bounds, a window."""

    def by_definition(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bounds: torch.Tensor,
        bounds_k: torch.Tensor,
        longest: int,
        longest_k: int,
        *,
        scale: float,
        window_size: tuple[int, int],
    ) -> torch.Tensor:
        assert query.shape == key.shape == value.shape
        assert query.dtype == key.dtype == value.dtype
        assert bounds.dtype == torch.int32
        assert (longest, longest_k, window_size) == (7, 7, (-1, 0))
        at = torch.arange(len(query))
        owner = torch.searchsorted(bounds, at, right=True)
        seen = (owner[:, None] == owner) & (at[:, None] >= at)
        scores = torch.einsum("qhd,khd->hqk", query, key) * scale
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        assert torch.equal(bounds, bounds_k)
        return torch.einsum("hqk,khd->qhd", weights, value)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", by_definition)
    monkeypatch.setattr(
        packing, "_varlen_settings", frozenset
    )  # no groups of heads: keys are repeated
    numbers = torch.Generator().manual_seed(0)
    query = torch.randn(12, 4, 8, generator=numbers)
    key, value = (torch.randn(12, 2, 8, generator=numbers) for _ in range(2))
    chosen = Packing.of([3, 7, 2], torch.device("cpu"))
    wanted = packing.packed_causal(query, key, value, chosen, 0.3)
    found = packing._by_varlen(query.double(), key, value, chosen, 0.3)
    assert found.dtype == value.dtype
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("lengths", [(9, 4, 4, 4, 6, 5, 5), (9, 4, 3, 4, 6, 5, 1)])
def test_samples_with_one_beginning_see_what_they_see_alone(lengths: tuple[int, ...]) -> None:
    """Of one length, and of different ones, which are filled up."""
    shared = ((0, 0), (0, 7), (0, 7), (0, 7), (0, 0), (4, 3), (4, 3))
    chosen = Packing.of(lengths, torch.device("cpu"), shared)
    numbers = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(sum(lengths), heads, 8, generator=numbers) for heads in (4, 2, 2))
    found = torch.split(packing.packed_causal(q, k, v, chosen, 0.3), lengths)
    parts = [torch.split(each, lengths) for each in (q, k, v)]
    for row, (other, count) in enumerate(shared):
        whole = [torch.cat([each[other][:count], each[row]]) for each in parts]
        alone = Packing.of([len(whole[0])], torch.device("cpu"))
        wanted = packing.packed_causal(*whole, alone, 0.3)[count:]
        torch.testing.assert_close(found[row], wanted)
