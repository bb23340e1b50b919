"""Which rows of a batch are kept."""

from __future__ import annotations

import numpy as np
import pytest
import verl  # noqa: F401 - it must be there before its parts

from ragen2.backends.agent import open_policy
from ragen2.config import load_run
from ragen2.integrations.verl.rows import Chosen
from ragen2.trainer.batch import play_batch
from ragen2.types import Selection


@pytest.fixture(scope="module")
def groups():
    config = load_run(None, ["rollout.prompts=3", "rollout.group_size=2", "rollout.max_tokens=24"])
    return play_batch(config, open_policy("ragen2-tiny", "cpu"), 1).groups


KEYS = [["a_0_0", "a_1_0"], ["b_0_0", "b_1_0"], ["c_0_0", "c_1_0"]]


def test_rows_of_kept_prompts_are_kept(groups):
    chosen = Chosen(groups, KEYS, Selection(np.array([True, False, True]), np.ones(3)))
    assert chosen.kept_keys() == [KEYS[0], KEYS[2]]
    expected = sum(one.num_tokens for row in (0, 2) for one in groups[row].trajectories)
    assert chosen.kept_tokens() == expected


def test_a_member_that_is_left_out_keeps_its_place(groups):
    members = tuple(np.array(rows) for rows in ([True, False], [True, True], [False, True]))
    kept = Selection(np.array([True, False, True]), np.ones(3), members=members)
    chosen = Chosen(groups, KEYS, kept)
    assert chosen.kept_keys() == [["a_0_0", None], [None, "c_1_0"]]
    assert chosen.flat_keys == ["a_0_0", "c_1_0"]
    expected = groups[0].trajectories[0].num_tokens + groups[2].trajectories[1].num_tokens
    assert chosen.kept_tokens() == expected
