"""Cross-scoring: every trace under every distinct prompt, summed over its tokens."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.backends.scripted import ByteTokenizer, ScriptedPolicy
from ragen2.errors import ConfigError
from ragen2.scoring import Trace, cross_score
from ragen2.scoring.matrix import draw_columns

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


def test_every_trace_is_scored_under_every_distinct_prompt_and_equal_pairs_once():
    seen = []
    cross_score(
        [trace(prompt, "x" + prompt) for prompt in "ABA"],
        scorer(lambda prompt, text: seen.append((prompt, text)) or -1.0),
    )
    assert sorted(seen) == [
        ("A", "xA"),
        ("A", "xB"),
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


def noting(seen):
    """A scorer that keeps the (prompt, text) pairs it is asked for."""
    return scorer(lambda prompt, text: seen.append((prompt, text)) or -1.0)


def cost(seen):
    """Tokens a scorer reads: each distinct prompt once, each continuation once."""
    return sum(map(len, {prompt for prompt, _ in seen})) + sum(len(text) for _, text in seen)


def many_traces(prompts=12, each=2):
    return [trace(f"prompt {p:02}", f"why {p} {i}") for p in range(prompts) for i in range(each)]


def test_a_large_budget_changes_nothing_and_draws_nothing():
    traces, rng = many_traces(), np.random.default_rng(0)
    whole = cross_score(traces, scorer(lambda p, t: -float(len(p + t))))
    cut = cross_score(traces, scorer(lambda p, t: -float(len(p + t))), max_tokens=10**6, rng=rng)
    assert (whole.logp_NP == cut.logp_NP).all()
    assert rng.random() == np.random.default_rng(0).random()


def test_exactly_the_tokens_of_all_pairs_are_enough_and_one_less_is_not():
    seen = []
    traces = many_traces()
    cross_score(traces, noting(seen))
    exact = cost(seen)
    whole = cross_score(traces, scorer(lambda p, t: -1.0), max_tokens=exact)
    cut = cross_score(traces, scorer(lambda p, t: -1.0), max_tokens=exact - 1)
    assert not np.isnan(whole.logp_NP).any()
    assert np.isnan(cut.logp_NP).any()


@pytest.mark.parametrize("max_tokens", [500, 700, 1200, 2000])
def test_a_budget_holds_keeps_own_pairs_and_gives_every_trace_as_many_columns(max_tokens):
    seen = []
    traces = many_traces()
    matrix = cross_score(traces, noting(seen), max_tokens=max_tokens)
    assert cost(seen) <= max_tokens
    scored_NP = ~np.isnan(matrix.logp_NP)
    assert scored_NP[np.arange(len(traces)), matrix.owner_N].all()
    assert len(set(scored_NP.sum(1).tolist())) == 1
    another = sum(len(trace.reasoning_ids_T) for trace in traces)
    assert cost(seen) + another > max_tokens, "one more column each would not have fitted"


def test_a_budget_scores_what_it_scores_as_without_one():
    traces = many_traces()
    known = scorer(lambda prompt, text: -float(ord(prompt[-1]) * len(text)))
    whole, cut = cross_score(traces, known), cross_score(traces, known, max_tokens=900)
    scored_NP = ~np.isnan(cut.logp_NP)
    assert (whole.logp_NP[scored_NP] == cut.logp_NP[scored_NP]).all()


def test_the_draw_follows_the_generator_and_repeats_without_one():
    def missing(rng=None):
        matrix = cross_score(many_traces(), scorer(lambda p, t: -1.0), max_tokens=900, rng=rng)
        return np.isnan(matrix.logp_NP).tolist()

    assert missing() == missing()
    assert missing(np.random.default_rng(1)) == missing(np.random.default_rng(1))
    assert missing(np.random.default_rng(1)) != missing(np.random.default_rng(2))


def test_other_columns_are_equally_likely():
    owner_N = np.repeat(np.arange(6), 4000)
    scored_NP = draw_columns(owner_N, 6, 2, np.random.default_rng(0))
    assert (scored_NP.sum(1) == 3).all()
    for own in range(6):
        share_P = scored_NP[owner_N == own].mean(0)
        assert share_P[own] == 1.0
        np.testing.assert_allclose(np.delete(share_P, own), 2 / 5, atol=0.04)


def test_the_mixture_of_drawn_columns_is_unbiased():
    rng = np.random.default_rng(3)
    num_prompts, others, draws = 7, 2, 40_000
    probabilities_P = rng.random(num_prompts) ** 3
    owner_N = np.full(draws, 4)
    scored_NP = draw_columns(owner_N, num_prompts, others, rng)
    scored_NP[:, 4] = False
    rest_N = (probabilities_P * scored_NP).sum(1) / others
    mixture_N = (probabilities_P[4] + (num_prompts - 1) * rest_N) / num_prompts
    error = mixture_N.std() / np.sqrt(draws)
    assert abs(mixture_N.mean() - probabilities_P.mean()) < 4 * error
    assert error < 0.01 * probabilities_P.mean()


def test_a_budget_without_room_for_one_other_column_is_an_error():
    seen = []
    traces = [trace("AAAA", "xx"), trace("BBBB", "yyy")]
    with pytest.raises(
        ConfigError, match=r"max_tokens is 17, but 2 traces .* are 18 tokens; raise"
    ):
        cross_score(traces, noting(seen), max_tokens=17)
    assert not seen
    assert cross_score(traces, noting(seen), max_tokens=18) is not None
    assert cost(seen) == 18


def test_equal_traces_of_different_prompts_share_their_pairs():
    seen = []
    matrix = cross_score([trace("A", "x"), trace("B", "x"), trace("B", "x")], noting(seen))
    assert sorted(seen) == [("A", "x"), ("B", "x")]
    assert matrix.logp_NP.shape == (3, 2)
