"""Scores from wording: at chance under the null, above it when reasoning names its prompt."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.audit.likelihoods import WordLikelihood
from ragen2.audit.reservoir import TextTrace
from ragen2.audit.text_model import (
    FEWEST_TRACES,
    effective_traces,
    text_scores,
    word_probabilities,
)
from ragen2.diagnostics import measure

WORDS = [f"w{index}" for index in range(30)]


def reasonings(
    seed: int, *, prompts: int = 8, traces: int = 6, own_words: int = 0
) -> list[list[str]]:
    """Random words from one distribution; ``own_words`` of each reasoning are its prompt's own."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(len(WORDS)))
    return [
        [
            " ".join(
                [*rng.choice(WORDS, size=int(rng.integers(5, 20)), p=shares)]
                + [f"own{prompt}"] * own_words
            )
            for _ in range(traces)
        ]
        for prompt in range(prompts)
    ]


def measured(texts: list[list[str]], *, resamples: int = 100, seed: int = 0) -> dict[str, float]:
    matrix = text_scores(texts).matrix
    return measure(matrix.logp_NP, matrix.length_N, matrix.owner_N, resamples=resamples, seed=seed)


def test_reasoning_that_ignores_its_prompt_is_at_chance_and_its_p_values_are_uniform():
    found = [measured(reasonings(seed), seed=seed) for seed in range(150)]
    accuracy = np.array([one["retrieval_accuracy"] for one in found])
    assert abs(accuracy.mean() - 1 / 8) < 3 * accuracy.std() / np.sqrt(len(accuracy))
    p_values = np.sort([one["mi_p_value"] for one in found])
    gap = np.abs(p_values - (np.arange(len(p_values)) + 0.5) / len(p_values)).max()
    assert gap < 1.63 / np.sqrt(len(p_values))  # Kolmogorov-Smirnov at 1%
    assert np.mean([one["retrieval_p_value"] <= 0.05 for one in found]) <= 0.08


def test_reasoning_that_names_its_prompt_is_found():
    found = measured(reasonings(0, own_words=1, traces=8))
    assert found["retrieval_accuracy"] > 0.9
    assert max(found["mi_p_value"], found["retrieval_p_value"]) <= 0.01
    assert found["mi_estimate"] > 0.0


def test_the_order_of_words_counts_where_it_tells_more():
    """Every prompt uses the same words; what differs is the order."""
    rng = np.random.default_rng(0)
    orders = [list(rng.permutation(["a", "b", "c", "d", "e", "f"])) for _ in range(6)]
    texts = [[" ".join(order * 2) for _ in range(6)] for order in orders]
    assert measured(texts)["retrieval_accuracy"] == 1.0


def test_equal_reasonings_for_everything_are_exactly_at_chance():
    found = measured([["go to the goal"] * 4 for _ in range(5)])
    assert found["retrieval_accuracy"] == pytest.approx(1 / 5)
    assert found["mi_estimate"] == pytest.approx(0.0, abs=1e-12)


def test_every_model_is_fitted_to_equally_many_and_none_is_scored_by_its_own():
    texts = reasonings(1, prompts=3, traces=8)
    scores = text_scores([texts[0], texts[1][:6], texts[2]])
    # The median prompt has 8 reasonings: 4 are fitted to, and what is left is scored.
    assert np.bincount(scores.matrix.owner_N).tolist() == [4, 2, 4]
    changed = [*texts[2][:4], *(["quite other words"] * 4)]
    other = text_scores([texts[0], texts[1][:6], changed])
    assert np.array_equal(scores.matrix.logp_NP[:6], other.matrix.logp_NP[:6])


def test_prompts_with_too_few_reasonings_are_left_out():
    texts = reasonings(2, prompts=4, traces=6)
    scores = text_scores([texts[0], texts[1][: FEWEST_TRACES - 1], texts[2], texts[3]])
    assert scores.prompts == (0, 2, 3)
    assert text_scores([texts[0], texts[1][:2], []]) is None


def test_a_word_that_differs_by_chance_keeps_its_pooled_frequency():
    even, own = [50.0, 50.0, 50.0], [10.0, 0.0, 0.0]
    words_PV = word_probabilities(np.array([even, own, [0.0] * 3]).T)
    assert words_PV.sum(1) == pytest.approx(1.0)
    assert words_PV[1, 0] == pytest.approx(words_PV[2, 0])
    assert words_PV[0, 1] > 10 * words_PV[1, 1]


def test_word_probabilities_are_those_of_the_formula():
    """Counts 9 and 1 of ten words: the pull of the formula is below the least, which is 2."""
    words_PV = word_probabilities(np.array([[9.0, 1.0, 0.0], [1.0, 9.0, 0.0]]))
    pooled = np.array([10.5, 10.5, 0.5]) / 21.5
    ratio = ((9 - 10 * pooled[0]) ** 2 + (1 - 10 * pooled[0]) ** 2) / (10 * pooled[0])
    assert (10 - ratio) / (ratio - 1) < 2.0
    known = np.array([9 + 2 * pooled[0], 1 + 2 * pooled[1]]) / 12
    unknown = 1000 * pooled[2] / 1010
    assert words_PV[0] == pytest.approx(np.array([*known, unknown]) / (known.sum() + unknown))


def test_the_pull_of_a_word_follows_the_spread_of_its_counts():
    """Counts 70 and 50 of 100: r = 2 x 10^2 / 60 - about 3.3, so s = (100 - r) / (r - 1), about 42."""
    counts_PV = np.array([[70.0, 30.0], [50.0, 50.0]])
    pooled = np.array([120.5, 80.5]) / 201
    ratio = ((70 - 100 * pooled[0]) ** 2 + (50 - 100 * pooled[0]) ** 2) / (100 * pooled[0])
    first = (100 - ratio) / (ratio - 1)
    other = ((30 - 100 * pooled[1]) ** 2 + (50 - 100 * pooled[1]) ** 2) / (100 * pooled[1])
    second = (100 - other) / (other - 1)
    assert 40 < first < 43
    raw = np.array(
        [(70 + first * pooled[0]) / (100 + first), (30 + second * pooled[1]) / (100 + second)]
    )
    assert word_probabilities(counts_PV)[0] == pytest.approx(raw / raw.sum())


def test_effective_traces_are_one_over_the_chance_that_two_are_equal():
    assert effective_traces([["a", "a", "a"], ["b", "b"]]) == 1.0
    # 3 equal pairs of 6: a half.
    assert effective_traces([["a", "a", "a", "b"]]) == pytest.approx(2.0)
    assert effective_traces([["a", "b", "c", "d"]]) == pytest.approx(6.0)
    assert effective_traces([["a"], ["b"]]) is None


def test_how_words_are_compared_can_be_given():
    texts = [[f"go to {place} then {place} again {n}" for n in range(8)] for place in "abcd"]
    for uses_pairs in (False, True):
        scores = text_scores(texts, uses_pairs=uses_pairs)
        assert scores.uses_pairs is uses_pairs
    given, chosen = text_scores(texts, uses_pairs=True), text_scores(texts)
    if chosen.uses_pairs:
        assert (given.matrix.logp_NP == chosen.matrix.logp_NP).all()


def traces(texts: list[list[str]]) -> list[list[TextTrace]]:
    return [[TextTrace("prompt", "", text) for text in prompt] for prompt in texts]


def test_a_log_is_scored_as_its_first_step_asks_for():
    in_order = [["a b " * (n + 1) for n in range(6)], ["b a " * (n + 1) for n in range(6)]]
    by_word = [["red " * (n + 1) for n in range(6)], ["blue " * (n + 1) for n in range(6)]]
    assert text_scores(in_order).uses_pairs
    assert not text_scores(by_word).uses_pairs
    likelihood = WordLikelihood()
    likelihood.score(traces(in_order))
    found = likelihood.score(traces(by_word)).matrix
    expected = text_scores(by_word, uses_pairs=True).matrix
    assert (found.logp_NP == expected.logp_NP).all()
