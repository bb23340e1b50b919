"""Prompts of later turns: sampled ids go in as they are, cut only at whole turns."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.backends.scripted import END, ByteTokenizer
from ragen2.rollout.context import first_visible_turn, prompt_ids
from ragen2.rollout.prompts import Opening
from ragen2.types import Completion, Finish, Message

TOKENIZER = ByteTokenizer()
SYSTEM = Message("system", "rules")
OPENING = Opening(SYSTEM)
USERS = [Message("user", f"state {i}") for i in range(4)]
PREFILL = TOKENIZER.encode("<think>")


def completion(ids: list[int], finish: Finish = Finish.STOP) -> Completion:
    return Completion(np.array(ids), np.zeros(len(ids)), "", finish)


def test_the_first_prompt_is_the_conversation_and_the_prefill():
    ids = prompt_ids(TOKENIZER, OPENING, USERS[:1], [], first=0, prefill_ids=PREFILL)
    assert ids == TOKENIZER.start([SYSTEM, USERS[0]]) + PREFILL


def test_sampled_ids_are_carried_over_even_where_the_text_would_tokenise_otherwise():
    odd = [200, 201, 202, 7]  # not valid UTF-8: no tokenizer could give these back from text
    ids = prompt_ids(TOKENIZER, OPENING, USERS[:2], [completion(odd)], first=0, prefill_ids=PREFILL)
    before = TOKENIZER.start([SYSTEM, USERS[0]]) + PREFILL
    assert ids[: len(before) + 4] == before + odd
    assert ids[len(before) + 4 :] == [END, *TOKENIZER.start([USERS[1]]), *PREFILL]


def test_a_message_that_ended_itself_is_not_ended_again():
    done = completion([9, END], Finish.EOS)
    ids = prompt_ids(TOKENIZER, OPENING, USERS[:2], [done], first=0, prefill_ids=PREFILL)
    after = len(TOKENIZER.start([SYSTEM, USERS[0]]) + PREFILL) + 2
    assert ids[after] != END
    assert ids[after:] == [*TOKENIZER.start([USERS[1]]), *PREFILL]


def test_a_cut_history_starts_at_a_whole_turn_with_the_system_message():
    written = [completion([50 + i]) for i in range(3)]
    ids = prompt_ids(TOKENIZER, OPENING, USERS, written, first=2, prefill_ids=PREFILL)
    expected = [*TOKENIZER.start([SYSTEM, USERS[2]]), *PREFILL, 52]
    expected += [END, *TOKENIZER.start([USERS[3]]), *PREFILL]
    assert ids == expected


def test_users_and_completions_must_alternate():
    with pytest.raises(ValueError, match="3 user messages need 2 completions"):
        prompt_ids(TOKENIZER, OPENING, USERS[:3], [completion([1])], first=0, prefill_ids=[])


@pytest.mark.parametrize(
    ("num_turns", "window", "first"),
    [
        (0, 0, 0),
        (4, 0, 0),
        (0, 1, 0),
        (4, 1, 4),
        (4, 2, 3),
        (1, 2, 0),
        (2, 2, 1),
        (2, 9, 0),
    ],
)
def test_the_window_counts_the_turn_about_to_be_written(num_turns, window, first):
    assert first_visible_turn(num_turns, window) == first
