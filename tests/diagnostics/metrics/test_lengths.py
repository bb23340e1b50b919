"""Length controls: length as the only cue, content as the only cue, and neither."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.diagnostics.metrics.lengths import length_control, length_explained, length_strata

PROMPTS, EACH = 8, 8
OWNER_N = np.repeat(np.arange(PROMPTS), EACH)


def scores(rng: np.random.Generator, content: float, by_length: float, length_N) -> np.ndarray:
    """Per-token scores: own prompt better by ``content``; prompts near in length by ``by_length``."""
    typical_P = 10.0 * (1 + np.arange(PROMPTS))
    token_NP = rng.normal(-2.0, 0.05, (len(OWNER_N), PROMPTS))
    token_NP -= by_length * np.abs(length_N[:, None] - typical_P) / 80.0
    token_NP[np.arange(len(OWNER_N)), OWNER_N] += content
    return token_NP * length_N[:, None]


def test_length_as_the_only_cue_is_found_out():
    rng = np.random.default_rng(0)
    # Two classes of prompts, short and long; inside a class nothing tells prompts apart.
    length = np.where(OWNER_N < 4, 10, 80) + rng.integers(0, 3, len(OWNER_N))
    typical = np.where(np.arange(PROMPTS) < 4, 10, 80)
    token = rng.normal(-2.0, 0.05, (len(OWNER_N), PROMPTS))
    token -= np.abs(length[:, None] - typical) / 80.0
    found = length_control(token * length[:, None], length, OWNER_N, resamples=199)
    assert found["length_explained"] > 0.95
    assert found["length_retrieval"] > 0.2
    assert found["length_matched_retrieval"] == pytest.approx(
        found["length_matched_chance"], abs=0.12
    )
    assert found["mi_length_matched_p_value"] > 0.05
    assert found["retrieval_length_matched_p_value"] > 0.05


def test_content_is_seen_through_equal_lengths():
    rng = np.random.default_rng(0)
    length = rng.integers(10, 80, len(OWNER_N))
    found = length_control(scores(rng, 1.0, 0.0, length), length, OWNER_N, resamples=199)
    assert found["length_explained"] < 0.2
    assert found["length_matched_retrieval"] > 0.95
    assert found["mi_length_matched_p_value"] == 1 / 200
    assert found["retrieval_length_matched_p_value"] == 1 / 200


def test_without_any_dependence_matched_retrieval_is_chance_and_p_values_are_uniform():
    rng = np.random.default_rng(1)
    p_values, above = [], []
    for seed in range(100):
        length = rng.integers(10, 80, len(OWNER_N))
        logp = scores(rng, 0.0, 0.0, length)
        found = length_control(logp, length, OWNER_N, resamples=99, seed=seed)
        p_values.append(found["mi_length_matched_p_value"])
        above.append(found["length_matched_retrieval"] - found["length_matched_chance"])
    assert np.mean(above) == pytest.approx(0.0, abs=0.02)
    gap = np.abs(np.sort(p_values) - np.arange(1, 101) / 100).max()
    assert gap <= 1.63 / 10 + 0.01


def test_explained_length_of_a_small_table_is_the_sum_by_hand():
    # Means 2 and 6; within: 2 + 2 over 2 degrees = 2; whole: variance of 1, 3, 5, 7 = 20 / 3.
    share = length_explained(np.array([1, 3, 5, 7]), np.array([0, 0, 1, 1]))
    assert share == pytest.approx(1 - 2 / (20 / 3))


def test_explained_length_of_unrelated_lengths_is_nought_on_average():
    rng = np.random.default_rng(0)
    shares = [length_explained(rng.integers(5, 50, 64), OWNER_N) for _ in range(400)]
    assert np.mean(shares) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("length", [np.full(4, 7), np.array([7])])
def test_equal_lengths_have_nothing_to_explain(length):
    assert length_explained(length, np.zeros(len(length), int)) is None


def test_one_trace_a_prompt_leaves_out_what_needs_two():
    found = length_control(np.eye(4) - 5.0, [1, 2, 3, 4], np.arange(4), resamples=0)
    assert sorted(found) == ["length_matched_chance", "length_matched_retrieval"]


def test_length_retrieval_by_hand():
    # Prompt 0 has lengths 1, 2 and prompt 1 has 9, 2: the last trace is nearer to prompt 0.
    logp = np.zeros((4, 2)) - 1.0
    found = length_control(logp, [1, 2, 9, 2], [0, 0, 1, 1], resamples=0)
    # Trace 1 (length 2): own mean without it 1, other mean 5.5. Trace 2: own 2, other 1.5.
    assert found["length_retrieval"] == 3 / 4


def test_matched_rivals_are_the_nearest_half_in_length():
    # Mean lengths 10, 11, 30, 31: of three others the nearest two are matched.
    logp = np.full((4, 4), -5.0)
    logp[0] = [-2.0, -9.0, -9.0, -1.0]  # loses to prompt 3 alone, the farthest in length
    logp[1] = [-1.0, -2.0, -9.0, -9.0]  # loses to prompt 0, the nearest in length
    found = length_control(logp, [10, 11, 30, 31], np.arange(4), resamples=0)
    ties = 2 * (1 / 3)
    assert found["length_matched_retrieval"] == pytest.approx((1 + 0 + ties) / 4)
    assert found["length_matched_chance"] == pytest.approx(1 / 3)


def test_equal_lengths_are_never_parted():
    length = np.array([5] * 20 + [6] * 3 + [9] * 9)
    strata = length_strata(length)
    for one in (5, 6, 9):
        assert len(set(strata[length == one])) == 1
    assert strata[0] < strata[-1]


def test_the_same_seed_gives_the_same_p_values():
    rng = np.random.default_rng(0)
    length = rng.integers(10, 80, len(OWNER_N))
    logp = scores(rng, 0.02, 0.5, length)
    one, same = (length_control(logp, length, OWNER_N, resamples=99, seed=3) for _ in range(2))
    assert one == same
