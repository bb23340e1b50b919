"""What `ragen2 train --engine verl` says and refuses around a job; the job itself is a stand-in."""

from __future__ import annotations

import os
import pickle
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from typer.testing import CliRunner

from ragen2.cli.app import app
from ragen2.config import dump_config, load_run
from ragen2.errors import ConfigError, DependencyError, EnvError, RunError
from ragen2.integrations import versions
from ragen2.integrations.verl import job
from ragen2.integrations.verl.publish import publish, unpickled_risks
from ragen2.integrations.verl.records import VerlLedger
from ragen2.integrations.verl.translate import verl_checkpoint
from ragen2.runs.lock import LockedError, one_writer
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory, read_sessions


@pytest.fixture(autouse=True)
def without_verl(monkeypatch):
    monkeypatch.setattr(versions, "require_tested", lambda _: None)


def ragen2(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def a_run(path: Path, *, steps: int, checkpoint: int) -> None:
    """A run directory with one checkpoint of verl's and ours."""
    config = load_run(None, [f"steps={steps}"])
    RunDirectory.create(path, dump_config(config))
    log = VerlLedger(config, path)
    model = verl_checkpoint(path, checkpoint) / "actor" / "huggingface"
    model.mkdir(parents=True)
    save_file({"weight": np.zeros(1, dtype=np.float32)}, model / "model.safetensors")
    (model / "config.json").write_text("{}")
    torch.save({"seen": 4}, verl_checkpoint(path, checkpoint) / "data.pt")
    log.state = log.state.model_copy(update={"step": checkpoint})
    for step in range(checkpoint + 1):
        log.run.append(StepRecord(step=step, metrics={}))
    publish(config, log, checkpoint)


def test_a_resumed_job_goes_on_from_the_checkpoint(tmp_path, monkeypatch):
    a_run(tmp_path / "run", steps=9, checkpoint=4)
    started = []

    def train(described, settings):
        started.append((described.resume_step, settings))
        RunDirectory.open(described.run).append(StepRecord(step=9, metrics={}))

    monkeypatch.setattr(job, "run_job", train)
    told = ragen2("train", "--resume", str(tmp_path / "run"), "--engine", "verl")
    ((step, settings),) = started
    assert step == 4
    assert settings["trainer.resume_from_path"] == str(verl_checkpoint(tmp_path / "run", 4))
    assert "trained to step 9" in told


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.usefixtures("trusts_nothing")
def test_code_in_a_checkpoint_of_verl_needs_consent(tmp_path, monkeypatch):
    run, started = tmp_path / "run", []
    a_run(run, steps=9, checkpoint=4)
    state = {"rng": np.random.default_rng(0).bit_generator.state, "numpy": np.random.get_state()}
    torch.save(state, verl_checkpoint(run, 4) / "actor" / "extra_state_world_size_1_rank_0.pt")

    def train(described, settings):
        del settings
        started.append(described.resume_step)
        RunDirectory.open(described.run).append(StepRecord(step=5, metrics={}, note="enough"))

    monkeypatch.setattr(job, "run_job", train)
    words = ("train", "--resume", str(run), "--engine", "verl")
    ragen2(*words)
    torch.save([Evil()], verl_checkpoint(run, 4) / "actor" / "optim_world_size_1_rank_0.pt")
    name = f"{os.system.__module__}.system"
    with pytest.raises(ConfigError, match=f"run {run} would run {name} from {run}/.*; look at it"):
        ragen2(*words)
    assert started == [4]
    ragen2(*words, "--trust-plugins")
    assert started == [4, 4]
    pickled = pickle.dumps([Evil()])
    (verl_checkpoint(run, 4) / "actor" / "optim_world_size_1_rank_0.pt").write_bytes(pickled)
    with pytest.raises(RunError, match="is no checkpoint of verl"):
        ragen2(*words)


def test_no_part_of_a_checkpoint_of_verl_is_overlooked(tmp_path):
    there, elsewhere = verl_checkpoint(tmp_path, 4), tmp_path / "elsewhere"
    elsewhere.mkdir()
    there.mkdir(parents=True)
    torch.save([Evil()], elsewhere / "model_world_size_1_rank_0.pt")
    (there / "actor").symlink_to(elsewhere)
    with pytest.raises(RunError, match=f"{there}/actor is a link, behind which .* remove"):
        unpickled_risks(tmp_path, 4)
    (there / "actor").unlink()
    os.mkfifo(there / "extra.pt")
    with pytest.raises(RunError, match=r"extra\.pt is no checkpoint of verl .*a named pipe"):
        unpickled_risks(tmp_path, 4)


def test_consent_to_the_code_in_one_run_is_none_to_that_in_another(tmp_path):
    digests = set()
    for name in ("mine", "theirs"):
        there = verl_checkpoint(tmp_path / name, 4)
        there.mkdir(parents=True)
        torch.save([Evil()], there / "data.pt")
        digests |= {risk.digest for risk in unpickled_risks(tmp_path / name, 4)}
    assert len(digests) == 2


@pytest.mark.parametrize("family", ["env", "algorithm"])
def test_a_dry_run_imports_no_plugin(tmp_path, family):
    (tmp_path / "theirs.py").write_text("raise AssertionError('imported')")
    text = f'plugins = ["theirs.py"]\n[{family}]\nkind = "theirs"\nkl_coefficient = "much"\n'
    (tmp_path / "run.toml").write_text(text)
    words = ("train", str(tmp_path / "run.toml"), "--engine", "verl", "--dry-run")
    if family == "env":
        first = "# not checked, because a dry run imports no plug-in: env theirs\n"
        assert ragen2(*words).startswith(first)
    else:
        with pytest.raises(ConfigError, match="algorithm theirs is of a plug-in, which a dry run"):
            ragen2(*words)


def test_a_run_that_stopped_by_itself_says_why_and_how_to_go_on(tmp_path, monkeypatch):
    def train(described, settings):
        del settings
        record = StepRecord(step=3, metrics={}, note="the run ends here: enough")
        RunDirectory.open(described.run).append(record)

    monkeypatch.setattr(job, "run_job", train)
    run = tmp_path / "run"
    told = ragen2("train", "--set", "steps=9", "--engine", "verl", "--out", str(run))
    assert "stopped after step 3: the run ends here: enough" in told
    assert f"ragen2 train --resume {run} --engine verl --nodes 1 --gpus-per-node 1" in told
    assert (run / "report.html").exists()


def test_a_finished_run_is_not_started_again(tmp_path, monkeypatch):
    a_run(tmp_path / "run", steps=4, checkpoint=4)
    monkeypatch.setattr(job, "run_job", lambda *_: pytest.fail("nothing is left to do"))
    told = ragen2("train", "--resume", str(tmp_path / "run"), "--engine", "verl")
    assert "is finished: 4 of 4 steps are done" in told


def test_a_run_that_another_process_writes_is_left_alone(tmp_path, monkeypatch):
    a_run(tmp_path / "run", steps=9, checkpoint=4)
    monkeypatch.setattr(job, "run_job", lambda *_: pytest.fail("two writers"))
    words = ("train", "--resume", str(tmp_path / "run"), "--engine", "verl")
    with one_writer(tmp_path / "run"):
        with pytest.raises(LockedError, match="is written by another part"):
            ragen2(*words)
        ragen2(*words, "--dry-run")


def test_an_edited_run_file_is_refused_and_a_change_is_asked_for(tmp_path, monkeypatch):
    a_run(tmp_path / "run", steps=9, checkpoint=4)
    file = tmp_path / "run" / "run.toml"
    words = ("train", "--resume", str(tmp_path / "run"), "--engine", "verl")
    found = []
    monkeypatch.setattr(job, "run_job", lambda *_: found.append(load_run(file).steps))
    whole = file.read_text()
    file.write_text("")
    with pytest.raises(ConfigError, match=r"steps was 9, is 200\n"):
        ragen2(*words)
    file.write_text(whole)
    ragen2(*words, "--set", "steps=12")
    assert found == [12]
    assert read_sessions(tmp_path / "run")[-1].changed == ["steps is 12 (was 9)"]


def test_a_run_of_our_own_loop_is_not_taken_over(tmp_path):
    a_run(tmp_path / "run", steps=9, checkpoint=4)
    (verl_checkpoint(tmp_path / "run", 4) / "data.pt").unlink()
    with pytest.raises(RunError, match="none that verl can go on from"):
        ragen2("train", "--resume", str(tmp_path / "run"), "--engine", "verl")


def test_a_checkpoint_that_other_processes_wrote_is_refused_before_the_job_starts(tmp_path):
    a_run(tmp_path / "run", steps=9, checkpoint=4)
    told = verl_checkpoint(tmp_path / "run", 4) / "actor" / "fsdp_config.json"
    told.write_text('{"FSDP_version": 2, "world_size": 16}')
    words = ("train", "--resume", str(tmp_path / "run"), "--engine", "verl", "--nodes", "2")
    with pytest.raises(ConfigError, match="step 4 is cut for 16 processes, got 8; give --nodes"):
        ragen2(*words, "--gpus-per-node", "4")


def test_what_the_run_file_decides_cannot_be_set_beside_it(tmp_path):
    name = "actor_rollout_ref.actor.optim.lr"
    with pytest.raises(ConfigError, match=f"{name} is decided by the run file"):
        ragen2("train", "--engine", "verl", "--engine-set", f"{name}=1.0", "--dry-run")


class Wrapped(Exception):
    """As Ray's errors: what happened is in ``cause``."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self.cause = cause


def test_an_error_of_ours_comes_out_of_a_job_as_it_was():
    mistake = EnvError("the task does not fit")
    assert job.plain_error(Wrapped("ray::one", Wrapped("ray::two", mistake))) is mistake


def test_any_other_error_is_told_in_one_line():
    found = job.plain_error(Wrapped("a\nlong\ntrace", ValueError("head_dim is 16\nand more")))
    assert isinstance(found, RunError)
    assert "verl's job failed with ValueError: head_dim is 16;" in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("found", "told"),
    [(None, "verl is not installed; pip install 'ragen2[verl]'"), ("0.10.0", "found 0.10.0; pip")],
)
def test_another_verl_than_the_tested_one_is_refused_in_one_line(monkeypatch, found, told):
    monkeypatch.undo()

    def version(name):
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(versions, "version", version)
    with pytest.raises(DependencyError) as caught:
        ragen2("train", "--engine", "verl", "--dry-run")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
