"""Every other rule: the reference's worked examples and edge cases, and what we do differently."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.errors import ConfigError
from ragen2.filtering import (
    PRESETS,
    Filter,
    MinP,
    Nonzero,
    Quantile,
    TopK,
    TopKAbs,
    TopP,
    TopPSoftmax,
    TrajectoryControl,
    select,
)

SOKOBAN = [5.6, 5.1, 4.4, 3.0, 1.5, 0.2, 0.0, 0.0]
BINARY = [0.51, 0.50, 0.48, 0.45, 0.40, 0.34, 0.25, 0.0]

scores = st.lists(
    st.floats(0.0, 1e6) | st.sampled_from([0.0, 0.1, 0.25, 1.0]), min_size=1, max_size=20
).map(np.array)


def kept(rule: Filter, values) -> list[int]:
    return np.flatnonzero(rule.keep(np.asarray(values, dtype=float))).tolist()


# --- softmax top-p: the numbers of the released code ------------------------------------------------


@pytest.mark.parametrize(
    ("values", "mass", "with_zeros", "count"),
    [
        (SOKOBAN, 0.98, True, 4),
        (SOKOBAN, 0.95, True, 4),
        (SOKOBAN, 0.95, False, 3),
        (SOKOBAN, 0.9, True, 3),
        (SOKOBAN, 0.8, True, 3),
        (SOKOBAN, 0.8, False, 2),
        (SOKOBAN, 0.6, True, 2),
        (SOKOBAN, 0.4, True, 1),
        (BINARY, 0.98, True, 8),
        (BINARY, 0.95, True, 8),
        (BINARY, 0.9, True, 7),
        (BINARY, 0.8, True, 6),
        (BINARY, 0.6, True, 5),
        ([0.0] * 8, 0.9, True, 8),
        ([0.0] * 8, 0.9, False, 0),
        ([0.0] * 8, 1.0, True, 8),
    ],
)
def test_softmax_keeps_what_the_released_code_keeps(values, mass, with_zeros, count):
    rule = TopPSoftmax(mass=mass, include_zero=with_zeros)
    assert kept(rule, values) == list(range(count))


def test_softmax_depends_on_the_scale_of_rewards_and_linear_mass_does_not():
    values = np.array(BINARY)
    assert len(kept(TopPSoftmax(), values * 10)) < len(kept(TopPSoftmax(), values))
    assert kept(TopP(), values * 10) == kept(TopP(), values)


def test_softmax_of_the_smallest_prefers_little_signal():
    assert kept(TopPSoftmax(mass=0.5, largest=False), [9.0, 1.0, 5.0]) == [1]


# --- top-k -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "share", "with_zeros", "expected"),
    [
        (SOKOBAN, 0.25, False, [0, 1]),
        (SOKOBAN, 0.5, False, [0, 1, 2, 3]),
        (SOKOBAN, 1.0, False, [0, 1, 2, 3, 4, 5]),
        (SOKOBAN, 1.0, True, list(range(8))),
        (SOKOBAN, 0.01, False, [0]),
        ([0.0] * 4, 0.5, False, []),
        ([0.0] * 4, 0.25, True, [0]),
        ([1.0] * 4, 0.5, False, [0, 1]),
    ],
)
def test_top_k_keeps_a_share_of_the_whole_batch(values, share, with_zeros, expected):
    assert kept(TopK(share=share, include_zero=with_zeros), values) == expected


def test_a_share_is_not_cut_by_floating_point():
    assert len(kept(TopK(share=0.29), np.arange(1.0, 101.0))) == 29


def test_top_k_of_the_smallest():
    assert kept(TopK(share=0.5, largest=False), [3.0, 0.0, 1.0, 2.0]) == [2, 3]


@pytest.mark.parametrize(("count", "expected"), [(1, [0]), (3, [0, 1, 2]), (99, list(range(6)))])
def test_top_k_abs_keeps_a_number(count, expected):
    assert kept(TopKAbs(count=count), SOKOBAN) == expected


# --- min-p -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.1, [0, 1, 2, 3, 4]), (0.5, [0, 1, 2, 3]), (0.6, [0, 1, 2]), (1.0, [0])],
)
def test_min_p_compares_with_the_best(share, expected):
    assert kept(MinP(share=share), SOKOBAN) == expected


def test_min_p_keeps_the_prompt_that_is_exactly_at_the_share():
    assert kept(MinP(share=0.1), [1.0, 0.1, 0.3, 0.09]) == [0, 1, 2]


def test_min_p_of_the_smallest_and_of_nothing():
    assert kept(MinP(share=0.5, largest=False), [4.0, 1.0, 2.0, 2.1]) == [1, 2]
    assert kept(MinP(), [0.0, 0.0]) == []
    assert kept(MinP(include_zero=True), [0.0, 0.0]) == [0, 1]


# --- nonzero, quantile, trajectory, soft ------------------------------------------------------------


def test_nonzero_drops_dead_groups_and_nothing_else():
    assert kept(Nonzero(), SOKOBAN) == [0, 1, 2, 3, 4, 5]
    found = select([[1, 1], [0, 1], [0.1 + 0.2, 0.3]], kind="nonzero")
    assert found.kept_P.tolist() == [False, True, False]


def test_quantiles_are_a_partition_from_most_to_least_signal():
    values = np.array([3.0, 0.0, 7.0, 1.0, 5.0, 2.0, 0.5])
    slices = [kept(Quantile(slices=3, slice=i), values) for i in (1, 2, 3)]
    assert slices == [[0, 2, 4], [3, 5], [1, 6]]


def test_a_slice_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="slice 5 of 4 does not exist"):
        select([[0, 1]], kind="quantile", slices=4, slice=5)


def test_the_trajectory_control_keeps_all_prompts_and_their_extreme_members():
    found = select([[5.0, 1.0, 3.0, 2.0], [0.0, 0.0, 1.0]], kind="trajectory", share=0.5)
    assert found.kept_P.all()
    assert [mask.tolist() for mask in found.members] == [
        [True, True, False, False],
        [False, True, True],
    ]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_the_trajectory_control_keeps_the_share_of_each_group(share, size):
    mask = TrajectoryControl(share=share).members([np.arange(size, dtype=float)])[0]
    assert mask.sum() == max(1, round(share * size))
    assert mask[-1]


def test_soft_weights_are_signal_over_the_greatest():
    found = select([[0, 1], [0, 0], [0, 2]], kind="soft", signal="reward_std")
    assert found.kept_P.tolist() == [True, False, True]
    assert found.weights_P == pytest.approx([0.5, 0.0, 1.0])
    assert found.kept_weights == pytest.approx([0.5, 1.0])


def test_soft_weights_relative_to_the_mean_have_mean_one():
    found = select([[0, 1], [0, 0], [0, 3]], kind="soft", relative_to="mean")
    assert found.weights_P.mean() == pytest.approx(1.0)


def test_soft_without_signal_keeps_nothing_and_says_why():
    found = select([[1, 1], [0, 0]], kind="soft")
    assert not found.kept_P.any()
    assert found.reason == "all 2 prompts have zero reward_variance"


# --- noise -----------------------------------------------------------------------------------------


def test_known_noise_is_taken_off_the_variance():
    rewards = [np.array([0.0, 1.0]), np.array([0.0, 4.0])]
    plain = TopP().select_rewards(rewards).scores_P
    assert plain == pytest.approx([0.5, 8.0])
    assert TopP(noise=0.5).select_rewards(rewards).scores_P == pytest.approx([0.0, 7.5])
    std = TopP(signal="reward_std", noise=0.5).select_rewards(rewards)
    assert std.scores_P == pytest.approx([0.0, np.sqrt(7.5)])


def test_noise_measured_for_each_prompt_takes_the_place_of_the_constant():
    rewards = [np.array([0.0, 1.0]), np.array([0.0, 1.0])]
    found = TopP(noise=9.0).select_rewards(rewards, np.array([0.5, 0.1]))
    assert found.scores_P == pytest.approx([0.0, 0.4])
    assert found.kept_P.tolist() == [False, True]


# --- presets: the four definitions in circulation --------------------------------------------------

PEER_EXAMPLES = {
    "3 of 8 mixed, binary": (
        [[0, 1] * 8, [0] * 12 + [1] * 4, [1] * 10 + [0] * 6, *([[0] * 16] * 3), *([[1] * 16] * 2)],
        {"paper": 3, "ragen_main_table": 8, "ragen_guide": 3, "upstream_pr": 3},
    ),
    "all dead": (
        [[1] * 16] * 8,
        {"paper": 0, "ragen_main_table": 8, "ragen_guide": 0, "upstream_pr": 0},
    ),
}


@pytest.mark.parametrize("example", PEER_EXAMPLES)
def test_presets_keep_what_their_definitions_keep(example):
    rewards, expected = PEER_EXAMPLES[example]
    assert {name: int(select(rewards, kind=name).kept_P.sum()) for name in PRESETS} == expected


def scaled_to(std: float) -> list[float]:
    """Two rewards with this (unbiased) standard deviation."""
    return [0.0, std * np.sqrt(2.0)]


@pytest.mark.parametrize(
    ("stds", "guide", "main_table"),
    [
        ([5, 4, 2, 0.2, 0.1, 0.1, 0, 0], 3, 2),
        (SOKOBAN, 4, 3),
        (BINARY, 6, 7),
    ],
)
def test_presets_on_given_standard_deviations(stds, guide, main_table):
    rewards = [scaled_to(std) for std in stds]
    assert select(rewards, kind="ragen_guide").kept_P.sum() == guide
    assert select(rewards, kind="ragen_main_table").kept_P.sum() == main_table


def test_what_stands_beside_a_preset_wins():
    rewards = [scaled_to(std) for std in SOKOBAN]
    assert select(rewards, kind="ragen_guide", mass=0.4).kept_P.sum() == 2


def test_a_preset_can_be_named_in_a_run_file():
    rule = Filter.from_dict({"kind": "ragen_main_table"})
    assert rule == TopPSoftmax(signal="reward_std", mass=0.9, include_zero=True)


def test_a_mistyped_preset_is_suggested():
    with pytest.raises(ConfigError, match=r"unknown filter kind 'papr'; did you mean 'paper'\?"):
        select([[0, 1]], kind="papr")


# --- properties ------------------------------------------------------------------------------------

RANKED = [TopP(), TopPSoftmax(), TopK(), TopKAbs(count=2), MinP(), Nonzero(), Quantile()]
LINEAR = [TopP(), TopK(), TopKAbs(count=2), MinP(), Nonzero(), Quantile()]
by_name = {"ids": lambda rule: rule.kind}


@pytest.mark.parametrize("rule", RANKED, **by_name)
@given(values=st.lists(st.floats(0.001, 1e3), min_size=1, max_size=12, unique=True), data=st.data())
def test_a_rule_does_not_look_at_the_order_of_prompts(rule, values, data):
    shuffled = data.draw(st.permutations(values))
    here = np.array(values)[rule.keep(np.array(values))]
    there = np.array(shuffled)[rule.keep(np.array(shuffled))]
    assert sorted(here) == sorted(there)


@pytest.mark.parametrize("rule", LINEAR, **by_name)
@given(
    values=scores.map(lambda values: np.where(values < 1e-100, 0.0, values)),
    scale=st.sampled_from([0.125, 0.5, 2.0, 64.0]),
)
def test_linear_rules_do_not_look_at_the_scale_of_rewards(rule, values, scale):
    assert rule.keep(values * scale).tolist() == rule.keep(values).tolist()


@pytest.mark.parametrize("kind", [TopP, TopPSoftmax])
@given(values=scores, low=st.floats(0.05, 0.95), high=st.floats(0.05, 0.95))
def test_more_mass_keeps_no_fewer_prompts(kind, values, low, high):
    low, high = sorted((low, high))
    fewer, more = kind(mass=low).keep(values), kind(mass=high).keep(values)
    assert not (fewer & ~more).any()


@given(values=scores, mass=st.floats(0.05, 0.99))
def test_softmax_reaches_its_mass_with_as_few_as_can_be(values, mass):
    rule = TopPSoftmax(mass=mass, include_zero=True)
    mask = rule.keep(values)
    share = np.exp(values - values.max())
    share /= share.sum()
    assert share[mask].sum() >= mass * (1 - 1e-9)
    if mask.sum() > 1:
        assert share[mask].sum() - share[mask].min() < mass * (1 + 1e-9)


@pytest.mark.parametrize("signal", ["length", "entropy", "entropy_std"])
def test_signals_of_whole_rollouts_cannot_be_had_from_rewards(signal):
    with pytest.raises(ConfigError, match="needs whole rollouts"):
        select([[0, 1]], signal=signal)


def test_ranking_by_mean_reward():
    assert select([[0, 1], [2, 2]], kind="top_k", share=0.5, signal="reward_mean").kept_P[1]
