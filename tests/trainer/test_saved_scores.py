"""The score matrices that training leaves are those its numbers rest on, and they are resumed exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.config import RunConfig, dump_config
from ragen2.diagnostics import Collapse, Reward, measure
from ragen2.envs import FrozenLake
from ragen2.rollout import Rollout
from ragen2.runs.checkpoints import newest_checkpoint
from ragen2.runs.scores import list_scores, read_scores
from ragen2.runs.store import RunDirectory
from ragen2.runs.trajectories import groups_of
from ragen2.trainer.loop import train
from ragen2.trainer.state import read_state
from ragen2.types import Update


class Still:
    """Names its cell and goes anywhere; learns nothing."""

    def __init__(self) -> None:
        self.policy = ScriptedPolicy(self.reply, self.logp)

    @staticmethod
    def reply(prompt: str, rng: np.random.Generator) -> str:
        cell = prompt.rpartition("You ")[2].split()[0]
        move = rng.choice(["Up", "Down", "Left", "Right"])
        return f"at {cell} {rng.choice(['now', 'so'])}</think><answer>{move}</answer>"

    @staticmethod
    def logp(prompt: str, text: str) -> float:
        return -0.5 if f"You {text.split()[1]}" in prompt else -2.0

    def update(self, samples, objective, *, scale: float) -> Update:
        return Update({}, len(samples), 1)

    def save(self, folder) -> None:
        (folder / "nothing.json").write_text("{}")

    def load(self, folder) -> None:
        del folder

    def describe(self):
        return {}


def config(steps: int = 4, **changes) -> RunConfig:
    return RunConfig(
        steps=steps,
        env=FrozenLake(slip=0.0, max_turns=2),
        rollout=Rollout(prompts=3, group_size=4, max_tokens=64),
        diagnostics=(
            Reward(),
            Collapse(resamples=100, every=2, scopes=("first_turn", "turns", "trajectory")),
        ),
        evaluation={"every": 4, "tasks": 4, "probe_prompts": 3, "probe_traces": 3},
        checkpoints={"every": 2, "keep": 2} | changes,
    )


@pytest.fixture
def trained(tmp_path) -> Callable[..., RunDirectory]:
    def run(configuration: RunConfig, name: str = "run", **more) -> RunDirectory:
        path = tmp_path / name
        found = (
            RunDirectory(path) if more else RunDirectory.create(path, dump_config(configuration))
        )
        still = Still()
        train(configuration, still.policy, still, found, **more)
        return found

    return run


def test_there_is_a_file_for_each_step_that_scored(trained):
    run = trained(config())
    assert [step for step, _ in list_scores(run.path)] == [0, 1, 2, 4]
    names = {
        step: [scope.name for scope in read_scores(path).scopes]
        for step, path in list_scores(run.path)
    }
    assert names[0] == ["probe"]
    assert names[1] == names[2] == ["first_turn", "turn_2", "trajectory"]
    assert names[4] == ["first_turn", "turn_2", "trajectory", "probe"]


def test_the_numbers_of_a_step_follow_from_its_matrices(trained):
    run = trained(config())
    records = {record.step: record for record in run.records()}
    for step, path in list_scores(run.path):
        for scope in read_scores(path).scopes:
            logp_NP = np.array([[np.nan if v is None else v for v in row] for row in scope.logp])
            found = measure(logp_NP, scope.length, scope.owner, resamples=100)
            for name in ("mi_estimate", "retrieval_accuracy", "num_traces", "num_prompts"):
                recorded = records[step].metrics[f"collapse/{scope.name}/{name}"]
                assert found[name] == pytest.approx(recorded, abs=1e-3), (step, scope.name, name)


def test_every_row_says_where_its_reasoning_stands(trained):
    run = trained(config())
    lines = (run.path / "rollouts" / "step_000002.jsonl").read_text().splitlines()
    played = [one for group in groups_of(lines) for one in group.trajectories]
    for scope in read_scores(dict(list_scores(run.path))[2]).scopes:
        assert len(scope.labels) == scope.num_traces
        for row, (line, turn) in enumerate(zip(scope.line, scope.turn, strict=True)):
            trajectory = played[line]
            assert scope.reasonings[row] == trajectory.turns[turn - 1].reply.reasoning
            assert scope.actions[row] == trajectory.turns[turn - 1].reply.actions[0]
            shown = scope.prompts[scope.owner[row]]
            cell = scope.reasonings[row].split()[1]
            assert f"You {cell}" in shown, "the column's text is the prompt that was shown"
            assert scope.labels[row].startswith(
                f"seed {trajectory.prompt.seed}, play {trajectory.luck}"
            )


def test_replies_to_the_probe_set_are_in_no_rollout_file(trained):
    (scope,) = read_scores(dict(list_scores(trained(config()).path))[0]).scopes
    assert set(scope.line) == {None}
    assert all(text.startswith("at (") for text in scope.reasonings)


def test_scores_are_kept_where_rollouts_are_not(trained):
    run = trained(config(rollouts_every=100))
    assert list((run.path / "rollouts").iterdir()) == []
    (scope, *_) = read_scores(dict(list_scores(run.path))[2]).scopes
    assert all(scope.reasonings)


def test_a_resumed_run_has_the_same_matrices_bit_for_bit(trained):
    whole = trained(config(), "whole")
    half = trained(config(steps=2), "half")
    half.save_scores(3, read_scores(list_scores(half.path)[-1][1]).scopes)  # of a step that is lost
    folder = newest_checkpoint(half.path)
    assert folder is not None
    half.rewind(2)
    trained(config(), "half", state=read_state(folder))
    first, second = (list_scores(run.path) for run in (whole, half))
    assert [step for step, _ in first] == [step for step, _ in second] == [0, 1, 2, 4]
    for (step, one), (_, other) in zip(first, second, strict=True):
        mine, theirs = read_scores(one), read_scores(other)
        # The shorter run evaluated its last step, which the longer one did not.
        shared = [scope for scope in theirs.scopes if step != 2 or scope.name != "probe"]
        assert mine.scopes == shared
