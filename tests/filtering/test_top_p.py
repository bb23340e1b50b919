"""Top-p: worked examples, edge cases, and the properties of the smallest prefix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.filtering import TopP

SOKOBAN = np.array([5.6, 5.1, 4.4, 3.0, 1.5, 0.2, 0.0, 0.0])
BINARY = np.array([0.51, 0.50, 0.48, 0.45, 0.40, 0.34, 0.25, 0.0])

scores = st.lists(
    st.floats(0.0, 1e6) | st.sampled_from([0.0, 0.1, 0.25, 1.0]), min_size=1, max_size=20
).map(np.array)
masses = st.floats(0.01, 1.0) | st.sampled_from([0.5, 0.6, 0.75, 0.9, 1.0])


def kept(values, mass: float, **settings) -> list[int]:
    """Indices kept under the reference's rule: standard deviation and an absolute eps of 0.01."""
    rule = TopP(mass=mass, **({"signal": "reward_std", "eps": 0.01} | settings))
    return np.flatnonzero(rule.keep(np.asarray(values, dtype=float))).tolist()


# --- worked examples -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mass", "count"), [(0.98, 5), (0.95, 5), (0.9, 4), (0.8, 4), (0.6, 3), (0.4, 2)]
)
def test_spread_scores_of_a_dense_reward(mass, count):
    assert kept(SOKOBAN, mass) == list(range(count))


@pytest.mark.parametrize(("mass", "count"), [(0.98, 7), (0.95, 7), (0.9, 6), (0.8, 5), (0.6, 4)])
def test_spread_scores_of_a_binary_reward(mass, count):
    assert kept(BINARY, mass) == list(range(count))


@pytest.mark.parametrize(("mass", "count"), [(0.6, 2), (0.7, 2), (0.701, 2), (0.702, 3)])
def test_the_boundary_is_where_the_running_sum_reaches_the_wanted_mass(mass, count):
    assert kept([4.0, 3.0, 2.0, 1.0], mass) == list(range(count))


@pytest.mark.parametrize(("values", "count"), [(SOKOBAN, 4), (BINARY, 6)])
def test_variance_mass_keeps_the_same_prompts_in_both_examples(values, count):
    assert kept(values**2, 0.9, eps=0.0, signal="reward_variance") == list(range(count))


# --- edge cases ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mass", [0.5, 0.9, 1.0])
def test_no_signal_keeps_nothing(mass):
    assert kept([0.0, 0.0, 0.0], mass) == []
    assert kept([0.0, 0.0, 0.0], mass, eps=0.0) == []


def test_mass_one_with_zeros_included_is_no_filter():
    assert kept([0.0, 0.0, 0.0], 1.0, include_zero=True) == [0, 1, 2]
    assert kept([0.0, 2.0, 0.0], 1.0, include_zero=True) == [0, 1, 2]


def test_mass_one_without_zeros_keeps_every_prompt_that_has_signal():
    assert kept(SOKOBAN, 1.0) == [0, 1, 2, 3, 4, 5]
    assert kept([1.0, 1e-20, 0.0], 1.0) == [0, 1]


def test_including_zeros_below_mass_one_changes_nothing():
    assert kept(SOKOBAN, 0.9, include_zero=True) == kept(SOKOBAN, 0.9)


def test_a_weak_batch_is_rejected_whole():
    assert kept([0.005, 0.005], 0.9) == []


def test_eps_is_absolute():
    assert kept([0.01, 0.01], 0.9) == [0]
    assert kept([0.01, 0.01], 0.9, eps=0.0) == [0, 1]


def test_a_single_prompt_is_kept_if_its_signal_is_above_eps():
    assert kept([2.0], 0.9) == [0]
    assert kept([0.005], 0.9) == []
    assert kept([0.005], 0.9, eps=0.0) == [0]


def test_ties_keep_their_order_in_the_batch():
    assert kept([1.0, 1.0, 1.0, 1.0], 0.9) == [0, 1, 2, 3]
    assert kept([1.0, 1.0, 1.0, 1.0], 0.6) == [0, 1, 2]
    assert kept([1.0, 2.0, 1.0, 1.0], 0.6) == [0, 1]


def test_ties_of_a_large_batch_keep_their_order_too():
    values = [1.0, 2.0] * 50
    first_ones = [i for i in range(100) if values[i] == 2.0] + [0, 2, 4, 6, 8]
    assert kept(values, 105 / 150, eps=0.0) == sorted(first_ones)


@pytest.mark.parametrize("score", [1.0, 0.1, 1 / 3, 4 / 15])
def test_nine_of_ten_equal_prompts_hold_nine_tenths(score):
    assert kept([score] * 10, 0.9, eps=0.0) == list(range(9))


@pytest.mark.parametrize("mass", [0.01, 0.5, 0.9, 1.0])
def test_a_score_too_small_to_multiply_is_still_signal(mass):
    assert kept([0.0, 5e-324], mass, eps=0.0) == [1]


# --- properties ------------------------------------------------------------------------------------


@given(scores, masses)
def test_what_is_kept_reaches_the_mass(values, mass):
    mask = TopP(mass=mass).keep(values)
    assert values[mask].sum() >= mass * values.sum() * (1 - 1e-9)


@given(scores, masses)
def test_what_is_kept_is_minimal(values, mass):
    mask = TopP(mass=mass).keep(values)
    if mask.any():
        without_least = values[mask].sum() - values[mask].min()
        assert without_least <= mass * values.sum() * (1 + 1e-9)


@given(scores, masses)
def test_what_is_kept_is_a_prefix_of_the_ranking(values, mass):
    mask = TopP(mass=mass).keep(values)
    if mask.any() and not mask.all():
        assert values[mask].min() >= values[~mask].max()


@given(scores, masses)
def test_something_is_kept_exactly_when_there_is_signal_and_never_a_zero(values, mass):
    mask = TopP(mass=mass).keep(values)
    assert mask.any() == values.any()
    assert (values[mask] > 0.0).all()


@given(scores, masses, st.randoms(use_true_random=False))
def test_the_order_of_prompts_does_not_matter(values, mass, random):
    order = np.array(random.sample(range(len(values)), len(values)))
    mask, shuffled = TopP(mass=mass).keep(values), TopP(mass=mass).keep(values[order])
    assert sorted(values[mask]) == sorted(values[order][shuffled])


@given(scores, masses, st.sampled_from([1e-3, 0.1, 0.7, 3.0, 11.0, 1e4]))
def test_the_scale_of_rewards_does_not_matter(values, mass, scale):
    assert TopP(mass=mass).keep(values * scale).tolist() == TopP(mass=mass).keep(values).tolist()


@given(scores, masses, masses)
def test_more_mass_keeps_no_fewer_prompts(values, one, other):
    less, more = sorted((one, other))
    assert (TopP(mass=less).keep(values) <= TopP(mass=more).keep(values)).all()


@given(scores, masses, st.floats(0.0, 1.0))
def test_eps_never_keeps_more(values, mass, eps):
    assert (TopP(mass=mass, eps=eps).keep(values) <= TopP(mass=mass).keep(values)).all()


@given(scores, masses)
def test_a_prompt_without_signal_changes_nothing_for_the_others(values, mass):
    with_dead = TopP(mass=mass).keep(np.append(values, 0.0))
    assert with_dead[:-1].tolist() == TopP(mass=mass).keep(values).tolist()


@given(scores, masses)
def test_keeping_does_not_change_the_scores(values, mass):
    before = values.copy()
    TopP(mass=mass).keep(values)
    assert np.array_equal(values, before)
