"""vLLM in this process writes and scores as our own model does, also after the weights have changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from vllm_side import SOURCE

from ragen2.backends.agent import locate, open_model
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.settings import EMBEDDED
from ragen2.backends.vllm.policy import VllmPolicy
from ragen2.errors import ConfigError
from ragen2.policy import SamplingParams
from ragen2.types import Finish


@pytest.fixture(scope="module")
def inside() -> VllmPolicy:
    network, tokenizer = open_model(EMBEDDED, device="cpu")
    local = HFPolicy(network, tokenizer, engine="plain")
    return VllmPolicy(local, locate(EMBEDDED).source, memory=0.5)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probs_are_those_of_our_own_model(inside, agree, requests, pairs, temperature):
    agree(inside, inside.local, requests, pairs, SamplingParams(temperature=temperature))


@pytest.mark.parametrize(
    ("params", "finish"),
    [
        (SamplingParams(temperature=0.0), Finish.STOP),
        (SamplingParams(temperature=0.0, stop=()), Finish.EOS),
        (SamplingParams(temperature=0.0, max_tokens=3), Finish.LENGTH),
    ],
)
def test_the_likeliest_reply_is_the_same_token_by_token(inside, requests, params, finish):
    found, expected = inside.sample(requests, params), inside.local.sample(requests, params)
    for one, other in zip(found, expected, strict=True):
        assert one.ids_T.tolist() == other.ids_T.tolist()
        assert (one.text, one.finish) == (other.text, other.finish)
    assert {one.finish for one in found} == {finish}


def test_a_reply_depends_on_its_key_and_on_nothing_else(inside, requests):
    first, alone = (
        inside.sample(requests, SamplingParams()),
        inside.sample(requests[3:4], SamplingParams()),
    )
    again = inside.sample(requests, SamplingParams())
    assert [one.ids_T.tolist() for one in again] == [one.ids_T.tolist() for one in first]
    assert alone[0].ids_T.tolist() == first[3].ids_T.tolist()
    assert len({tuple(one.ids_T.tolist()) for one in first}) > 6, "members of a pair differ"


def test_scores_at_another_temperature_come_from_our_own_model(inside, pairs):
    for found, expected in zip(
        inside.score(pairs, 0.5), inside.local.score(pairs, 0.5), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("params", [SamplingParams(top_p=0.9), SamplingParams(top_k=5)])
def test_a_cut_choice_is_refused(inside, requests, params):
    with pytest.raises(ConfigError, match=r"cannot cut the choice .*; switch both off"):
        inside.sample(requests, params)


def test_new_weights_are_pushed_once_and_taken_whole(
    inside, agree, requests, pairs, change_weights, monkeypatch
):
    """The head of the embedded model is tied to its embedding, which vLLM's own reload leaves behind."""
    calls: list[str] = []
    call = inside.engine.collective_rpc
    monkeypatch.setattr(
        inside.engine,
        "collective_rpc",
        lambda name, *a, **k: (calls.append(name), call(name, *a, **k))[1],
    )
    old = inside.score(pairs)
    assert calls.count("reload_weights") == 0
    change_weights(inside.local)
    moved = [
        np.abs(one - other).max() for one, other in zip(old, inside.local.score(pairs), strict=True)
    ]
    assert max(moved) > 0.1, "the change can be seen"
    agree(inside, inside.local, requests, pairs, SamplingParams())
    agree(inside, inside.local, requests, pairs, SamplingParams(temperature=0.7))
    assert calls.count("reload_weights") == 1


def test_a_training_run_samples_with_the_weights_it_has(tmp_path):
    """Steps change the weights a lot; what vLLM sampled is what the learner finds likely."""
    settings = {
        "steps": 3,
        "model.engine": "vllm",
        "model.engine_memory": 0.5,
        "learner.lr": 1e-3,
        "learner.epochs": 1,
        "learner.minibatches": 1,  # a second one would find weights that have moved
        "rollout.prompts": 4,
        "rollout.group_size": 4,
        "filter.kind": "keep_all",
        "env.max_turns": 2,
        "evaluation.tasks": 4,
        "evaluation.probe_prompts": 0,
    }
    steps = train(tmp_path / "run", settings)
    mismatch = [step["metrics"]["update/sampler_mismatch"] for step in steps[1:]]
    assert len(mismatch) == 3
    assert max(mismatch) < 1e-3
    assert "collapse/first_turn/mi_estimate" in steps[-1]["metrics"]


def train(out: Path, settings: dict[str, object]) -> list[dict]:
    sets = [f"--set={name}={value}" for name, value in settings.items()]
    done = subprocess.run(
        [sys.executable, "-m", "ragen2", "train", *sets, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
