"""The run directory: never overwritten, always readable, rewindable."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.envs import FrozenLake
from ragen2.errors import RunError
from ragen2.rollout import Rollout, Task, play
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.types import Group


def record(step: int, **more) -> StepRecord:
    return StepRecord(step=step, metrics={"reward/mean": step / 3}, seconds={"step": 0.1}, **more)


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", "seed = 3\n")


@pytest.fixture
def group() -> Group:
    def reply(prompt: str, rng: np.random.Generator) -> str:
        return f"caf√ {rng.integers(9)}</think><answer>Up || Fly</answer>"

    tasks = [[Task(3, luck) for luck in range(2)]]
    return play(FrozenLake(), ScriptedPolicy(reply), tasks, Rollout(), key=("store",))[0]


# --- creating and opening --------------------------------------------------------------------------


def test_a_new_run_holds_its_settings(run):
    assert (run.path / "run.toml").read_text() == "seed = 3\n"
    assert (run.path / "rollouts").is_dir()
    assert RunDirectory.open(run.path).path == run.path


def test_folders_above_are_made(tmp_path):
    assert RunDirectory.create(tmp_path / "a" / "b", "").path.is_dir()


def test_an_empty_folder_may_become_a_run(tmp_path):
    (tmp_path / "run").mkdir()
    assert RunDirectory.create(tmp_path / "run", "x = 1").path == tmp_path / "run"


def test_a_folder_that_holds_anything_is_never_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"exists and is not empty; choose another with --out, or"):
        RunDirectory.create(tmp_path, "")
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RunError, match="run exists and is not empty"):
        RunDirectory.create(tmp_path / "run", "")
    assert (tmp_path / "run").read_text() == "a file"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be written: Not a directory; choose another"):
        RunDirectory.create(tmp_path / "file" / "run", "")


def test_a_folder_without_settings_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"is not a run directory \(no run\.toml in it\)"):
        RunDirectory.open(tmp_path)


# --- records ---------------------------------------------------------------------------------------


def test_a_run_without_records_has_none(run):
    assert run.records() == []


def test_records_come_back_as_they_went_in(run):
    whole = [
        record(0),
        record(
            1,
            absent={"collapse/first_turn": "why"},
            regime="template_collapse",
            kept=[True, False],
            scores=[0.1 + 0.2, 0.0],
            seeds=[100000, 100001],
            note="caf√ \u2028 \x85 line",
        ),
    ]
    for one in whole:
        run.append(one)
    assert run.records() == whole


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_every_bit_of_a_metric_survives(tmp_path_factory, values):
    run = RunDirectory.create(tmp_path_factory.mktemp("runs") / "run", "")
    one = StepRecord(step=1, metrics={f"m{i}": value for i, value in enumerate(values)})
    run.append(one)
    assert run.records() == [one]


def test_a_record_is_one_line_with_its_schema(run):
    run.append(record(1, note="two\nlines"))
    (line,) = run.steps_file.read_text().splitlines()
    assert json.loads(line)["schema_version"] == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_record_refuses_numbers_that_json_has_not(value):
    with pytest.raises(ValidationError, match="finite number"):
        StepRecord(step=1, metrics={"x": value})


def test_a_last_line_cut_anywhere_is_left_out(run):
    for step in range(3):
        run.append(record(step, note="caf√"))
    whole = run.steps_file.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last - 1):
        run.steps_file.write_bytes(whole[: len(whole) - last + cut])
        assert [one.step for one in run.records()] == [0, 1]


def test_a_last_line_that_lacks_only_its_end_is_whole(run):
    run.append(record(0))
    run.steps_file.write_bytes(run.steps_file.read_bytes().rstrip(b"\n"))
    assert run.records() == [record(0)]


@pytest.mark.parametrize("damage", ['{"step": 1,', '{"step": 1}', "garbage", "\udcff"])
def test_damage_before_the_last_line_is_an_error_that_names_the_line(run, damage):
    run.append(record(0))
    with run.steps_file.open("ab") as file:
        file.write(damage.encode(errors="surrogateescape") + b"\n")
    run.append(record(2))
    with pytest.raises(RunError, match=r"steps\.jsonl line 2 is damaged: "):
        run.records()


def test_a_full_disk_while_appending_is_one_line(run, monkeypatch):
    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run.append(record(0))
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match=r"steps\.jsonl cannot be written: No space left on device"):
        run.append(record(1))
    with pytest.raises(RunError, match=r"step_000001\.jsonl cannot be written: No space left"):
        run.save_rollouts(1, [])


# --- rewinding -------------------------------------------------------------------------------------


def test_rewinding_forgets_what_came_after(run, group):
    for step in range(4):
        run.append(record(step))
        run.save_rollouts(step, [group])
    run.rewind(2)
    assert [one.step for one in run.records()] == [0, 1, 2]
    names = sorted(file.name for file in (run.path / "rollouts").iterdir())
    assert names == [f"step_00000{step}.jsonl" for step in range(3)]


def test_rewinding_keeps_what_came_before_bit_for_bit(run):
    for step in range(3):
        run.append(record(step, scores=[0.1 + 0.2]))
    before = run.steps_file.read_bytes().splitlines(keepends=True)
    run.rewind(1)
    assert run.steps_file.read_bytes() == b"".join(before[:2])


def test_rewinding_drops_a_line_that_was_cut(run):
    run.append(record(0))
    with run.steps_file.open("a") as file:
        file.write('{"schema_version":1,"st')
    run.rewind(0)
    run.append(record(1))
    assert [one.step for one in run.records()] == [0, 1]


def test_rewinding_to_before_the_start_leaves_an_empty_run(run):
    run.append(record(0))
    run.rewind(-1)
    assert run.records() == []


def test_rewinding_clears_half_written_checkpoints(run):
    half = run.path / "checkpoints" / ".partial-step_000002"
    half.mkdir(parents=True)
    (half / "weights").write_text("half")
    run.rewind(0)
    assert not half.exists()


def test_rewinding_clears_the_runs_half_written_files_and_leaves_those_of_others(run):
    own = [
        run.path / "rollouts" / ".partial-step_000002.jsonl-1a2b",
        run.path / "scores" / ".partial-step_000002.json.gz-1a2b",
        run.path / "images" / ".partial-step_000002.zip-1a2b",
        run.path / ".partial-steps.jsonl-1a2b",
    ]
    other = run.path / ".partial-report.html-1a2b"
    for path in [*own, other]:
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    run.rewind(0)
    assert [path.name for path in own if path.exists()] == []
    assert other.exists()


# --- rollouts --------------------------------------------------------------------------------------


def lines(run: RunDirectory, step: int) -> list[dict]:
    file = run.path / "rollouts" / f"step_{step:06d}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


def test_a_trajectory_is_one_line_with_all_that_is_needed_to_replay_it(run, group):
    run.save_rollouts(5, [group])
    for line, trajectory in zip(lines(run, 5), group.trajectories, strict=True):
        assert (line["env"], line["seed"], line["luck"], line["step"]) == (
            "FrozenLake",
            3,
            trajectory.luck,
            5,
        )
        assert line["messages"] == [
            {"role": message.role, "content": message.content} for message in group.prompt.messages
        ]
        assert line["reward"] == trajectory.reward
        assert line["solved"] is trajectory.solved
        assert line["stop"] == trajectory.stop.value
        assert len(line["turns"]) == len(trajectory.turns)


def test_a_turn_keeps_the_sampled_ids_and_what_came_of_them(run, group):
    run.save_rollouts(5, [group])
    written, turn = lines(run, 5)[0]["turns"][0], group.trajectories[0].turns[0]
    assert written["prompt_ids"] == turn.prompt_ids_T.tolist()
    assert written["ids"] == turn.completion.ids_T.tolist()
    assert written["logprobs"] == turn.completion.logprobs_T.tolist()
    assert (written["text"], written["finish"]) == (turn.completion.text, "stop")
    assert (written["reasoning"], written["reasoning_span"]) == (
        turn.reply.reasoning,
        list(turn.reasoning_span),
    )
    assert (written["actions"], written["executed"]) == (["Up", "Fly"], ["Up"])
    assert (written["effective"], written["unknown"]) == (list(turn.effective), ["Fly"])
    assert (written["valid"], written["problem"]) == (False, "")
    assert (written["observation"], written["reward"]) == (turn.observation, turn.reward)
    assert written["penalty"] == turn.penalty


def test_rollouts_of_a_step_are_replaced_whole(run, group):
    run.save_rollouts(1, [group, group])
    run.save_rollouts(1, [group])
    assert len(lines(run, 1)) == 2
    assert os.listdir(run.path / "rollouts") == ["step_000001.jsonl"]


def test_a_rollouts_folder_that_was_removed_is_made_again(run, group):
    Path(run.path / "rollouts").rmdir()
    run.save_rollouts(1, [group])
    assert len(lines(run, 1)) == 2
