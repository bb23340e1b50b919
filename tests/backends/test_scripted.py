"""The scripted policy behaves like any other: ids, limits, finish reasons, scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.backends.scripted import END, ByteTokenizer, ScriptedPolicy
from ragen2.policy import Pair, Request, SamplingParams
from ragen2.types import Finish, Message

TOKENIZER = ByteTokenizer()


def ids(text: str) -> np.ndarray:
    return np.array(TOKENIZER.encode(text), dtype=np.int64)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_survives_the_tokenizer(text):
    encoded = TOKENIZER.encode(text)
    assert TOKENIZER.decode(encoded) == text
    assert END not in encoded


def test_a_conversation_ends_where_the_assistant_writes():
    found = TOKENIZER.start([Message("system", "a"), Message("user", "b")])
    assert TOKENIZER.decode(found) == "system: auser: bassistant: "
    assert found.count(END) == 2


@pytest.mark.parametrize("after_eos", [True, False])
def test_a_bridge_ends_the_message_unless_it_ended_itself(after_eos):
    found = TOKENIZER.bridge(Message("user", "b"), after_eos=after_eos)
    assert (found[0] == END) is not after_eos
    assert TOKENIZER.decode(found) == "user: bassistant: "


@pytest.mark.parametrize(
    ("reply", "finish", "written"),
    [
        ("x</answer>", Finish.STOP, "x</answer>"),
        ("no end", Finish.EOS, "no end"),
        ("much too long to fit", Finish.LENGTH, "much too long"),
        ("exactly 13 ch", Finish.EOS, "exactly 13 ch"),
    ],
)
def test_a_completion_finishes_as_a_model_would(reply, finish, written):
    policy = ScriptedPolicy(lambda prompt, rng: reply)
    (found,) = policy.sample([Request(ids("p"), ("k",))], SamplingParams(max_tokens=13))
    assert (found.finish, found.text) == (finish, written)
    assert (found.ids_T[-1] == END) == (finish is Finish.EOS)
    assert len(found.ids_T) == len(found.logprobs_T)


def test_a_reply_sees_the_prompt_and_the_stream_of_its_key():
    policy = ScriptedPolicy(lambda prompt, rng: f"{prompt} {rng.integers(10**9)}")
    requests = [Request(ids(text), key) for text, key in [("a", (1,)), ("b", (2,)), ("a", (1,))]]
    first, second, third = (c.text for c in policy.sample(requests, SamplingParams()))
    assert first.startswith("a ")
    assert second.startswith("b ")
    assert first == third
    assert first.split()[1] != second.split()[1]


def test_a_score_is_given_for_every_token_of_the_continuation():
    policy = ScriptedPolicy(lambda p, r: "", lambda prompt, text: -float(len(prompt) + len(text)))
    found = policy.score([Pair(ids("ab"), ids("xyz")), Pair(ids("a"), ids("x"))])
    assert [scores.tolist() for scores in found] == [[-5.0] * 3, [-2.0]]
