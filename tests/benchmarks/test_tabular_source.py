"""Synthetic sources: exact values against closed forms, and samples against exact values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from calibration import exact_metrics
from ragen2.diagnostics import measure
from ragen2.errors import ConfigError
from tabular_source import NEVER, TabularSource

LEVELS = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("groundedness", LEVELS)
def test_each_prompt_has_a_probability_distribution_over_traces(groundedness, ends):
    source = TabularSource.make(groundedness=groundedness, ends=ends)
    assert source.probability_SP.sum(0) == pytest.approx(np.ones(8), abs=1e-12)


def test_ungrounded_prompts_tell_nothing_and_are_found_by_chance():
    source = TabularSource.make(prompts=8, groundedness=0.0)
    assert source.mutual_information == pytest.approx(0.0, abs=1e-12)
    assert source.bayes_accuracy == pytest.approx(1 / 8)
    assert source.entropy == pytest.approx(source.conditional_entropy)


@pytest.mark.parametrize("ends", [False, True])
def test_fully_grounded_prompts_have_one_trace_each_and_tell_everything(ends):
    source = TabularSource.make(prompts=8, groundedness=1.0, ends=ends)
    assert source.conditional_entropy == 0.0
    assert source.mutual_information == pytest.approx(math.log(8))
    assert source.bayes_accuracy == 1.0
    assert (source.probability_SP == 1.0).sum(0).tolist() == [1] * 8


@pytest.mark.parametrize("ends", [False, True])
def test_information_grows_with_groundedness(ends):
    found = [TabularSource.make(groundedness=g, ends=ends).mutual_information for g in LEVELS]
    assert found == sorted(found)


def test_a_source_of_two_tokens_agrees_with_a_sum_by_hand():
    p = np.array([[0.7, 0.2], [0.3, 0.8]])
    source = TabularSource(np.log(p), np.array([1, 1]))
    mixture = p.mean(1)
    conditional = -np.mean(
        [0.7 * np.log(0.7) + 0.3 * np.log(0.3), 0.2 * np.log(0.2) + 0.8 * np.log(0.8)]
    )
    assert source.conditional_entropy == pytest.approx(conditional)
    assert source.entropy == pytest.approx(-(mixture * np.log(mixture)).sum())
    assert source.mutual_information == pytest.approx(source.entropy - conditional)
    assert source.bayes_accuracy == pytest.approx((0.7 + 0.8) / 2)


def test_log_probs_follow_the_chain_rule_of_the_family():
    """One prompt: at each position its token with chance g, else the shared table's."""
    source = TabularSource.make(prompts=1, vocabulary=3, length=2, groundedness=1.0)
    (code,) = np.flatnonzero(source.probability_SP[:, 0])
    half = TabularSource.make(prompts=1, vocabulary=3, length=2, groundedness=0.5)
    none = TabularSource.make(prompts=1, vocabulary=3, length=2, groundedness=0.0)
    tokens = list(itertools.product(range(3), repeat=2))
    shared = {t: none.probability_SP[i, 0] for i, t in enumerate(tokens)}
    first = {a: sum(shared[a, b] for b in range(3)) for a in range(3)}
    own = (half.probability_SP[code, 0], tokens[code])
    a, b = own[1]
    # Solve g from the first token alone, then the whole trace must follow.
    begin = sum(half.probability_SP[i, 0] for i, t in enumerate(tokens) if t[0] == a)
    g = (begin - first[a]) / (1 - first[a])
    follow = g + (1 - g) * shared[a, b] / first[a]
    assert own[0] == pytest.approx(begin * follow)
    assert 0.5**2 <= g <= 0.5**0.5


def test_an_end_token_gives_traces_of_several_lengths():
    source = TabularSource.make(prompts=2, vocabulary=2, length=4, ends=True)
    # Token 0 ends a trace: 0, 10, 110, 1110, 1111.
    assert sorted(source.length_S.tolist()) == [1, 2, 3, 4, 4]


def test_a_sample_is_drawn_from_each_prompt_and_scored_under_all():
    source = TabularSource.make(prompts=5, groundedness=0.5)
    batch = source.sample(3, np.random.default_rng(0))
    assert batch.logp_NP.shape == (15, 5)
    assert batch.owner_N.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert (batch.length_N == 6).all()


def test_samples_have_the_probabilities_of_their_prompt():
    source = TabularSource.make(prompts=2, vocabulary=2, length=3, groundedness=0.4, ends=True)
    batch = source.sample(20_000, np.random.default_rng(0))
    for prompt in range(2):
        own = batch.logp_NP[batch.owner_N == prompt]
        for trace in range(len(source.length_S)):
            share = np.isclose(own, source.logp_SP[trace]).all(1).mean()
            assert share == pytest.approx(source.probability_SP[trace, prompt], abs=0.012)


def test_some_prompts_can_be_taken_as_the_batch():
    source = TabularSource.make(prompts=9, groundedness=0.6)
    batch = source.sample(2, np.random.default_rng(0), [7, 2])
    same = source.only([7, 2]).sample(2, np.random.default_rng(0))
    assert (batch.logp_NP == same.logp_NP).all()
    assert batch.owner_N.tolist() == [0, 0, 1, 1]


def test_a_trace_that_a_prompt_cannot_write_has_a_finite_score_of_probability_zero():
    batch = TabularSource.make(groundedness=1.0).sample(1, np.random.default_rng(0))
    assert batch.logp_NP.min() == NEVER
    assert math.exp(NEVER) == 0.0


def test_the_same_seed_gives_the_same_source_and_another_seed_another():
    one, same, other = (TabularSource.make(seed=seed) for seed in (1, 1, 2))
    assert (one.logp_SP == same.logp_SP).all()
    assert (one.logp_SP != other.logp_SP).any()


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("groundedness", LEVELS)
def test_estimates_of_endless_traces_are_the_exact_values(groundedness, ends):
    source = TabularSource.make(groundedness=groundedness, ends=ends)
    exact = exact_metrics(source)
    assert exact["mi_seq_estimate"] == pytest.approx(source.mutual_information, abs=1e-9)
    assert exact["conditional_entropy_seq"] == pytest.approx(source.conditional_entropy, abs=1e-9)
    assert exact["reasoning_entropy_seq"] == pytest.approx(source.entropy, abs=1e-9)
    # Per token and per sequence rank prompts alike: a trace's length divides its whole row.
    assert exact["retrieval_accuracy"] == pytest.approx(source.bayes_accuracy, abs=1e-6)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("groundedness", [0.2, 0.5, 0.8])
def test_where_prompts_cover_the_source_mi_seq_is_unbiased_and_retrieval_is_bayes(
    groundedness, ends
):
    source = TabularSource.make(groundedness=groundedness, ends=ends)
    rng = np.random.default_rng(1)
    found = [_point(source.sample(16, rng)) for _ in range(600)]
    mi = np.mean([one["mi_seq_estimate"] for one in found])
    accuracy = np.mean([one["retrieval_accuracy"] for one in found])
    assert mi == pytest.approx(source.mutual_information, rel=0.02)
    assert accuracy == pytest.approx(source.bayes_accuracy, rel=0.02)


@pytest.mark.parametrize("groundedness", LEVELS)
def test_entropy_is_conditional_entropy_plus_information_to_nine_digits(groundedness):
    source = TabularSource.make(groundedness=groundedness, ends=True)
    assert source.entropy == pytest.approx(
        source.conditional_entropy + source.mutual_information, abs=1e-9
    )
    found = _point(source.sample(8, np.random.default_rng(2)))
    assert found["reasoning_entropy_seq"] == pytest.approx(
        found["conditional_entropy_seq"] + found["mi_seq_estimate"], abs=1e-9
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"groundedness": 1.5}, r"groundedness must be in \[0, 1\], got 1.5"),
        (
            {"prompts": 5, "vocabulary": 2, "length": 2},
            "5 prompts need as many different codewords",
        ),
        ({"vocabulary": 1}, "2 tokens and length 1 at least, got 1 and 6"),
        ({"vocabulary": 9, "length": 9}, "more than the 100000 that are listed"),
    ],
)
def test_a_source_that_cannot_be_made_is_refused(settings, told):
    with pytest.raises(ConfigError, match=told):
        TabularSource.make(**settings)


def test_a_prompt_named_twice_is_refused():
    with pytest.raises(ConfigError, match="equal prompts are one column"):
        TabularSource.make().sample(1, np.random.default_rng(0), [3, 3])


def _point(batch) -> dict[str, float]:
    return measure(batch.logp_NP, batch.length_N, batch.owner_N, resamples=0)
