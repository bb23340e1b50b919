"""Not trying must not pay: what scripted policies earn in every environment, and when to warn."""

from __future__ import annotations

import pytest

from ragen2.config import RunConfig
from ragen2.envs import Env, make
from ragen2.rollout import Rollout
from ragen2.trainer.incentives import Incentives, measure_incentives

OURS = sorted(kind for kind in Env.kinds() if Env.find(kind).__module__.startswith("ragen2.envs."))


@pytest.mark.parametrize("kind", OURS)
def test_by_default_an_honest_try_pays_more_than_none(kind):
    found = measure_incentives(RunConfig(env=make(kind)))
    assert found.warning == ""
    assert found.invalid < min(found.random, found.expert)


@pytest.mark.parametrize("kind", OURS)
def test_an_invalid_reply_costs_what_the_dearest_valid_one_can(kind):
    env = make(kind)
    rollout = Rollout()
    assert rollout.penalty(env) <= min(-0.1, env.dearest_reply(rollout.most_actions(env)))


def test_the_numbers_of_the_reference_are_one_setting_away_and_warned_of():
    config = RunConfig(env=make("Sokoban"), rollout=Rollout(preset="reference"))
    assert config.rollout.penalty(config.env) == -0.1
    found = measure_incentives(config)
    assert found.warning == (
        "An invalid reply pays no less than an honest try that fails: -0.50 and -1.00 per episode"
    )
    assert found.idle == pytest.approx(-0.5)


def test_a_penalty_of_ones_own_wins():
    assert Rollout(format_penalty=-3.0, preset="reference").penalty(make("Sokoban")) == -3.0


def test_where_nothing_fails_there_is_nothing_to_warn_of():
    assert Incentives(invalid=0.0, idle=None, random=1.0, failed=None, expert=1.0).warning == ""
