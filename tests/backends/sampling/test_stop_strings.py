"""The automaton of stop strings stops exactly where the text holds one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.backends.agent import open_model
from ragen2.backends.sampling.choosing import StopTable, token_texts

PIECES = ["a", "b", "ab", "ba", "aab", "", "x", "</", "ans", "wer>", "</answer>", "r></", "abab"]


def stopped_after(table: StopTable, tokens: list[int]) -> list[bool]:
    state, found = 0, []
    for token in tokens:
        state = int(table.next_SV[state, token])
        found.append(state == table.stopped)
    return found


@given(
    stop=st.lists(st.sampled_from(["aab", "abab", "ba", "</answer>", "xa", "bb"]), max_size=3),
    tokens=st.lists(st.integers(0, len(PIECES) - 1), max_size=12),
)
def test_stops_with_the_token_that_completes_a_stop_string(
    stop: list[str], tokens: list[int]
) -> None:
    table = StopTable.of(stop, PIECES)
    texts = ["".join(PIECES[t] for t in tokens[: n + 1]) for n in range(len(tokens))]
    assert stopped_after(table, tokens) == [any(s in text for s in stop) for text in texts]


def test_without_stop_strings_nothing_stops() -> None:
    table = StopTable.of((), PIECES)
    assert table.stopped == 1
    assert not table.next_SV[0].any()


def test_texts_of_tokens_join_to_the_decoded_text() -> None:
    _, tokenizer = open_model("ragen2-tiny", device="cpu")
    texts = token_texts(tokenizer.hf, 512)
    ids = tokenizer.encode("<think>the player is at (1, 2)</think><answer>Up</answer>")
    assert "".join(texts[i] for i in ids) == tokenizer.decode(ids)


def test_special_tokens_have_no_text() -> None:
    _, tokenizer = open_model("ragen2-tiny", device="cpu")
    texts = token_texts(tokenizer.hf, 512)
    assert [texts[i] for i in tokenizer.eos_ids] == [""] * len(tokenizer.eos_ids)


@pytest.mark.parametrize("state", [0, 3])
def test_a_vocabulary_wider_than_the_tokenizer_has_silent_tokens(state: int) -> None:
    table = StopTable.of(("</answer>",), [*PIECES, ""])
    assert table.next_SV[state, -1] == state
    assert table.next_SV.dtype == np.int32
