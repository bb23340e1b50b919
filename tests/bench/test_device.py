"""The limit from bandwidth: bytes are counted by hand."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ragen2.bench import device as bench_device
from ragen2.bench.device import (
    cache_values_per_token,
    copy_bandwidth,
    decode_limit,
    machine,
    read_weights,
)


def model(*, tied: bool) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config)


LAYERS = 3 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 20 + 2 * 16) + 16
"""q, k and v, o, the MLP and two norms of each layer, and the last norm."""


@pytest.mark.parametrize("tied", [True, False])
def test_a_table_of_embeddings_is_read_only_as_a_head(tied):
    assert read_weights(model(tied=tied)) == LAYERS + 50 * 16


def test_a_token_leaves_a_key_and_a_value_in_every_layer():
    assert cache_values_per_token(model(tied=True).config) == 2 * 3 * 2 * (16 // 4)


def test_tokens_per_second_follow_from_bytes_and_bandwidth():
    network = model(tied=True)
    limit = decode_limit(network, 10, 5.0, bytes_each=2, bandwidth=1e6)
    step = 2 * (LAYERS + 50 * 16) + 10 * 5 * 2 * 48
    assert limit.tokens_per_second == pytest.approx(10 * 1e6 / step)


def test_the_figures_say_what_they_were_measured_on():
    found = machine(torch.device("cpu"))
    assert set(found) == {"device", "threads", "torch", "transformers"}


def test_a_copy_reads_and_writes_each_byte_and_the_fastest_counts(monkeypatch):
    times = iter([0.0, 5.0] * 3 + [0.0, 2.0] + [0.0, 4.0] * 4)
    monkeypatch.setattr(bench_device.time, "perf_counter", lambda: next(times))
    assert copy_bandwidth(torch.device("cpu"), size=1000) == 2 * 1000 / 2.0
