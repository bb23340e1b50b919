"""Bootstrap weights and permutation p-values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.diagnostics.resampling import percentile_interval, permutation_p_value, resample
from ragen2.seeding import stream

owners = st.lists(st.integers(0, 4), min_size=1, max_size=12).map(np.array)


@given(owners, st.sampled_from(["batch", "population"]))
def test_weights_of_a_draw_are_a_distribution(owner_N, interval):
    weights_BN = resample(owner_N, interval, 20, stream(0))
    assert weights_BN.shape == (20, len(owner_N))
    assert (weights_BN >= 0).all()
    assert weights_BN.sum(1) == pytest.approx(np.ones(20))


@given(owners)
def test_a_batch_draw_keeps_the_share_of_each_prompt(owner_N):
    weights_BN = resample(owner_N, "batch", 20, stream(0))
    for prompt in np.unique(owner_N):
        own = owner_N == prompt
        assert weights_BN[:, own].sum(1) == pytest.approx(np.full(20, own.mean()))


@given(owners)
def test_a_population_draw_takes_prompts_whole(owner_N):
    weights_BN = resample(owner_N, "population", 20, stream(0))
    for prompt in np.unique(owner_N):
        own = weights_BN[:, owner_N == prompt]
        assert own == pytest.approx(np.repeat(own[:, :1], own.shape[1], axis=1))


def test_draws_average_to_equal_weights():
    weights_BN = resample(np.array([0, 0, 1, 1]), "batch", 4000, stream(1))
    assert weights_BN.mean(0) == pytest.approx(np.full(4, 0.25), abs=0.01)


def test_the_interval_is_the_middle_of_the_values():
    assert percentile_interval(np.arange(101.0)) == pytest.approx((2.5, 97.5))
    assert percentile_interval(np.arange(101.0), level=0.5) == pytest.approx((25.0, 75.0))


@pytest.mark.parametrize(
    ("observed", "null", "p"),
    [
        (5.0, [1.0, 2.0, 3.0], 1 / 4),
        (2.0, [1.0, 2.0, 3.0], 3 / 4),
        (0.0, [1.0, 2.0, 3.0], 1.0),
        (1.0 + 1e-15, [1.0] * 9, 1.0),
    ],
)
def test_a_p_value_counts_the_null_values_at_least_as_large_and_itself(observed, null, p):
    assert permutation_p_value(observed, null) == p
