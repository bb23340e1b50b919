"""When a curriculum changes its level, and which curricula a run cannot have."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from ragen2.config import RunConfig, parse_config
from ragen2.curriculum import Curriculum, CurriculumState, success_interval
from ragen2.diagnostics.statistics.resampling import student_quantile, wilson_of_trials
from ragen2.envs import make
from ragen2.errors import ConfigError
from ragen2.seeding import stream

LAKE = make("FrozenLake")
"""Levels 0 to 3."""
ADAPTIVE = Curriculum(mode="adaptive")


def groups(shares: Sequence[float], size: int = 16) -> list:
    """Groups of which these shares of rollouts succeed."""
    return [
        SimpleNamespace(
            trajectories=[SimpleNamespace(solved=at < round(share * size)) for at in range(size)]
        )
        for share in shares
    ]


def after(level: int, *steps: Sequence[float], rule: Curriculum = ADAPTIVE) -> CurriculumState:
    """The state after steps with these success rates of prompts, from ``level`` on."""
    state = CurriculumState(level=level)
    for shares in steps:
        state, _ = rule.update(LAKE, state, groups(shares))
    return state


ALL, NONE, HALF = [1.0] * 8, [0.0] * 8, [0.125, 0.375, 0.625, 0.375] * 2


def test_success_of_all_goes_up_once_it_is_sure():
    few = [1.0] * 6
    assert after(0, few).level == 0, "6 prompts are too few to be sure"
    assert after(0, few, few) == CurriculumState(level=1), "and nothing is counted yet at level 1"


def test_failure_of_all_goes_down_and_stays_at_the_bottom():
    assert after(2, NONE).level == 2
    assert after(2, NONE, NONE).level == 1
    assert after(0, *[NONE] * 20).level == 0


def test_the_highest_level_is_kept_however_much_succeeds():
    assert after(3, *[ALL] * 20).level == 3


def test_success_between_the_limits_stays_and_beyond_them_does_not():
    assert after(1, *[HALF] * 50).level == 1
    assert after(1, *[[0.6875] * 8] * 5).level == 2
    assert after(1, *[[0.0625] * 8] * 5).level == 0


def test_rollouts_of_a_prompt_are_no_independent_trials():
    """Half of the prompts always solved and half never: 640 rollouts say little about the mean."""
    low, high = success_interval([1.0, 0.0] * 20, num_rollouts=640)
    assert high - low > 0.25
    alike = success_interval([0.4375, 0.5625] * 20, num_rollouts=640)
    assert alike[1] - alike[0] < 0.1


def test_the_interval_is_wilsons():
    quantile = student_quantile(15.0)
    assert success_interval([1.0] * 16, num_rollouts=256) == wilson_of_trials(1.0, 16, quantile)
    shares = [0.25, 0.75] * 8
    trials = 0.25 / (np.var(shares, ddof=1) / 16)
    assert success_interval(shares, num_rollouts=256) == pytest.approx(
        wilson_of_trials(0.5, trials, quantile)
    )


def test_only_the_last_steps_at_this_level_count():
    state = after(1, *[HALF] * 9)
    assert len(state.success) == 5
    moved = CurriculumState(level=1, success=(tuple(ALL),))
    elsewhere, _ = ADAPTIVE.update(make("FrozenLake", max_distance=1), moved, groups(HALF))
    assert elsewhere == CurriculumState(level=0, success=(tuple(HALF),)), "fewer levels than before"


def test_notes_tell_the_first_level_and_every_change():
    state, note = ADAPTIVE.update(LAKE, CurriculumState(), groups(HALF))
    assert (state.level, note) == (0, "curriculum: level 0 of 3: max_distance 1")
    assert ADAPTIVE.update(LAKE, state, groups(HALF))[1] == ""
    _, note = ADAPTIVE.update(LAKE, CurriculumState(level=0), groups(ALL))
    change = "level 0, success 100% (59% to 100%), next is level 1 of 3: max_distance 2"
    assert note == f"curriculum: {change}"
    assert "; " not in note, "which parts the remarks of a note"


def test_a_start_level_is_where_the_first_step_is():
    rule = Curriculum(mode="adaptive", start_level=2)
    assert rule.level(LAKE, CurriculumState()).number == 2
    assert rule.level(LAKE, CurriculumState(level=0)).number == 0


def test_without_a_curriculum_tasks_are_the_run_s_own():
    level = Curriculum().level(LAKE, CurriculumState(level=0))
    assert level.env is LAKE
    assert level.settings == {}


def played(rates: Sequence[float], steps: int, learns: float = 0.0) -> list[int]:
    """Levels of a run whose prompts succeed at these rates by level, in odds that grow by ``learns``."""
    rng, state, found = stream("curriculum", *map(str, rates)), CurriculumState(level=0), []
    for step in range(steps):
        rate = rates[state.level]
        odds = rate / (1 - rate) * np.exp(learns * step)
        mean = odds / (1 + odds)
        shares = rng.beta(2 * mean, 2 * (1 - mean), size=8)
        found.append(state.level)
        state, _ = ADAPTIVE.update(LAKE, state, groups(shares))
    return found


def test_a_model_that_learns_nothing_finds_its_level_and_does_not_flap():
    levels = played([0.95, 0.7, 0.4, 0.05], 300)
    assert levels[40:] == [2] * 260


def test_a_level_right_at_the_limit_is_seldom_left():
    """Where the next level is far too hard, every tenth step at most is spent on finding that out."""
    levels = played([0.95, 0.85, 0.5, 0.05], 300)
    assert levels[40:].count(2) / len(levels[40:]) > 0.9


def test_a_model_that_learns_comes_to_the_run_s_own_tasks_and_stays():
    levels = played([0.5, 0.2, 0.05, 0.01], 200, learns=0.05)
    assert levels[0] == 0
    assert levels[-40:] == [3] * 40
    assert {0, 1, 2, 3} == set(levels)


# --- curricula that a run cannot have -------------------------------------------------------------


def refused(**tables) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(RunConfig, tables)
    return str(caught.value)


def test_it_is_off_unless_asked_for():
    assert RunConfig().curriculum == Curriculum(mode="off")
    assert parse_config(RunConfig, {"env": {"kind": "Bandit"}}).curriculum.mode == "off"


def test_an_environment_without_levels_is_refused():
    found = refused(env={"kind": "Bandit"}, curriculum={"mode": "adaptive"})
    assert found == 'curriculum: Bandit has no easier settings than these; set mode = "off"'


def test_a_start_level_that_does_not_exist_is_refused():
    found = refused(curriculum={"mode": "adaptive", "start_level": 4})
    assert found == "curriculum: start_level is 4, FrozenLake has levels 0 to 3 here"


def test_a_window_that_never_decides_is_refused_with_one_that_does():
    found = refused(rollout={"prompts": 2}, curriculum={"mode": "adaptive", "window": 5})
    assert found == (
        "curriculum: 5 steps of 2 prompts are never sure of a success below success_low or above "
        "success_high; set window to 8 or more"
    )
    good = parse_config(
        RunConfig, {"rollout": {"prompts": 2}, "curriculum": {"mode": "adaptive", "window": 8}}
    )
    assert good.curriculum.window == 8


def test_limits_in_the_wrong_order_are_refused():
    found = refused(curriculum={"success_low": 0.8})
    assert found == (
        "curriculum: success_low must be below success_high 0.5, got 0.8; for example 0.25 and 0.5"
    )


def test_mistakes_of_the_environment_are_told_alone():
    found = refused(env={"kind": "FrozenLake", "size": 1}, curriculum={"mode": "adaptive"})
    assert found == "env.size must be greater than or equal to 2, got 1"
