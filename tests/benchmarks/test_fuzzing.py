"""A seeded slice of the fuzzer: every reader of foreign bytes gives a result or one line, and that soon."""

from __future__ import annotations

import json
import math
from functools import reduce
from pathlib import Path

import pytest

from fuzzing.__main__ import READERS, add, fuzz, try_input
from ragen2.errors import RunError

INPUTS = {
    "run: ": 10,
    "run: PNG": 200,
    "log: ": 20,
    "model: ": 4,
    "model: shape": 100,
    "data: ": 50,
}
"""Of readers whose names begin so; they differ in speed."""
OTHERS = 60


def inputs_for(name: str) -> int:
    known = [start for start in INPUTS if name.startswith(start)]
    return INPUTS[max(known, key=len)] if known else OTHERS


@pytest.mark.parametrize("name", READERS)
def test_damaged_inputs_are_read_or_refused(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    wanted = inputs_for(name)
    found = fuzz(name, 0, seconds=600, inputs=wanted, kept=tmp_path)
    assert found["faults"] == {}
    assert found["inputs"] == found["read"] + found["refused"] == wanted


DEEP = b"[" * 100_000
FOUND = [
    ("run: run.toml", ("env", "size"), [4]),
    ("run: rollouts", (0, "turns", 0, "reward"), "x"),
    ("run: rollouts", (0, "turns", 0, "reward"), 1e400),
    ("run: rollouts", (0, "turns", 0, "ids", 0), 10**30),
    ("run: rollouts", (0, "seed"), [1]),
    ("run: scores", ("scopes", 0, "labels"), []),
    ("run: scores", ("scopes", 0, "logp", 0, 0), math.nan),
    ("run: probe.json", ("trends", 0, "part"), "x"),
    ("run: trainer_state.json", ("watch", "warning"), None),
    ("run: steps.jsonl", (1, "metrics", "collapse/first_turn/retrieval_chance"), 1e-320),
    ("run: steps.jsonl", (1, "metrics", "collapse/first_turn/num_traces"), 1e308),
    ("log: verl", (0, "score"), 10**400),
    ("log: RAGEN", (0, "metadata", "total_reward"), 1e308),
    ("log: JSON", (), b'[{"prompt": ' + b"9" * 5000),
    ("journal", (1, "ids"), 3),
    ("journal", (1, "ids", 0), 10**30),
    ("journal", (), b'{"model": "model"}\n' + DEEP + b"\n"),
    ("model: shape", ("hidden_size",), "x"),
    ("model: generation_config.json", ("eos_token_id",), -(2**31) - 1),
    ("model: config.json", ("num_hidden_layers",), 2048),
    ("model: config.json", ("hidden_size",), 4096),
    ("model: generation_config.json", ("eos_token_id",), "x"),
    ("model: tokenizer_config.json", ("model_max_length",), [1]),
    ("data: SearchQA questions", (0, "answers"), 3),
    ("data: SearchQA questions", (0, "supporting_facts"), [3]),
    ("data: SearchQA passages", (2, "context", 0, 1), [3]),
    ("data: WebShop products", (0, "instruction"), 3),
    ("data: WebShop products", (0, "price"), [1e308, -1e308]),
    ("data: MetaMathQA", (0, "question"), "\ud800"),
    ("data: DeepCoder problems", (0, "test_list", 0), "assert f("),
    ("reply: completions", ("choices", 0, "logprobs"), [1]),
    ("reply: completions", ("choices", 0, "token_ids", 0), "x"),
    ("reply: completions", ("choices", 0, "finish_reason"), []),
    ("reply: completions", ("usage", "prompt_tokens"), "x"),
    ("reply: completions", ("data",), [3]),
    ("reply: completions", (), DEEP),
    ("reply: scores", ("choices", 0, "index"), "x"),
    ("reply: scores", ("choices", 0, "logprobs", "tokens"), 3),
    ("reply: passages", (), DEEP),
    ("request to watch", (), b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n"),
]
"""What gave a traceback once: a value at a place of a good input, or bytes in place of all of it."""


@pytest.mark.parametrize(("name", "place", "value"), FOUND)
def test_what_was_found_once_is_not_found_again(name, place, value, tmp_path: Path):
    reader = READERS[name](tmp_path)
    data = value
    if place:
        document = reader.form.parse(reader.seeds[0])
        holder = reduce(lambda held, key: held[key], place[:-1], document)
        holder[place[-1]] = value
        data = reader.form.pack(document)
    assert try_input(reader.read, data) in {"read", "refused"}


def test_what_is_neither_a_result_nor_one_line_is_a_fault():
    def refuse(data: bytes) -> None:
        raise RunError("it is damaged")

    def break_down(data: bytes) -> None:
        raise KeyError(data)

    def leave(data: bytes) -> None:
        raise SystemExit(0)

    assert try_input(lambda data: None, b"") == "read"
    assert try_input(refuse, b"") == "refused"
    assert try_input(break_down, b"").startswith("traceback: KeyError ")
    assert try_input(leave, b"").startswith("traceback: SystemExit ")


def test_an_input_that_takes_too_long_is_a_hang(monkeypatch):
    monkeypatch.setattr("fuzzing.__main__.SLOWEST", 1)

    def wait(data: bytes) -> None:
        while True:
            try:
                data.hex()
            except ValueError:
                return

    assert try_input(wait, b"").startswith("hang: ")


def test_pieces_add_up(tmp_path: Path):
    counts = {"inputs": 3, "read": 1, "refused": 2, "tracebacks": 0, "hangs": 0, "seconds": 5}
    for peak in (70, 60):
        add(tmp_path / "fuzzing.json", {"journal": {**counts, "peak_mb": peak, "faults": {}}})
    found = json.loads((tmp_path / "fuzzing.json").read_text())
    assert found["pieces"] == 2
    assert found["total"]["inputs"] == 6
    assert found["readers"]["journal"]["peak_mb"] == 70
