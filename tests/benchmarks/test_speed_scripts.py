"""The scripts that measure speed do the work they name."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_step_of_the_scaling_script_has_exactly_the_size_it_is_told():
    script = import_module("scaling")
    work = script.Work("tiny", prompts=2, group_size=3, turns=2, tokens=5)
    found = script.timed_steps(work, *script.random_agent("tiny", "cpu"), repeats=1)
    assert found["sampled_tokens"] == found["trained_tokens"] == 2 * 3 * 2 * 5
    assert found["seconds_rollout"] > 0
    assert found["seconds_update"] > 0


def test_an_axis_changes_one_setting_of_the_base(monkeypatch):
    script = import_module("scaling")
    seen = []
    monkeypatch.setattr(script, "timed_steps", lambda work, *_: seen.append(work) or {})
    base = script.BASE["cpu"]
    found = script.points("turns", [1, 3], base, "cpu", 1)
    assert seen == [replace(base, turns=1), replace(base, turns=3)]
    assert [(one["axis"], one["value"]) for one in found] == [("turns", 1), ("turns", 3)]
    assert found[0]["parameters"] == sum(
        p.numel() for p in script.random_agent("tiny", "cpu")[0].network.parameters()
    )


@pytest.mark.parametrize(("name", "millions"), [("135M", 134.5), ("360M", 361.8)])
def test_the_large_shapes_are_those_of_smollm2(name, millions):
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = import_module("scaling").SHAPES[name]
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        network = LlamaForCausalLM(config)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)


def test_decode_makes_groups_of_sixteen_where_it_can():
    sizes = import_module("decode").sizes([1, 16, 512], 86, 128)
    assert [(size.sequences, size.prompts) for size in sizes] == [(1, 1), (16, 1), (512, 32)]


def test_a_point_of_decode_compares_with_its_own_limit(capsys):
    script = import_module("decode")
    policy = script.open_endless("ragen2-tiny", "cpu", "auto")
    size = script.RolloutSize(sequences=2, prompts=1, prompt_tokens=4, new_tokens=3)
    found = script.point(policy, size, 1e9, 1)
    allowed = 2 * 1e9 / (found["weight_bytes"] + 2 * found["cache_bytes"])
    assert found["limit_tokens_per_second"] == pytest.approx(allowed)
    assert found["share"] == pytest.approx(found["tokens_per_second"] / allowed)
    assert "tokens/s of" in capsys.readouterr().out
