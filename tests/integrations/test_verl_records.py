"""The run directory of a verl job, written without verl: records, checkpoints, where to go on from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ragen2.backends.agent import open_policy
from ragen2.config import RunConfig, dump_config, load_run
from ragen2.diagnostics.metrics.reward import filter_metrics
from ragen2.errors import RunError
from ragen2.integrations.verl.publish import newest_step, publish
from ragen2.integrations.verl.records import VerlLedger
from ragen2.integrations.verl.translate import verl_checkpoint
from ragen2.runs.checkpoints import checkpoint_folder
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.trainer.batch import play_batch
from ragen2.trainer.state import OfferedTasks, read_state
from ragen2.trainer.step_ledger import task_number
from ragen2.types import Group

SMALL = ("seed=11", "rollout.prompts=3", "rollout.group_size=3", "rollout.max_tokens=32")


@pytest.fixture(scope="module")
def policy():
    return open_policy("ragen2-tiny", "cpu")


@pytest.fixture(scope="module")
def batch(policy):
    return play_batch(load_run(None, SMALL), policy, 1)


def start(tmp_path: Path, *overrides: str) -> tuple[RunConfig, VerlLedger]:
    config = load_run(None, (*SMALL, *overrides))
    RunDirectory.create(tmp_path / "run", dump_config(config))
    return config, VerlLedger(config, tmp_path / "run")


def test_a_step_is_measured_and_filtered_as_in_our_own_loop(tmp_path, policy, batch):
    _, ledger = start(tmp_path)
    selection = ledger.rolled_out(1, batch.groups, policy)
    assert selection.kept_P.tolist() == batch.selection.kept_P.tolist()
    ledger.updated(2, 77)
    ledger.finish({"actor/loss": 0.5, "critic/vf_loss": 0.25}, {"gen": 1.5})
    (record,) = ledger.run.records()
    assert record.kept == batch.selection.kept_P.tolist()
    assert record.seeds == [group.prompt.seed for group in batch.groups]
    expected = filter_metrics(batch.selection, batch.groups) | {
        "filter/rounds": 1.0,
        "filter/coverage": batch.selection.kept_ratio,
    }
    assert {name: record.metrics[name] for name in expected} == expected
    assert record.metrics["update/steps"] == 2.0
    assert record.metrics["update/tokens"] == 77.0
    assert record.metrics["update/loss"] == 0.5
    assert record.metrics["update/value_loss"] == 0.25
    assert record.metrics["collapse/first_turn/mi_estimate"] > 0.0
    assert record.seconds["gen"] == 1.5
    tasks = tuple(task_number(group.prompt) for group in batch.groups)
    kept = tuple(batch.selection.kept_P.tolist())
    assert ledger.state.recent == (OfferedTasks(tasks=tasks, kept=kept),)


@pytest.fixture(scope="module")
def dead(batch):
    """Groups in which nobody earns anything: without variance the filter keeps nothing."""
    lost = [[one for one in group.trajectories if not one.solved] for group in batch.groups]
    return [Group(rows[0].prompt, (rows[0], rows[0])) for rows in lost if rows]


def test_a_step_that_keeps_nothing_says_so_and_ends_the_run_when_asked(tmp_path, policy, dead):
    _, ledger = start(tmp_path, "stops.empty_steps=2", "diagnostics=[]")
    for step in (1, 2):
        selection = ledger.rolled_out(step, dead, policy)
        assert not selection.kept_P.any()
        ledger.finish({}, {})
    first, second = ledger.run.records()
    assert first.note.startswith("no update: ")
    assert first.metrics["update/steps"] == 0.0
    assert "the run ends here: the filter kept no prompt for 2 steps in a row" in second.note
    assert ledger.state.stopped


def test_the_evaluation_before_training_counts_for_no_stop(tmp_path, policy, dead):
    _, ledger = start(tmp_path, "stops.success_evaluations=1", "diagnostics=[]")
    ledger.open(0)
    assert ledger.evaluated(dead, [], policy)["eval/success"] == 0.0
    ledger.close()
    assert not ledger.state.stopped
    ledger.rolled_out(1, dead, policy)
    ledger.evaluated(dead, [], policy)
    ledger.finish({}, {})
    assert "held-out success" in ledger.state.stopped


def save(config: RunConfig, ledger: VerlLedger, step: int) -> None:
    """What verl leaves of a checkpoint, as far as we look at it; then ours."""
    model = verl_checkpoint(ledger.run.path, step) / "actor" / "huggingface"
    model.mkdir(parents=True)
    save_file({"weight": np.full(3, step, dtype=np.float32)}, model / "model.safetensors")
    (model / "config.json").write_text('{"dtype": "bfloat16", "model_type": "llama"}')
    (verl_checkpoint(ledger.run.path, step) / "data.pt").write_bytes(b"")
    ledger.state = ledger.state.model_copy(update={"step": step})
    publish(config, ledger, step)


def test_a_checkpoint_says_what_its_weights_are_and_holds_them_once(tmp_path):
    config, ledger = start(tmp_path)
    save(config, ledger, 2)
    folder = checkpoint_folder(ledger.run.path, 2)
    told = json.loads((folder / "config.json").read_text())
    assert told == {"dtype": "float32", "model_type": "llama"}
    theirs = verl_checkpoint(ledger.run.path, 2) / "actor" / "huggingface"
    assert os.path.samefile(folder / "model.safetensors", theirs / "model.safetensors")
    assert '"bfloat16"' in (theirs / "config.json").read_text()
    assert read_state(folder).step == 2
    assert "seed 11" in (folder / "README.md").read_text()


def test_a_run_goes_on_from_what_both_have_whole(tmp_path):
    config, ledger = start(tmp_path, "checkpoints.keep=9")
    assert newest_step(ledger.run.path) == 0
    for step in range(9):
        ledger.run.append(StepRecord(step=step, metrics={}))
    for step in (2, 4, 6, 8):
        save(config, ledger, step)
    assert newest_step(ledger.run.path) == 8
    lines = ledger.run.steps_file.read_text().splitlines(keepends=True)
    ledger.run.steps_file.write_text("".join(lines[:8]))  # to step 7
    assert newest_step(ledger.run.path) == 6
    (verl_checkpoint(ledger.run.path, 6) / "data.pt").unlink()  # cut short while saving
    assert newest_step(ledger.run.path) == 4
    (checkpoint_folder(ledger.run.path, 4) / "trainer_state.json").write_text("{}")
    assert newest_step(ledger.run.path) == 2


def test_going_on_forgets_what_came_later_and_why_it_stopped(tmp_path, policy, batch):
    config, ledger = start(tmp_path, "diagnostics=[]")
    for step in (1, 2, 3):
        ledger.rolled_out(step, batch.groups, policy)
        ledger.finish({}, {})
        if step == 2:
            ledger.state = ledger.state.model_copy(update={"stopped": "enough"})
            save(config, ledger, 2)
    again = VerlLedger(config, ledger.run.path)
    again.resume(2)
    assert (again.state.step, again.state.stopped) == (2, "")
    assert [record.step for record in again.run.records()] == [1, 2]
    assert len(again.state.recent) == 2
    with pytest.raises(RunError, match="cannot be read"):
        again.resume(3)
