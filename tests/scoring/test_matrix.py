"""Cross-scoring: every trace under every distinct prompt, summed over its tokens."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.backends.scripted import ByteTokenizer, ScriptedPolicy
from ragen2.scoring import Trace, cross_score

TOKENIZER = ByteTokenizer()


def trace(prompt: str, reasoning: str) -> Trace:
    return Trace(
        np.array(TOKENIZER.encode(prompt), dtype=np.int64),
        np.array(TOKENIZER.encode(reasoning), dtype=np.int64),
    )


def scorer(logp) -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt, rng: "", logp)


def test_rows_are_traces_and_columns_prompts_in_order_of_appearance():
    values = {("A", "x"): -1.0, ("B", "x"): -2.0, ("A", "yy"): -3.0, ("B", "yy"): -4.0}
    matrix = cross_score(
        [trace("A", "x"), trace("B", "yy")], scorer(lambda prompt, text: values[prompt, text])
    )
    assert matrix.logp_NP.tolist() == [[-1.0, -2.0], [-6.0, -8.0]]
    assert matrix.length_N.tolist() == [1, 2]
    assert matrix.owner_N.tolist() == [0, 1]


def test_equal_prompts_are_one_column():
    traces = [trace(prompt, "x") for prompt in ("A", "B", "A", "C", "B")]
    matrix = cross_score(traces, scorer(lambda prompt, text: -1.0))
    assert matrix.logp_NP.shape == (5, 3)
    assert matrix.owner_N.tolist() == [0, 1, 0, 2, 1]


def test_every_trace_is_scored_under_every_distinct_prompt():
    seen = []
    cross_score(
        [trace(prompt, "x" + prompt) for prompt in "ABA"],
        scorer(lambda prompt, text: seen.append((prompt, text)) or -1.0),
    )
    assert sorted(seen) == [
        ("A", "xA"),
        ("A", "xA"),
        ("A", "xB"),
        ("B", "xA"),
        ("B", "xA"),
        ("B", "xB"),
    ]


@pytest.mark.parametrize("prompts", ["", "A", "AAA"])
def test_fewer_than_two_distinct_prompts_cannot_be_compared(prompts):
    traces = [trace(prompt, "x") for prompt in prompts]
    assert cross_score(traces, scorer(lambda prompt, text: -1.0)) is None


def test_the_temperature_reaches_the_scorer():
    class Noting(ScriptedPolicy):
        def score(self, pairs, temperature=1.0):
            noted.append(temperature)
            return super().score(pairs, temperature)

    noted: list[float] = []
    cross_score([trace("A", "x"), trace("B", "x")], Noting(lambda p, r: ""), 0.7)
    assert noted == [0.7]


def test_prompts_that_differ_only_in_length_are_different():
    matrix = cross_score([trace("A", "x"), trace("AA", "x")], scorer(lambda p, t: -1.0))
    assert matrix.logp_NP.shape == (2, 2)
