"""``select`` and ``Filter.select``: from rewards to what is kept, and why nothing was."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from ragen2.errors import ConfigError, EnvError
from ragen2.filtering import KeepAll, TopP, select


def test_a_prompt_whose_rollouts_agree_is_dropped():
    selection = select([[0, 1, 1, 0], [1, 1, 1, 1]], kind="top_p", mass=0.9)
    assert selection.kept_P.tolist() == [True, False]
    assert selection.scores_P == pytest.approx([1 / 3, 0.0])
    assert selection.kept_ratio == 0.5
    assert selection.reason == ""


def test_groups_may_differ_in_size():
    selection = select([[0, 1], [0, 0, 3], [5]])
    assert selection.scores_P == pytest.approx([0.5, 3.0, 0.0])
    assert selection.kept_P.tolist() == [True, True, False]


def test_the_signal_is_a_setting():
    variance = select([[0, 4], [0, 1], [0, 1]], mass=0.6)
    std = select([[0, 4], [0, 1], [0, 1]], mass=0.7, signal="reward_std")
    assert variance.scores_P == pytest.approx([8.0, 0.5, 0.5])
    assert std.scores_P == pytest.approx(np.sqrt([8.0, 0.5, 0.5]))
    assert (variance.kept_P.sum(), std.kept_P.sum()) == (1, 2)


def test_ddof_is_a_setting():
    assert select([[0, 1]], ddof=0).scores_P == pytest.approx([0.25])
    assert select([[0, 1]], ddof=1).scores_P == pytest.approx([0.5])


def test_groups_of_one_have_no_signal_and_the_reason_says_so():
    selection = select([[1.0], [0.0], [0.5]])
    assert selection.scores_P.tolist() == [0.0, 0.0, 0.0]
    assert not selection.kept_P.any()
    assert selection.reason == "all 3 prompts have zero reward_variance"


def test_a_rejected_weak_batch_says_how_weak_it_was():
    selection = select([[0.0, 0.1]], eps=0.01, mass=0.9)
    assert not selection.kept_P.any()
    assert selection.reason == "no prompt passed top_p; greatest reward_variance 0.005"


def test_keep_all_keeps_dead_prompts_too_and_still_scores_them():
    selection = select([[0, 1], [1, 1]], kind="keep_all")
    assert selection.kept_P.tolist() == [True, True]
    assert selection.scores_P == pytest.approx([0.5, 0.0])
    assert selection.reason == ""


@pytest.mark.parametrize(
    "bad", [[math.nan, 1.0], [math.inf, 0.0], [], [[1.0], [2.0]], ["a", "b"], [None, 1.0]]
)
def test_a_group_without_finite_rewards_is_refused_by_its_number(bad):
    with pytest.raises(ConfigError, match="group 1 must hold finite rewards, got"):
        select([[0.0, 1.0], bad])


@pytest.mark.parametrize("flat", [[0, 1, 1], [0.5], np.array([0.0, 1.0])])
def test_bare_rewards_are_told_that_each_prompt_has_a_list(flat):
    told = f"select takes one list of rewards per prompt, got the number {flat[0]:g} for prompt 0"
    with pytest.raises(ConfigError, match=re.escape(told)) as error:
        select(flat)
    assert str(error.value).endswith("; for a single prompt write select([[0, 1, 1]])")


def test_a_spread_that_is_rounding_keeps_no_batch():
    for kind in ("top_p", "nonzero", "top_k", "min_p", "soft"):
        selection = select([[1.0, 1.0 + 1e-11], [0.0, 1e-11]], kind=kind)
        assert not selection.kept_P.any(), kind
        assert selection.reason == "all 2 prompts have zero reward_variance"


def test_no_groups_are_refused():
    with pytest.raises(ConfigError, match="select needs the rewards of at least one group"):
        select([])


def test_an_unknown_kind_suggests_another():
    with pytest.raises(ConfigError, match="unknown filter kind 'top_q'; did you mean 'top_p'"):
        select([[0, 1]], kind="top_q")


def test_a_wrong_setting_is_named():
    with pytest.raises(ConfigError, match=r"mass must be less than or equal to 1, got 1\.7"):
        select([[0, 1]], mass=1.7)


@pytest.mark.parametrize("rule", [TopP(), KeepAll()])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_an_error_that_names_the_environment(group_of, rule, bad):
    groups = [group_of([0.0, 1.0], seed=1), group_of([0.0, bad], env="Bandit", seed=42)]
    with pytest.raises(EnvError, match=f"^Bandit seed 42 returned a reward of {bad}; .*finite"):
        rule.select(groups)


def test_groups_are_scored_by_their_returns(group_of):
    groups = [group_of([0.0, 1.0], seed=1), group_of([1.0, 1.0], seed=2)]
    selection = TopP().select(groups)
    assert selection.scores_P.tolist() == [0.5, 0.0]
    assert selection.apply(groups) == [groups[0]]
