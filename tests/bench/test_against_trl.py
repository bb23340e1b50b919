"""The race against TRL: its arithmetic here, TRL itself in tests/parity (make parity)."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from ragen2.bench import trl as bench_trl
from ragen2.bench.peer_job import PeerJob
from ragen2.bench.trl import (
    MODES,
    Lap,
    Race,
    chosen_modes,
    import_trl,
    peer_prompt_tokens,
    prompt_texts,
    race_all,
    summary,
)
from ragen2.errors import ConfigError, DependencyError, RunError


def job(tokenizer, texts: list[str]) -> PeerJob:
    prompts = [(seed, tokenizer.encode(text)) for seed, text in enumerate(texts)]
    return PeerJob(
        prompts,
        lambda seeds, replies: [0.0] * len(replies),
        prompts_per_step=2,
        group_size=4,
        max_tokens=8,
        temperature=1.0,
        lr=1e-3,
    )


def lap(seconds: float, tokens: int, cpu_seconds: float | None = None) -> Lap:
    return Lap(seconds, seconds if cpu_seconds is None else cpu_seconds, tokens)


def test_warm_up_steps_do_not_count_and_the_median_does():
    ours = [lap(9.0, 10), lap(1.0, 10), lap(3.0, 10), lap(2.0, 10)]
    theirs = [lap(1.0, 10, 9.0), lap(8.0, 20, 9.0), lap(12.0, 20, 9.0), lap(80.0, 20, 9.0)]
    found = summary(Race(ours, theirs), warmup=1)
    assert found["ours"]["seconds_a_token"] == 0.2
    assert found["theirs"]["seconds_a_token"] == 0.6
    assert found["ratio"] == pytest.approx(3.0)
    assert found["cpu_ratio"] == pytest.approx((9.0 / 20) / 0.2)
    assert found["ours"]["laps"][0] == {"seconds": 9.0, "cpu_seconds": 9.0, "tokens": 10}


def test_ours_is_held_to_the_fastest_mode_that_runs(monkeypatch):
    speeds = {"generate": 8.0, "static": 6.0}

    def race(policy, job, way, *, our_step):
        if way == "continuous":
            raise RuntimeError("no\n  such kernel")
        return Race([lap(2.0, 1)], [lap(speeds[way], 1)])

    monkeypatch.setattr(bench_trl, "race", race)
    ways = ["generate", "continuous", "static"]
    found = race_all(None, None, ways, our_step=lambda step: step, warmup=0)
    assert (found["fastest"], found["ratio"]) == ("static", 3.0)
    assert found["ways"]["continuous"] == {"failed": "RuntimeError: no such kernel"}
    with pytest.raises(RunError, match=r"cannot do this job here \(continuous: RuntimeError"):
        race_all(None, None, ["continuous"], our_step=lambda step: step, warmup=0)


def test_all_modes_are_tried_on_a_gpu_and_the_sensible_ones_on_a_cpu():
    assert chosen_modes(None, torch.device("cuda")) == list(MODES)
    assert chosen_modes(None, torch.device("cpu")) == ["generate", "static"]
    assert chosen_modes(["bfloat16"], torch.device("cpu")) == ["bfloat16"]
    with pytest.raises(ConfigError, match=r"--way must be one of generate, .*, got paged"):
        chosen_modes(["paged"], torch.device("cpu"))


def test_prompts_go_over_as_text_that_encodes_to_the_same_tokens(embedded, lake_prompts):
    tokenizer = embedded[1]
    asked = job(tokenizer, ["a", "b"])
    asked = PeerJob(
        [(seed, ids.tolist()) for seed, ids in enumerate(lake_prompts)],
        asked.reward,
        prompts_per_step=2,
        group_size=4,
        max_tokens=8,
        temperature=1.0,
        lr=1e-3,
    )
    texts = [text for _, text in prompt_texts(tokenizer, asked)]
    assert tokenizer.hf(text=texts)["input_ids"] == [ids.tolist() for ids in lake_prompts]
    assert peer_prompt_tokens(tokenizer, asked) == asked.prompt_tokens
    assert asked.steps == 3


def test_a_missing_or_another_trl_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(DependencyError, match=r"needs TRL in this Python .*pip install trl==1"):
        import_trl()
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(__version__="0.9"))
    with pytest.raises(DependencyError, match=r"written for TRL 1.16.0, found 0.9; pip install"):
        import_trl()
