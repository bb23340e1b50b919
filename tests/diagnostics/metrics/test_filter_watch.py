"""What a filter does to the diet, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.diagnostics.metrics.reward import coverage, filter_metrics
from ragen2.filtering import Filter, KeepAll, TopP


def watched(rewards, group_of, rule: Filter | None = None) -> dict[str, float]:
    groups = [group_of(row, seed=seed) for seed, row in enumerate(rewards)]
    found = filter_metrics((rule or TopP(mass=1.0)).select(groups), groups)
    return {name.removeprefix("filter/"): value for name, value in found.items()}


def test_kept_shares_by_difficulty_are_counted(group_of):
    rewards = [[0.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0], [1.0, 2.0]]
    found = watched(rewards, group_of)
    assert (found["kept"], found["kept_ratio"]) == (3.0, 0.6)
    assert found["kept_ratio_never_solved"] == 0.0
    assert found["kept_ratio_sometimes_solved"] == 1.0
    assert found["kept_ratio_always_solved"] == 0.5


def test_a_kind_of_prompt_that_is_not_there_has_no_share(group_of):
    found = watched([[0.0, 1.0]], group_of)
    assert "kept_ratio_never_solved" not in found
    assert "kept_ratio_always_solved" not in found


def test_difficulty_is_failure_and_the_gap_is_that_of_the_kept(group_of):
    found = watched([[1.0, 1.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]], group_of)
    assert found["difficulty"] == pytest.approx(0.125)
    assert found["difficulty_gap"] == pytest.approx(0.5 - 0.125)


def test_nothing_kept_has_no_gap_and_a_dead_batch_no_signal_to_share(group_of):
    found = watched([[1.0, 1.0], [0.0, 0.0]], group_of)
    assert found["kept"] == 0.0
    assert {"difficulty_gap", "kept_signal", "variance_beside_success"}.isdisjoint(found)


def test_kept_signal_is_the_share_of_scores(group_of):
    found = watched([[0.0, 1.0], [0.0, 3.0]], group_of, TopP(mass=0.5))
    assert found["kept_signal"] == pytest.approx(0.9)


def test_shares_of_a_signal_that_can_be_negative_are_left_out(group_of):
    rule = KeepAll(signal="reward_mean")
    assert "kept_signal" not in watched([[-1.0, -1.0], [3.0, 3.0]], group_of, rule)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([[0.0, 1.0]], 0.0),  # solved pays 1, unsolved 0: success explains all
        ([[-1.0, -2.0]], 1.0),  # never solved: nothing is explained
        ([[1.0, 2.0]], 1.0),  # always solved
        ([[0.0, -2.0, 3.0, 3.0]], 0.5 / 4.5),  # by hand: within (1/2) 1 of 4.5 in all
        ([[0.0, 1.0], [1.0, 2.0]], 0.5),  # the mean over prompts with variance
        ([[0.0, 1.0], [1.0, 1.0]], 0.0),  # a prompt without variance does not count
        ([[0.0, 1.0], [0.3, 0.1 + 0.2]], 0.0),  # nor does one whose rewards differ by rounding
    ],
)
def test_variance_beside_success_by_hand(rewards, expected, group_of):
    assert watched(rewards, group_of)["variance_beside_success"] == pytest.approx(expected)


def test_a_policy_that_makes_rewards_vary_beside_the_task_is_seen(group_of):
    """The same success rate; in the second batch failures pay anything between -1 and 0."""
    honest = [[0.0, 0.0, 0.0, 1.0]] * 4
    gamed = [[-1.0, -0.5, 0.0, 1.0]] * 4
    before, after = (watched(rewards, group_of) for rewards in (honest, gamed))
    assert after["variance_beside_success"] > before["variance_beside_success"] + 0.1


def test_every_number_is_finite_for_groups_of_any_size(group_of):
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes = rng.integers(1, 5, size=4)
        found = watched([rng.integers(-2, 3, size=n) / 2 for n in sizes], group_of)
        assert np.isfinite(list(found.values())).all()


# --- coverage --------------------------------------------------------------------------------------


def test_coverage_counts_a_task_once_however_often_it_came():
    kept = [[True, False], [False, True]]
    assert coverage(kept, [[1, 2], [3, 4]]) == 0.5
    assert coverage(kept, [[1, 2], [2, 1]]) == 0.5
    assert coverage(kept, [[1, 2], [1, 2]]) == 1.0
    assert coverage([[False]], [[9]]) == 0.0


def test_coverage_of_nothing_is_absent():
    assert coverage([], []) is None


def test_a_filter_that_always_takes_the_same_tasks_is_seen():
    tasks = [[1, 2, 3, 4]] * 10
    narrow = [[True, False, False, False]] * 10
    wide = [[step % 4 == place for place in range(4)] for step in range(10)]
    assert coverage(narrow, tasks) == 0.25
    assert coverage(wide, tasks) == 1.0
