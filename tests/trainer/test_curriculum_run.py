"""A run with a curriculum: which tasks it plays, what it records, and that it goes on as it was."""

from __future__ import annotations

import json
from typing import Literal

import numpy as np
import pytest
from test_loop import Walker, comparable

from ragen2.config import RunConfig, dump_config
from ragen2.curriculum import CurriculumState, levels_of
from ragen2.diagnostics import Collapse, Reward, Surface
from ragen2.diagnostics.base import Diagnostic, Evidence
from ragen2.diagnostics.judging.warning import WarningState
from ragen2.envs import FrozenLake
from ragen2.filtering import Nonzero
from ragen2.rollout import Rollout
from ragen2.runs.checkpoints import checkpoint_folder
from ragen2.runs.store import RunDirectory
from ragen2.trainer.loop import train
from ragen2.trainer.state import AlarmState, StopState, read_state, with_other_tasks

OWN = FrozenLake(slip=0.0, size=5)


def config(**changes) -> RunConfig:
    settings = {
        "steps": 24,
        "env": OWN,
        "rollout": Rollout(prompts=8, group_size=8, max_tokens=64),
        "diagnostics": (Surface(), Reward()),
        "evaluation": {"every": 12, "tasks": 64, "probe_prompts": 2, "probe_traces": 2},
        "checkpoints": {"every": 2, "keep": 20},
        "curriculum": {"mode": "adaptive"},
    }
    return RunConfig.model_validate(settings | changes)


def trained(folder, configuration: RunConfig, **more):
    run = RunDirectory.create(folder, dump_config(configuration))
    walker = Walker(lr=1.0)
    state = train(configuration, walker.policy, walker, run, **more)
    return run, walker, state


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("curriculum") / "run", config())


def levels(run: RunDirectory) -> list[int]:
    return [int(one.metrics["curriculum/level"]) for one in run.records()[1:]]


def test_the_level_rises_with_what_is_learnt_and_success_stays_off_the_ends(whole):
    run, walker, state = whole
    assert levels(run)[0] == 0
    assert max(levels(run)) > 1
    assert levels(run) == sorted(levels(run))
    assert walker.chance > 0.5
    success = [one.metrics["rollout/success"] for one in run.records()[1:]]
    assert 0.25 < np.mean(success) < 0.95
    assert state.curriculum.level is not None


def test_tasks_are_those_of_the_level_with_the_seeds_of_any_run(whole, tmp_path):
    run, _, _ = whole
    plain, _, _ = trained(tmp_path / "plain", config(steps=3, curriculum={}))
    every = levels_of(OWN)
    for record in run.records()[1:]:
        env = every[int(record.metrics["curriculum/level"])].env
        for line in (run.path / "rollouts" / f"step_{record.step:06d}.jsonl").open():
            row = json.loads(line)
            assert env.start(row["seed"], 0).observation in row["messages"][-1]["content"]
    assert [one.seeds for one in run.records()[:4]] == [one.seeds for one in plain.records()]
    assert "curriculum/level" not in plain.records()[1].metrics


def test_evaluation_has_the_run_s_own_tasks(whole, tmp_path):
    run, _, _ = whole
    plain, _, _ = trained(tmp_path / "plain", config(steps=1, curriculum={}))
    first, other = (one.records()[0].metrics for one in (run, plain))
    assert first == other, "before training nothing differs"
    assert "collapse/probe/mi_estimate" in first


def test_notes_name_the_first_level_and_every_change(whole):
    run, _, _ = whole
    notes = {one.step: one.note for one in run.records() if "curriculum" in one.note}
    assert notes[1].startswith("curriculum: level 0 of 4: max_distance 1")
    found = levels(run)
    changed = [step for step in range(1, len(found)) if found[step] != found[step - 1]]
    assert [step for step in notes if "next is" in notes[step]] == changed
    assert "next is level 1 of 4: max_distance 2" in notes[changed[0]]


@pytest.mark.parametrize("stop_after", [1, 6, 11])
def test_a_stopped_run_goes_on_at_its_level_to_the_same_records(whole, tmp_path, stop_after):
    run, walker, state = whole
    asked = iter([*[False] * stop_after, True])
    broken, _, stopped = trained(tmp_path / "broken", config(), stop_asked=lambda: next(asked))
    again = Walker(lr=1.0)
    folder = checkpoint_folder(broken.path, stopped.step)
    again.load(folder)
    assert read_state(folder) == stopped
    last = train(config(), again.policy, again, broken, state=read_state(folder))
    assert comparable(broken.records()) == comparable(run.records())
    assert (last, again.weight) == (state, walker.weight)


def test_rounds_of_resampling_are_of_the_level_and_all_count(tmp_path):
    rollout = Rollout(prompts=8, group_size=2, max_tokens=64, resample_rounds=2)
    slow = {"mode": "adaptive", "success_high": 0.95, "window": 12}
    configuration = config(steps=1, rollout=rollout, filter=Nonzero(), curriculum=slow)
    run, _, state = trained(tmp_path / "run", configuration)
    (record,) = run.records()[1:]
    assert record.metrics["filter/rounds"] > 1.0
    assert len(state.curriculum.success[0]) == len(record.seeds) > 8


class ReplayedDistance(Diagnostic):
    """The expert's moves on the first prompt, played again by the ledger's replayer."""

    kind: Literal["replayed_distance"] = "replayed_distance"

    def measure(self, evidence: Evidence) -> dict[str, float]:
        (expert, *_) = evidence.replayer.contrasts(evidence.groups[0], 1).expert
        return {"expert/moves": float(len(expert.actions))}


def test_diagnostics_replay_tasks_at_their_level(tmp_path):
    run, _, _ = trained(tmp_path / "run", config(steps=1, diagnostics=(ReplayedDistance(),)))
    assert run.records()[1].metrics["expert/moves"] == 1.0


def test_noise_is_measured_at_the_level(tmp_path, monkeypatch):
    seen = []
    from ragen2.trainer import batch

    real = batch.replay_actions
    monkeypatch.setattr(
        batch, "replay_actions", lambda env, *rest: seen.append(env) or real(env, *rest)
    )
    slippery = FrozenLake(slip=0.2, size=5)
    changes = {"env": slippery, "filter": Nonzero(noise_replays=2), "steps": 1}
    trained(tmp_path / "run", config(**changes))
    assert set(seen) == {levels_of(slippery)[0].env}


# --- what else looks at tasks ---------------------------------------------------------------------


def test_held_out_failure_ends_no_run_whose_tasks_are_still_easier(tmp_path):
    far = FrozenLake(slip=0.0, size=9, min_distance=12, max_actions=12, max_turns=12)
    changes = {
        "env": far,
        "steps": 4,
        "evaluation": {"every": 1, "tasks": 8, "probe_prompts": 0},
        "stops": {"success_evaluations": 2},
    }
    run, _, state = trained(tmp_path / "run", config(**changes))
    assert run.records()[-1].metrics["eval/success"] < 0.01
    assert (state.step, state.stopped, state.stops.low_success) == (4, "", 0)
    _, _, ended = trained(tmp_path / "plain", config(**changes, curriculum={}))
    assert ended.step == 2
    assert "held-out success below" in ended.stopped
    assert isinstance(ended.stops, StopState)


def test_a_new_level_has_its_own_baseline_of_the_early_warning(tmp_path):
    changes = {"steps": 24, "diagnostics": (Surface(), Collapse(resamples=100))}
    run, _, state = trained(tmp_path / "run", config(**changes))
    found = levels(run)
    since = len(found) - found.index(found[-1])
    assert found[-1] > 0
    assert state.watch.warning.num == since
    assert state.watch.warning.is_grounded


def test_an_alarm_that_is_on_outlasts_a_change_of_level():
    raised = AlarmState(warning=WarningState(num=9, is_raised=True, kind="grounding_lost"))
    assert with_other_tasks(raised) == raised
    calm = AlarmState(warning=WarningState(num=9, evidence=4.0, is_grounded=True), healthy=3)
    after = with_other_tasks(calm)
    assert after.warning == WarningState(evidence=4.0, is_grounded=True)
    assert after.healthy == 3


def test_a_checkpoint_of_an_older_version_starts_at_the_start_level():
    rule = config(curriculum={"mode": "adaptive", "start_level": 2}).curriculum
    assert rule.level(OWN, CurriculumState()).number == 2
