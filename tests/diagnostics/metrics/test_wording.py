"""Templated phrases and reasonings that are alike, on texts whose answer is known."""

from __future__ import annotations

import pytest

from ragen2.diagnostics.metrics.wording import nearest_traces, num_words, templated_phrases, words


def test_words_are_lower_case_with_punctuation_apart():
    assert words("Go UP, then 二つ!") == ["go", "up", ",", "then", "二", "つ", "!"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Don't go LEFT, now_2!", ["don't", "go", "left", ",", "now_2", "!"]),
        ("向左走 ok", ["向", "左", "走", "ok"]),
        ("ひらカナ", ["ひ", "ら", "カ", "ナ"]),
        ("ซ้าย", ["ซ้", "า", "ย"]),
        ("ខ្ញុំ ၁၂", ["ខ្", "ញុំ", "၁၂"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
    ],
)
def test_scripts_without_spaces_have_a_word_per_character(text, found):
    assert words(text) == found


def test_punctuation_is_not_counted_as_words():
    for text in ("It's (3, 4) - 'so', a_b; x'y''z", "向左,走!", "ไปทาง"):
        kept = [word for word in words(text) if word.replace("_", "a")[0].isalnum()]
        assert num_words(text) == len(kept)
    assert num_words("向左,走!") == 3


def test_a_template_is_found_whole_and_counted():
    texts = [f"let me think step by step about {name} now" for name in "abcd"]
    (phrase,) = templated_phrases(texts, [0, 1, 2, 3])
    assert (phrase.text, phrase.prompts, phrase.traces) == (
        "let me think step by step about",
        4,
        4,
    )


def test_prompts_are_counted_once_however_often_they_say_it():
    texts = ["we go to town", "we go to town", "we go to town", "nothing like the others"]
    (phrase,) = templated_phrases([*texts, "we go to town"], [0, 0, 0, 1, 2])
    assert (phrase.text, phrase.prompts, phrase.traces) == ("we go to town", 2, 4)


def test_what_one_prompt_says_is_no_template():
    texts = ["the box is at one two"] * 4 + [f"unlike {n} {n + 1} {n + 2}" for n in range(0, 30, 3)]
    assert templated_phrases(texts, [0, 0, 0, 0, *range(1, 11)]) == []


def test_long_and_everywhere_comes_before_short_and_everywhere():
    texts = [f"so I go on. {name} I will push the box to the goal" for name in "abcd"]
    found = [one.text for one in templated_phrases(texts, [0, 1, 2, 3])]
    assert found == ["i will push the box to the goal", "so i go on."]


def test_a_phrase_of_half_of_the_prompts_counts_and_of_fewer_does_not():
    own = [f"x{n} y{n} z{n}" for n in range(6)]
    texts = [f"{text} now we go" if n < 3 else text for n, text in enumerate(own)]
    assert [one.prompts for one in templated_phrases(texts, list(range(6)))] == [3]
    texts = [f"{text} now we go" if n < 2 else text for n, text in enumerate(own)]
    assert templated_phrases(texts, list(range(6))) == []


def test_likeness_is_shared_pairs_over_all_pairs():
    (found,) = nearest_traces(["a b c d", "a b c x"], [0, 1])
    assert (found.first, found.second) == (0, 1)
    assert found.similarity == pytest.approx(2 / 4)  # ab, bc shared; cd, cx not


def test_reasonings_of_one_prompt_are_not_compared():
    assert nearest_traces(["a b c", "a b c"], [0, 0]) == []


def test_the_most_alike_come_first_and_none_is_shown_more_than_twice():
    texts = ["a b c d"] * 5 + ["a b q r", "v w"]
    found = nearest_traces(texts, list(range(7)))
    assert [one.similarity for one in found] == sorted(
        (one.similarity for one in found), reverse=True
    )
    assert found[0].similarity == 1.0
    shown = [place for one in found for place in (one.first, one.second)]
    assert max(shown.count(place) for place in shown) == 2
    assert 6 not in shown


@pytest.mark.parametrize("texts", [[], ["alone"], ["", ""], ["word", "word"]])
def test_few_and_short_texts_break_nothing(texts):
    found = nearest_traces(texts, list(range(len(texts))))
    assert [one.similarity for one in found] == ([1.0] if texts == ["word", "word"] else [])
    assert templated_phrases(texts, list(range(len(texts)))) == []
