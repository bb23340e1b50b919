"""Credit in closed form: what each algorithm gives to each written token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.algorithms import (
    DAPO,
    GRPO,
    PPO,
    RLOO,
    DrGRPO,
    Outcome,
    ReinforcePlusPlus,
    bi_level_gae,
    discounted_returns,
    gae,
    leave_one_out_advantages,
    overlong_penalty,
    whiten,
)

numbers = st.floats(-5, 5)


def outcome(rewards, lengths=None, **more) -> Outcome:
    lengths = lengths or [2] * len(rewards)
    return Outcome(np.array(lengths), np.array(rewards, dtype=float), **more)


# --- pure functions --------------------------------------------------------------------------------


def test_leave_one_out_by_hand():
    assert leave_one_out_advantages(np.array([3.0, 0.0, 0.0])).tolist() == [3.0, -1.5, -1.5]
    assert leave_one_out_advantages(np.array([7.0])).tolist() == [0.0]


def test_discounted_returns_by_hand():
    assert discounted_returns(np.array([1.0, 2.0, 4.0]), 0.5).tolist() == [3.0, 4.0, 4.0]


def test_gae_by_hand():
    found = gae(np.array([0.0, 1.0]), np.array([0.5, 0.25]), gamma=0.9, lam=0.5)
    last = 1.0 - 0.25
    assert found == pytest.approx([0.9 * 0.25 - 0.5 + 0.9 * 0.5 * last, last])


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20))
def test_gae_at_its_ends(pairs):
    rewards, values = (np.array(column) for column in zip(*pairs, strict=True))
    monte_carlo = gae(rewards, values, gamma=1.0, lam=1.0)
    assert monte_carlo == pytest.approx(np.cumsum(rewards[::-1])[::-1] - values)
    one_step = gae(rewards, values, gamma=0.9, lam=0.0)
    assert one_step == pytest.approx(rewards + 0.9 * np.append(values[1:], 0.0) - values)


def test_bi_level_gae_gives_the_released_numbers():
    rewards, values = np.zeros(10), np.arange(1, 11) / 10
    rewards[[4, 9]] = 1.0
    advantages = bi_level_gae(
        rewards, values, np.array([5, 5]), gamma=1.0, lam=1.0, turn_gamma=0.95
    )
    assert advantages + values == pytest.approx([1.95] * 5 + [1.0] * 5)


def test_bi_level_gae_sees_turns_that_pay_nothing():
    values = np.full(4, 0.5)
    advantages = bi_level_gae(
        np.array([0.0, 0.0, 0.0, 1.0]), values, np.array([2, 2]), gamma=1.0, lam=1.0, turn_gamma=0.5
    )
    assert advantages + values == pytest.approx([0.5, 0.5, 1.0, 1.0])


def test_one_turn_of_bi_level_gae_is_gae():
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=6), rng.normal(size=6)
    rewards[:-1] = 0.0
    found = bi_level_gae(rewards, values, np.array([6]), gamma=0.9, lam=1.0, turn_gamma=0.5)
    assert found == pytest.approx(gae(rewards, values, gamma=0.9, lam=1.0))


def test_whitening_is_over_all_parts_together():
    parts = whiten([np.array([1.0, 2.0]), np.array([6.0])])
    joined = np.concatenate(parts)
    assert joined.mean() == pytest.approx(0.0)
    assert joined.var(ddof=1) == pytest.approx(1.0)
    assert [len(part) for part in parts] == [2, 1]
    assert whiten([np.array([3.0])])[0].tolist() == [0.0]
    assert whiten([]) == []


@pytest.mark.parametrize(
    ("length", "expected"), [(10, 0.0), (80, 0.0), (90, -0.5), (100, -1.0), (120, -1.0)]
)
def test_the_overlong_penalty_falls_over_the_buffer(length, expected):
    assert overlong_penalty(length, limit=100, buffer=20) == pytest.approx(expected)
    assert overlong_penalty(length, limit=100, buffer=0) == 0.0


# --- outcomes --------------------------------------------------------------------------------------


def test_a_turn_pays_at_its_last_token():
    one = outcome([1.0, 5.0], [2, 3])
    assert one.rewards_T.tolist() == [0.0, 1.0, 0.0, 0.0, 5.0]
    assert one.total == 6.0


def test_a_turn_without_tokens_pays_at_the_token_before():
    assert outcome([1.0, 5.0], [2, 0]).rewards_T.tolist() == [0.0, 6.0]


def test_token_rewards_are_added():
    one = outcome([1.0], [2], token_rewards_T=np.array([-0.5, -0.25]))
    assert one.rewards_T.tolist() == [-0.5, 0.75]
    assert one.total == 0.25


# --- algorithms ------------------------------------------------------------------------------------


def advantages(algorithm, *groups) -> list[list[list[float]]]:
    return [[c.advantages_T.tolist() for c in group] for group in algorithm.credit(groups)]


def test_grpo_gives_all_tokens_of_a_trajectory_the_same():
    group = [outcome([0.0, 1.0], [1, 2]), outcome([0.0], [2])]
    std = np.sqrt(0.5)
    found = advantages(GRPO(), group)[0]
    assert found[0] == pytest.approx([0.5 / (std + 1e-6)] * 3)
    assert found[1] == pytest.approx([-0.5 / (std + 1e-6)] * 2)


def test_dr_grpo_and_rloo_do_not_divide_by_the_std():
    group = [outcome([3.0]), outcome([0.0]), outcome([0.0])]
    assert advantages(DrGRPO(), group)[0] == [[2.0, 2.0], [-1.0, -1.0], [-1.0, -1.0]]
    assert advantages(RLOO(), group)[0] == [[3.0, 3.0], [-1.5, -1.5], [-1.5, -1.5]]


def test_turn_credit_compares_turns_with_the_same_turn_of_others():
    group = [outcome([0.0, 1.0], [1, 1]), outcome([0.0, 0.0], [1, 1]), outcome([1.0], [1])]
    found = advantages(DrGRPO(credit_to="turn", turn_gamma=0.5), group)[0]
    # First turn, reward to go: 0.5, 0, 1. Second turn: 1 and 0, of the two that got there.
    assert found[0] == pytest.approx([0.0, 0.5])
    assert found[1] == pytest.approx([-0.5, -0.5])
    assert found[2] == pytest.approx([0.5])


def test_kl_in_the_reward_lowers_what_strayed():
    near = outcome([1.0], [2], token_rewards_T=np.array([0.0, 0.0]))
    far = outcome([1.0], [2], token_rewards_T=np.array([-0.4, -0.6]))
    assert advantages(DrGRPO(), [near, far])[0] == [[0.5, 0.5], [-0.5, -0.5]]
    turns = advantages(DrGRPO(credit_to="turn"), [near, far])[0]
    assert turns == [[0.5, 0.5], [-0.5, -0.5]]


def test_dapo_punishes_replies_that_run_into_the_limit():
    short, long = outcome([1.0], [10], limit=20), outcome([1.0], [20], limit=20)
    found = advantages(DAPO(overlong_buffer=5), [short, long])[0]
    assert found[0][0] > 0 > found[1][0]
    assert advantages(DAPO(overlong_buffer=0), [short, long])[0][0][0] == 0.0


def test_reinforce_plus_plus_carries_credit_back_over_turns():
    group = [outcome([0.0, 1.0], [1, 1]), outcome([0.0, 0.0], [1, 1])]
    found = np.array(advantages(ReinforcePlusPlus(gamma=0.5), group)[0])
    raw = np.array([[0.5, 1.0], [0.0, 0.0]])
    assert found == pytest.approx((raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8))


def test_reinforce_plus_plus_with_the_groups_mean_ignores_dead_groups():
    dead, live = [outcome([1.0]), outcome([1.0])], [outcome([0.0]), outcome([2.0])]
    found = advantages(ReinforcePlusPlus(baseline="group"), dead, live)
    assert found[0] == [[0.0, 0.0], [0.0, 0.0]]
    assert found[1][1][0] > 0


def test_ppo_is_gae_with_returns_for_the_critic():
    values = np.array([0.1, 0.2, 0.3, 0.4])
    one = outcome([0.0, 1.0], [2, 2], values_T=values)
    credit = PPO(whiten=False, gamma=0.9, lam=0.8).credit([[one]])[0][0]
    expected = gae(one.rewards_T, values, gamma=0.9, lam=0.8)
    assert credit.advantages_T == pytest.approx(expected)
    assert credit.returns_T == pytest.approx(expected + values)


def test_whitening_ppos_advantages_leaves_the_critics_targets_alone():
    batch = [[outcome([float(r)], [2], values_T=np.array([0.1, 0.2])) for r in (0, 1, 1)]]
    plain, white = (PPO(whiten=flag).credit(batch)[0] for flag in (False, True))
    for one, other in zip(plain, white, strict=True):
        assert one.returns_T == pytest.approx(other.returns_T)
    joined = np.concatenate([one.advantages_T for one in white])
    assert joined.mean() == pytest.approx(0.0)


def test_ppo_without_a_critic_says_so():
    with pytest.raises(ValueError, match="needs the critic's values"):
        PPO().credit([[outcome([1.0])]])


# --- trajectories that wrote little or nothing -----------------------------------------------------

LITTLE = [
    PPO(),
    PPO(bi_level=True),
    ReinforcePlusPlus(),
    ReinforcePlusPlus(baseline="group"),
    GRPO(),
    DAPO(credit_to="turn"),
    RLOO(),
]


@pytest.mark.parametrize("algorithm", LITTLE, ids=lambda one: one.kind)
@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1], [0, 1], [1, 0], [0, 2, 0, 0, 3, 0]])
@pytest.mark.parametrize("alone", [True, False])
def test_credit_fits_whatever_was_written(algorithm, lengths, alone):
    tokens = sum(lengths)
    one = Outcome(
        np.array(lengths, dtype=np.int64),
        np.ones(len(lengths)),
        token_rewards_T=np.full(tokens, -0.1),
        values_T=np.full(tokens, 0.2),
        limit=8,
    )
    other = outcome([0.0], [2], token_rewards_T=np.zeros(2), values_T=np.zeros(2), limit=8)
    (group,) = algorithm.credit([[one] if alone else [one, other]])
    assert group[0].advantages_T.shape == (tokens,)
    assert np.isfinite(group[0].advantages_T).all()


def test_turns_without_tokens_do_not_change_what_bi_level_gae_sees():
    values = np.array([0.1, 0.2, 0.3])
    settings = PPO(bi_level=True, whiten=False)
    plain = outcome([1.0, 2.0], [1, 2], values_T=values)
    hollow = outcome([1.0, 0.0, 2.0, 0.0], [1, 0, 2, 0], values_T=values)
    found = [settings.credit([[one]])[0][0].advantages_T for one in (plain, hollow)]
    assert found[0] == pytest.approx(found[1])


def test_bi_level_gae_of_nothing_is_nothing():
    none = np.empty(0)
    lengths = np.empty(0, dtype=np.int64)
    assert bi_level_gae(none, none, lengths, gamma=1.0, lam=1.0, turn_gamma=1.0).shape == (0,)


def test_one_token_is_whitened_to_nothing():
    one = outcome([5.0], [1], values_T=np.array([0.0]))
    assert advantages(PPO(), [one]) == [[[0.0]]]
    assert advantages(ReinforcePlusPlus(), [one]) == [[[0.0]]]
