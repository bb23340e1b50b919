"""Near-duplicate prompts: what all share does not count, and the distance is Levenshtein's."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from ragen2.scoring.matrix import (
    MAX_COMPARED,
    NEAR,
    near_duplicates,
    strip_shared,
)

tokens = st.sampled_from([0, 1, 2, 151_643, 2**32 - 1])
"""Token ids, and the largest number that a patch of an image can have."""


def ids(text) -> np.ndarray:
    return np.array([ord(c) for c in text] if isinstance(text, str) else text, dtype=np.int64)


def slow_distance(one: list[int], other: list[int]) -> int:
    """The textbook recursion, row by row."""
    row = list(range(len(other) + 1))
    for i, x in enumerate(one, 1):
        above, row = row, [i]
        for j, y in enumerate(other, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
    return row[-1]


@st.composite
def alike_prompts(draw) -> list[list[int]]:
    """A few prompts that differ from one text by some edits each."""
    text = draw(st.lists(tokens, min_size=8, max_size=40))
    prompts = []
    for _ in range(draw(st.integers(2, 5))):
        prompt = list(text)
        for _ in range(draw(st.integers(0, 5))):
            place = draw(st.integers(0, len(prompt)))
            kept = draw(st.integers(0, 2))  # 0 inserts, 1 replaces, 2 also takes one away
            prompt[place : place + kept] = draw(
                st.lists(tokens, min_size=1 - kept // 2, max_size=1)
            )
        prompts.append(prompt)
    return prompts


@given(alike_prompts())
def test_similarities_are_those_of_the_textbook_distance(prompts):
    cores = [core.tolist() for core in strip_shared([ids(prompt) for prompt in prompts])]
    expected = []
    for (i, one), (j, other) in combinations(enumerate(cores), 2):
        similarity = 1.0 - slow_distance(one, other) / max(len(one), len(other), 1)
        if similarity >= NEAR:
            expected.append((i, j, similarity))
    assert near_duplicates([ids(prompt) for prompt in prompts]) == expected


@given(st.lists(tokens, max_size=12), st.lists(tokens, max_size=12))
def test_the_distance_of_rapidfuzz_is_the_textbook_one(one, other):
    assert Levenshtein.distance(one, other) == slow_distance(one, other)


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("abc", "abc", 0), ("ab", "ba", 2)],
)
def test_distances_of_known_words(one, other, edits):
    assert Levenshtein.distance(ids(one).tolist(), ids(other).tolist()) == edits


def test_what_all_prompts_share_at_both_ends_is_stripped():
    found = strip_shared([ids("rules: aXb end"), ids("rules: aYYb end")])
    assert [bytes(core.tolist()).decode() for core in found] == ["X", "YY"]


def test_a_prompt_that_is_the_others_beginning_is_stripped_to_nothing():
    found = strip_shared([ids("abab"), ids("ab")])
    assert [len(core) for core in found] == [2, 0]


def test_no_prompts_have_no_duplicates():
    assert near_duplicates([]) == []
    assert near_duplicates([ids("alone")]) == []


def test_similarity_counts_only_what_is_not_shared_by_all():
    rules = "the same long rules for everyone "
    prompts = [ids(rules + text) for text in ("abcdefghij", "abcdefghiX", "0123456789")]
    (pair,) = near_duplicates(prompts)
    assert pair[:2] == (0, 1)
    assert pair[2] == pytest.approx(0.9)  # one edit in ten; with the rules it would be 0.98


def test_one_edit_in_nine_is_below_the_threshold():
    assert NEAR == 0.9
    assert near_duplicates([ids("abcdefghi"), ids("abcdefghX"), ids("012345678")]) == []


def test_the_longer_prompt_is_what_edits_are_measured_by():
    prompts = [ids("a" * 18), ids("a" * 20), ids("z" * 20)]
    assert near_duplicates(prompts) == [(0, 1, pytest.approx(0.9))]


def test_the_order_of_tokens_matters():
    assert (
        near_duplicates([ids("abcdefghijklmnopqrst"), ids("tsrqponmlkjihgfedcba"), ids("")]) == []
    )


def test_every_near_pair_is_found_once():
    base = np.arange(40)
    prompts = [base.copy() for _ in range(4)] + [np.arange(100, 140)]
    for place, prompt in enumerate(prompts[:4]):
        prompt[10 + place] = 999
    pairs = near_duplicates(prompts)
    assert [pair[:2] for pair in pairs] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert all(similarity == pytest.approx(1 - 2 / 40) for *_, similarity in pairs)


def test_only_the_beginning_of_very_long_prompts_is_compared():
    one, other = np.zeros(2 * MAX_COMPARED, np.int64), np.zeros(2 * MAX_COMPARED, np.int64)
    one[0], other[0] = 1, 2
    one[MAX_COMPARED + 1 :], other[MAX_COMPARED + 1 :] = 3, 4
    assert len(near_duplicates([one, other])) == 1
