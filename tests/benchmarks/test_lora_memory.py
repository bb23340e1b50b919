"""The memory benchmark of whole steps: each case in a process of its own, and shapes that are Qwen2.5's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import lora_memory as script

SMALL = ["--set=rollout.prompts=2", "--set=rollout.group_size=2", "--set=rollout.max_tokens=4"]


def test_two_cases_of_a_tiny_shape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    words = ["--cases", "tiny:lora", "tiny:full", "odd:full", "--steps=1", "--device=cpu", *SMALL]
    monkeypatch.setattr(sys, "argv", ["lora_memory.py", f"--out={out}", *words])
    script.main()
    lora, full, odd = json.loads(out.read_text())["cases"]
    assert (lora["case"], full["case"], odd["case"]) == ("tiny:lora", "tiny:full", "odd:full")
    assert odd["error"] == "KeyError: 'odd'"
    for found in (lora, full):
        assert found["seconds"] > 0.0
        assert found["seconds_by_phase"].keys() >= {"rollout", "score", "update"}
        assert found["tokens"] == 2 * 2 * 5 * 4
        assert found["peak_gib"] is None
        assert found["said"] == []
        assert found["is_fused"] is True
    assert lora["parameters"] != lora["trained"]
    assert full["parameters"] == full["trained"]


def test_time_that_is_over_leaves_cases_out_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "figures.json"
    words = [f"--out={out}", "--cases", "tiny:lora", "--seconds=0"]
    monkeypatch.setattr(sys, "argv", ["lora_memory.py", *words])
    script.main()
    assert json.loads(out.read_text())["cases"] == [{"case": "tiny:lora", "error": "no time left"}]


@pytest.mark.parametrize(
    ("shape", "billions"), [("0.5B", 0.494), ("1.5B", 1.544), ("3B", 3.086), ("7B", 7.616)]
)
def test_shapes_are_those_of_qwen(shape: str, billions: float) -> None:
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(script.config_of(shape))
    count = sum(weight.numel() for weight in network.parameters())
    assert count / 1e9 == pytest.approx(billions, abs=0.001)
