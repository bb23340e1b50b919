"""Preflight of a batch whose every number can be told beforehand."""

from __future__ import annotations

import json
from typing import Literal

import numpy as np
import pytest
from planted import PLANTS, PlantedCountdown, PlantedLake, add_up, walk

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.config import RunConfig
from ragen2.envs import Countdown, FrozenLake
from ragen2.filtering import Filter, KeepAll, TopP
from ragen2.progress import ProgressReport, reported_to
from ragen2.rollout import Rollout
from ragen2.trainer.batch import training_tasks
from ragen2.trainer.preflight import forecast_filters, preflight, ratio_interval

WALKER = ScriptedPolicy(walk, lambda prompt, text: -1.0 if text[-3:] in prompt else -2.0)


def planted_config(**settings) -> RunConfig:
    rollout = Rollout(prompts=12, group_size=6, actions_per_turn=1)
    return RunConfig(env=PlantedLake(), rollout=rollout, **settings)


@pytest.fixture(scope="module")
def found():
    said: list[ProgressReport] = []
    with reported_to(said.append):
        result = preflight(planted_config(), WALKER)
    return result, said


def test_it_reports_its_phases_in_order(found):
    _, said = found
    assert list(dict.fromkeys(one.doing for one in said)) == [
        "playing PlantedLake",
        "judging 12 prompts",
        "playing the same actions under other luck",
        f"trying {len(Filter.kinds())} filters",
        "playing without the model",
        "scoring the reasoning",
    ]
    ended = [one.done for one in said if one.doing == "playing PlantedLake"]
    assert (ended[0], ended, said[0].total) == (0, sorted(ended), 72 * PlantedLake().max_turns)


def test_it_plays_the_first_batch_of_the_run(found):
    result, _ = found
    seeds = [group[0].seed for group in training_tasks(planted_config(), 1)]
    assert [one.name for one in result.prompts] == [f"PlantedLake seed {seed}" for seed in seeds]
    assert (result.num_prompts, result.group_size, result.env) == (12, 6, "PlantedLake")


def test_its_shares_are_those_of_its_prompts(found):
    result, _ = found
    for label in ("live", "too_easy", "too_hard", "reward_blind", "unclear"):
        share = np.mean([one.label == label for one in result.prompts])
        assert result.metrics[f"triage/{label}"] == pytest.approx(share)


def test_the_advice_is_to_mend_the_reward(found):
    result, _ = found
    assert not result.advice.go
    assert "33% are reward blind" in result.advice.reasons[0]
    assert "mend the reward" in result.advice.reasons[0]


def test_dead_prompts_are_forecast_for_every_size(found):
    result, _ = found
    sizes = {one.group_size: one for one in result.group_sizes}
    assert sorted(sizes) == [2, 4, 6, 8, 16, 32, 64]
    assert sizes[6].dead_ratio == pytest.approx(result.metrics["reward/dead_ratio"])
    assert [size for size, one in sizes.items() if one.is_extrapolated] == [8, 16, 32, 64]
    ordered = [one.dead_ratio for one in result.group_sizes if not one.is_extrapolated]
    assert ordered == sorted(ordered, reverse=True)


def test_luck_is_split_off_where_there_is_any(found):
    result, _ = found
    assert result.noise is not None
    assert len(result.noise_by_prompt) == 12
    parts = [one.environment for one in result.noise_by_prompt]
    assert result.noise.environment == pytest.approx(np.mean(parts))


def test_where_luck_does_nothing_it_says_so():
    rollout = Rollout(prompts=len(PLANTS), group_size=4, actions_per_turn=1)
    result = preflight(RunConfig(env=PlantedCountdown(), rollout=rollout), ScriptedPolicy(add_up))
    assert result.noise is None
    assert result.absent["noise"] == "luck does nothing in PlantedCountdown"


def test_everything_can_be_written_as_json_and_nothing_is_made_up(found):
    result, _ = found
    data = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert data["schema_version"] == 1
    assert data["advice"]["decision"] == "fix_first"
    assert {one["label"] for one in data["prompts"]} >= {"reward_blind", "too_hard", "too_easy"}
    blind = next(one for one in data["prompts"] if one["label"] == "reward_blind")
    assert len(blind["examples"]) > 1
    assert {one["reward"] for one in blind["examples"]} == {blind["examples"][0]["reward"]}
    assert data["filters"][0]["is_own"]
    assert "collapse/first_turn/mi_estimate" in data["metrics"]


def test_the_same_run_gives_the_same_preflight(found):
    result, _ = found
    assert preflight(planted_config(), WALKER).as_dict() == result.as_dict()


def test_tasks_that_nobody_solves_ask_for_a_curriculum_and_are_the_run_s_own():
    lost = ScriptedPolicy(lambda prompt, rng: "far away</think><answer>Up</answer>")
    rollout = Rollout(prompts=8, group_size=4)
    env = FrozenLake(size=8, min_distance=9, max_actions=2)
    result = preflight(RunConfig(env=env, rollout=rollout), lost)
    assert (
        "0.0% of rollouts succeed, too few to learn from; 8 easier levels are there"
        in "\n".join(result.advice.reasons)
    )
    adaptive = RunConfig(env=env, rollout=rollout, curriculum={"mode": "adaptive"})
    again = preflight(adaptive, lost)
    assert again.metrics == result.metrics
    assert "curriculum" not in "\n".join(again.advice.reasons)


def test_without_reasoning_collapse_is_absent():
    rollout = Rollout(prompts=3, group_size=2, thinking=False)
    answer = ScriptedPolicy(lambda prompt, rng: "1 + 1</answer>")
    result = preflight(RunConfig(env=Countdown(), rollout=rollout), answer)
    assert result.regime is None
    assert "first-turn prompts had reasoning" in result.absent["collapse/first_turn"]


def test_filters_are_forecast_from_the_run_first(group_of):
    groups = [group_of([0.0, 1.0], seed=1), group_of([1.0, 1.0], seed=2)]
    own = TopP(mass=0.5)
    forecasts, absent = forecast_filters(groups, own)
    assert absent == {}
    assert (forecasts[0].kind, forecasts[0].settings["mass"], forecasts[0].is_own) == (
        "top_p",
        0.5,
        True,
    )
    assert {one.kind for one in forecasts} == set(Filter.kinds())
    assert not any(one.is_own for one in forecasts[1:])


def test_the_expected_keep_rate_is_over_batches_not_this_one(group_of):
    # With mass 1 a filter keeps live prompts: of 1 live in 4, batches of 4 draws keep 1/4 on average.
    groups = [group_of([0.0, 1.0], seed=1)] + [group_of([1.0, 1.0], seed=s) for s in (2, 3, 4)]
    forecasts, _ = forecast_filters(groups, TopP(mass=1.0))
    top = forecasts[0]
    assert top.kept_prompts == 1
    assert top.kept_ratio == pytest.approx(0.25, abs=0.06)
    assert top.effective_batch == pytest.approx(2 * 4 * top.kept_ratio)
    assert (top.kept_ratio_low, top.kept_ratio_high) == (0.0, pytest.approx(0.75, abs=0.26))
    keep_all = next(one for one in forecasts if one.kind == "keep_all")
    assert (keep_all.kept_ratio, keep_all.kept_prompts) == (1.0, 4)
    assert keep_all.effective_batch == pytest.approx(top.effective_batch)


@pytest.mark.usefixtures("own_kinds")
def test_a_filter_of_a_plug_in_appears_and_one_that_needs_settings_says_so(group_of):
    class Needy(KeepAll):
        kind: Literal["needy"] = "needy"
        wanted: int

    class Mine(KeepAll):
        kind: Literal["mine"] = "mine"

    forecasts, absent = forecast_filters([group_of([0.0, 1.0])], TopP())
    assert "mine" in {one.kind for one in forecasts}
    assert absent == {"filters/needy": "wanted is missing; give it a value"}
    assert (Needy.__name__, Mine.__name__) == ("Needy", "Mine")


def test_the_interval_of_the_ratio_holds_the_ratio():
    rewards = [np.array([0.0, 1.0])] * 6 + [np.array([1.0, 1.0])] * 6
    low, high = ratio_interval(rewards)
    assert low < 1.0 < high
    assert ratio_interval([np.zeros(3)]) is None
    assert ratio_interval([np.array([0.0, 1.0])] * 4) == (0.0, 0.0)
