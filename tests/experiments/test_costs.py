"""Estimates: parameter counts of known models, and memory and time that grow as they must."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ragen2.algorithms import GRPO, PPO
from ragen2.backends.settings import NewModel
from ragen2.config import RunConfig
from ragen2.experiments.costs import (
    CORE,
    GIB,
    H200,
    KNOWN,
    ModelShape,
    run_cost,
    shape_of,
)
from ragen2.rollout import Rollout

SMALL = KNOWN["smollm2-135m"]


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("smollm2-135m", 134.5),
        ("qwen2.5-0.5b", 494.0),
        ("qwen2.5-1.5b", 1543.7),
        ("qwen2.5-3b", 3085.9),
        ("qwen2.5-vl-3b", 3754.6),
        ("qwen2.5-7b", 7615.6),
        ("llama-3.2-3b", 3212.7),
    ],
)
def test_parameters_are_those_that_the_models_are_published_with(name, millions):
    assert KNOWN[name].parameters / 1e6 == pytest.approx(millions, rel=2e-3)


def test_the_embedded_model_is_counted_from_its_configuration():
    assert shape_of("ragen2-tiny").parameters == 1_131_904


def test_the_embedded_model_that_sees_is_known_by_its_name_and_counted_with_its_eyes():
    # 266,560 in its file, less 1,056 biases and three norms of the tower.
    found = shape_of("ragen2-tiny-vl")
    assert found.parameters == 266_560 - 1_056 - 3 * 32
    assert found.tower == 72_544 - 3 * 32


def test_a_model_that_will_be_made_is_counted_from_its_recipe():
    new = NewModel(hidden=16, layers=1, heads=2, intermediate=16, vocabulary=300)
    # Table 300 x 16; attention 4 x 16 x 16; MLP 3 x 16 x 16; two norms of 16; the last norm.
    assert shape_of("anything", new).parameters == 4800 + 1024 + 768 + 32 + 16


@pytest.mark.parametrize("path", ["Qwen/Qwen2.5-3B-Instruct", "/models/qwen2.5-3b", "QWEN2.5-3B"])
def test_a_hub_id_is_known_by_its_name(path):
    assert shape_of(path) == KNOWN["qwen2.5-3b"]


def test_an_unknown_model_is_unknown():
    assert shape_of("someone/else") is None


def test_a_folder_is_read(tmp_path):
    data = {
        "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 32, "vocab_size": 100, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(data))
    assert shape_of(str(tmp_path)) == ModelShape(8, 2, 4, 2, 2, 32, 100, is_tied=False)


NESTED = {
    "text_config": {
        "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 2, "intermediate_size": 11_008, "vocab_size": 151_936,
    },
    "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420},
}  # fmt: skip


def test_a_folder_whose_sizes_are_inside_text_config_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(NESTED))
    known = KNOWN["qwen2.5-vl-3b"]
    found = shape_of(str(tmp_path))
    assert replace(found, tower=0) == replace(known, tower=0)
    assert found.tower == pytest.approx(known.tower, rel=2e-3)


@pytest.mark.parametrize("data", [{"n_embd": 8}, {**NESTED, "vision_config": {"embed_dim": 8}}])
def test_a_folder_with_other_names_for_its_sizes_is_unknown(tmp_path, data):
    (tmp_path / "config.json").write_text(json.dumps(data))
    assert shape_of(str(tmp_path)) is None


def config(**more) -> RunConfig:
    given = {
        "algorithm": GRPO(),
        "rollout": Rollout(prompts=64, group_size=16, max_tokens=96),
        "steps": 10,
    }
    return RunConfig(**{**given, **more})


def gib_of(**learner: object) -> float:
    given = RunConfig().learner.model_copy(update=learner)
    rollout = Rollout(prompts=8, group_size=16, max_tokens=96)
    return run_cost(config(learner=given, rollout=rollout), SMALL, H200).gpu_gib


@pytest.mark.parametrize(
    ("again", "measured", "within"), [(True, 4.84, 0.05), ("auto", 11.2, 0.15)]
)
def test_memory_is_near_the_update_that_was_measured(again, measured, within):
    """Weights, gradients and moments, and 32,768 tokens of activations, in GiB on an H200."""
    # The measured program had neither a sampler's copy of the weights nor its keys and values.
    lanes, length = 128, 200 + 0.75 * 5 * (48 + 60)
    sampler = (
        2 * SMALL.parameters + 4 * SMALL.layers * SMALL.kv_heads * SMALL.head_size * lanes * length
    )
    found = gib_of(gradient_checkpointing=again) - sampler / GIB
    assert found == pytest.approx(measured, rel=within)


def test_layers_that_never_compute_again_need_more_than_those_that_do_where_they_must():
    found = [gib_of(gradient_checkpointing=again) for again in (True, "auto", False)]
    assert found[1] - found[0] == pytest.approx(5.0)
    assert found[2] - found[0] > 10.0


def test_kl_keeps_the_starting_model_and_ppo_a_critic():
    plain = run_cost(config(), SMALL, H200).gpu_gib
    with_kl = run_cost(config(algorithm=GRPO(kl_coefficient=0.1)), SMALL, H200).gpu_gib
    with_critic = run_cost(config(algorithm=PPO()), SMALL, H200).gpu_gib
    assert (with_kl - plain) * GIB == pytest.approx(4 * SMALL.parameters)
    assert (with_critic - plain) * GIB == pytest.approx(16 * SMALL.parameters)


def test_time_is_proportional_to_steps_but_for_evaluations():
    def minutes(steps: int) -> float:
        found = config(steps=steps)
        evaluation = found.evaluation.model_copy(update={"every": 10_000})
        return run_cost(found.model_copy(update={"evaluation": evaluation}), SMALL, H200).minutes

    assert minutes(30) - minutes(20) == pytest.approx(minutes(20) - minutes(10))
    assert minutes(20) > minutes(10)


def test_a_larger_model_a_slower_machine_and_a_critic_take_longer():
    base = run_cost(config(), SMALL, H200).minutes
    assert run_cost(config(), KNOWN["qwen2.5-3b"], H200).minutes > base
    assert run_cost(config(), SMALL, CORE).minutes > 100 * base
    assert run_cost(config(algorithm=PPO()), SMALL, H200).minutes > base
