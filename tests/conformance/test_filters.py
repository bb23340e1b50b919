"""Every registered filter against the filter contract."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.errors import EnvError
from ragen2.filtering import Filter, select

KINDS = Filter.kinds()
every_kind = pytest.mark.parametrize("kind", KINDS)

batches = st.lists(
    st.lists(st.floats(-10, 10).map(lambda x: round(x, 2)), min_size=1, max_size=6),
    min_size=1,
    max_size=8,
)


def test_the_filters_of_the_contract_are_registered():
    assert {"top_p", "keep_all"} <= set(KINDS)


@every_kind
def test_it_is_a_component(kind, component_contract):
    component_contract(Filter, kind)


@every_kind
@given(batch=batches)
def test_it_says_keep_or_not_for_every_prompt(kind, batch):
    selection = select(batch, kind=kind)
    assert selection.kept_P.dtype == np.bool_
    assert selection.kept_P.shape == selection.scores_P.shape == (len(batch),)
    assert np.isfinite(selection.scores_P).all()
    assert 0.0 <= selection.kept_ratio <= 1.0


@every_kind
@given(batch=batches)
def test_it_gives_a_reason_exactly_when_it_keeps_nothing(kind, batch):
    selection = select(batch, kind=kind)
    assert bool(selection.reason) == (not selection.kept_P.any())


@every_kind
@given(batch=batches)
def test_it_is_a_function_of_its_input(kind, batch):
    first, again = select(batch, kind=kind), select(batch, kind=kind)
    assert first.kept_P.tolist() == again.kept_P.tolist()
    assert first.scores_P.tolist() == again.scores_P.tolist()


@every_kind
@given(scores=st.lists(st.floats(0, 1e6), min_size=1, max_size=8).map(np.array))
def test_it_does_not_edit_the_scores(kind, scores):
    before = scores.copy()
    Filter.from_dict({"kind": kind}).keep(scores)
    assert np.array_equal(scores, before)


@every_kind
def test_it_reads_returns_from_groups_and_leaves_them_alone(kind, group_of):
    groups = [group_of([0.0, 1.0], seed=1), group_of([0.0, 0.0], seed=2)]
    selection = Filter.from_dict({"kind": kind}).select(groups)
    bare = select([[0.0, 1.0], [0.0, 0.0]], kind=kind)
    assert selection.kept_P.tolist() == bare.kept_P.tolist()
    assert [group.rewards_G.tolist() for group in groups] == [[0.0, 1.0], [0.0, 0.0]]
    assert [g.prompt.seed for g in selection.apply(groups)] == [
        seed for seed, kept in zip((1, 2), bare.kept_P, strict=True) if kept
    ]


@every_kind
def test_a_prompt_with_signal_is_kept_when_it_is_the_only_one(kind):
    assert select([[0.0, 1.0]], kind=kind).kept_P.tolist() == [True]


@every_kind
def test_a_reward_that_is_no_number_names_the_environment(kind, group_of):
    groups = [group_of([0.0, math.nan], env="Sokoban", seed=12)]
    with pytest.raises(EnvError, match="Sokoban seed 12 returned a reward of nan"):
        Filter.from_dict({"kind": kind}).select(groups)
