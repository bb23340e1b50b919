"""Two processes (gloo, DDP) train as one does: rewards are gathered, groups may lie across them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ddp_job
import jobs
import pytest
import torch
from safetensors.torch import load_file

from ragen2.runs.store import RunDirectory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("ddp")
    for name in ddp_job.LOSS_TYPES:
        ddp_job.train(folder / "one" / name, name)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *torchrun, ddp_job.__file__, str(folder / "two")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "one", folder / "two"


@pytest.mark.parametrize("loss_type", ddp_job.LOSS_TYPES)
def test_the_weights_are_those_of_one_process(pair, loss_type):
    one, two = (load_file(side / loss_type / "trained" / "model.safetensors") for side in pair)
    before = load_file(jobs.EMBEDDED / "model.safetensors")
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    assert max(float((one[name] - before[name]).abs().max()) for name in one) > 1e-3


@pytest.mark.parametrize("loss_type", ddp_job.LOSS_TYPES)
def test_the_records_are_those_of_one_process(pair, loss_type):
    one, two = (RunDirectory.open(side / loss_type / "out" / "ragen2").records() for side in pair)
    assert [record.step for record in one] == [record.step for record in two] == [1, 2]
    for first, second in zip(one, two, strict=True):
        assert first.kept == second.kept
        assert first.seeds == second.seeds
        assert first.metrics == pytest.approx(second.metrics, rel=1e-3, abs=1e-5)
    assert not all(kept for record in one for kept in record.kept)
    assert any(kept for record in one for kept in record.kept)
    assert torch.isfinite(torch.tensor([record.metrics["update/loss"] for record in one])).all()


def test_an_early_stop_ends_all_processes_after_the_same_step(pair):
    """The job itself asserts where each process ended."""
    _, two = pair
    found = RunDirectory.open(two / ddp_job.STOPPED / "out" / "ragen2").records()
    assert [record.step for record in found] == [1, 2]
    assert "the run ends here: the filter kept no prompt for 1 steps in a row" in found[0].note
