"""A run in two processes: the results of one, one run directory, and an end that can be gone on from.

Whole runs take a minute or two together, so `make test-peers` has them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from command_line import (
    Process,
    assert_refused,
    records,
    run_program,
    run_python,
    settings,
    start_program,
    wait_for,
)
from ragen2.config import RunConfig, dump_config
from ragen2.runs.store import RunDirectory

Start = Callable[..., Process]

RUN = settings(
    "steps=3",
    "rollout.prompts=3",
    "rollout.group_size=4",
    "evaluation.tasks=4",
    "evaluation.probe_prompts=2",
    "evaluation.probe_traces=2",
    "checkpoints.every=1",
    "checkpoints.keep=3",
)
"""Three groups for two processes; every step has four minibatches."""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    done = run_program(folder, "train", *RUN, "--out", "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in two."""
    folder = tmp_path_factory.mktemp("together")
    done = run_program(folder, "train", *RUN, "--processes", "2", "--out", "run")
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "run"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start ``ragen2 ARGS``; what still runs after the test is ended, its processes with it."""
    started: list[Process] = []

    def launch(*args: str | Path) -> Process:
        started.append(start_program(tmp_path, *args))
        return started[-1]

    yield launch
    for process in started:
        process.kill()
        process.communicate()


def weights(run: Path, step: int) -> dict[str, Any]:
    return load_file(run / f"checkpoints/step_{step:06d}/model.safetensors")


def assert_near(run: Path, wanted: Path) -> None:
    """Weights to 1e-5 after each of three steps that moved them further than that."""
    for step in (1, 2, 3):
        ours, theirs = weights(run, step), weights(wanted, step)
        assert ours.keys() == theirs.keys()
        assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-5
    first, last = weights(wanted, 1), weights(wanted, 3)
    assert max(float((first[name] - last[name]).abs().max()) for name in first) > 1e-4


def assert_whole_batch(run: Path, wanted: Path) -> None:
    """The filter, the metrics and the rollouts of two processes are over all groups, in their order."""
    for ours, theirs in zip(records(run), records(wanted), strict=True):
        assert (ours["kept"], ours["seeds"]) == (theirs["kept"], theirs["seeds"])
        assert ours["metrics"].keys() == theirs["metrics"].keys()
        for name in ("collapse/first_turn/mi_estimate", "update/loss", "update/tokens"):
            if name in theirs["metrics"]:
                assert ours["metrics"][name] == pytest.approx(theirs["metrics"][name], abs=1e-4)
    for step in (1, 2, 3):
        assert played(run, step) == played(wanted, step)
        assert len(played(run, step)) == 12


def played(run: Path, step: int) -> list[tuple[int, int]]:
    lines = (run / f"rollouts/step_{step:06d}.jsonl").read_text().splitlines()
    return [(one["seed"], one["luck"]) for one in map(json.loads, lines)]


@pytest.mark.peers
def test_two_processes_train_as_one_does(together: Path, alone: Path) -> None:
    assert_near(together, alone)
    assert_whole_batch(together, alone)


@pytest.mark.peers
def test_only_the_first_process_writes(together: Path, alone: Path) -> None:
    names = sorted(str(path.relative_to(together)) for path in together.rglob("*"))
    assert names == sorted(str(path.relative_to(alone)) for path in alone.rglob("*"))
    assert len((together / "sessions.jsonl").read_text().splitlines()) == 1


@pytest.mark.peers
def test_cut_weights_under_torchrun_train_as_one_process_does(tmp_path: Path, alone: Path) -> None:
    cut = settings('learner.parallel="fsdp2"')
    done = run_python(tmp_path, *TORCHRUN, "-m", "ragen2", "train", *RUN, *cut, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert_near(tmp_path / "run", alone)
    assert_whole_batch(tmp_path / "run", alone)


def process_of(job: Process, rank: int) -> int:
    """The process id of one of the job's processes."""
    for child in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
        if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
            return int(child)
    raise AssertionError(f"the job has no process {rank}")


@pytest.mark.peers
@pytest.mark.parametrize("rank", [0, 1])
def test_a_job_ends_with_a_process_that_is_killed_and_goes_on_exactly(
    rank: int, start: Start, tmp_path: Path, together: Path
) -> None:
    job = start("train", *RUN, "--processes", "2", "--out", "run")
    saved = tmp_path / "run/checkpoints/step_000001"
    wait_for(saved.is_dir, job)
    os.kill(process_of(job, rank), signal.SIGKILL)
    _, told = job.communicate(timeout=60)
    assert job.returncode == 2
    cure = "go on with: ragen2 train --resume run --processes 2"
    lines = told.splitlines()
    if rank:
        gone = f"ragen2: another process of this job of 2 is gone; {cure}"
        assert lines == [gone, "ragen2: process 1 of 2 was ended by SIGKILL"]
    else:
        assert lines == [f"ragen2: process 0 of 2 was ended by SIGKILL; {cure}"]
    done = run_program(tmp_path, "train", "--resume", "run", "--processes", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert records(tmp_path / "run") == records(together)
    last = "checkpoints/step_000003"
    for file in (together / last).iterdir():
        assert (tmp_path / "run" / last / file.name).read_bytes() == file.read_bytes(), file.name


def is_running(process: int) -> bool:
    """Whether it is there, and not as a dead one that nobody has buried."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.peers
def test_a_job_ends_with_a_launcher_that_is_killed(
    start: Start, tmp_path: Path, together: Path
) -> None:
    job = start("train", *RUN, "--processes", "2", "--out", "run")
    wait_for((tmp_path / "run/checkpoints/step_000001").is_dir, job)
    processes = [process_of(job, rank) for rank in (0, 1)]
    assert all(map(is_running, processes))
    job.kill()
    _, told = job.communicate(timeout=60)  # until nobody has its end of the pipe any more
    assert told == "ragen2: the program that started this job is gone, so it ends\n"
    # A process closes its pipe a moment before it is gone.
    ended = time.monotonic() + 60
    while any(map(is_running, processes)) and time.monotonic() < ended:
        time.sleep(0.01)
    assert not any(map(is_running, processes))
    assert len(records(tmp_path / "run")) < len(records(together))
    done = run_program(tmp_path, "train", "--resume", "run", "--processes", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert records(tmp_path / "run") == records(together)


@pytest.mark.peers
def test_an_interrupt_of_the_job_saves_and_one_process_can_go_on(
    start: Start, tmp_path: Path, alone: Path
) -> None:
    job = start("train", *RUN, "--processes", "2", "--out", "run")
    wait_for((tmp_path / "run/steps.jsonl").is_file, job)
    job.send_signal(signal.SIGINT)
    said, told = job.communicate(timeout=60)
    assert (job.returncode, told) == (130, "")
    assert "go on with: ragen2 train --resume run" in said
    done = run_program(tmp_path, "train", "--resume", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert_near(tmp_path / "run", alone)


def test_mistakes_are_told_once_and_before_any_process_starts(tmp_path: Path) -> None:
    done = run_program(tmp_path, "train", "--processes", "2", *settings("steps=0"))
    assert_refused(done, tmp_path, "steps must be greater than or equal to 1, got 0")
    done = run_program(tmp_path, "train", "--processes", "2", "--seeds", "2")
    assert_refused(done, tmp_path, "--processes and torchrun train one run; leave the others out")


def test_the_commands_of_the_page_are_taken(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs/integrations/torchrun.md"
    commands = re.findall(r"^\$ (.*)$", page.read_text(), re.MULTILINE)
    assert len(commands) == 3
    run = RunDirectory.create(tmp_path / "runs/two", dump_config(RunConfig()))
    for command in commands:
        program, *words = shlex.split(command)
        if program == "torchrun":
            words = words[words.index("ragen2") + 1 :]
            assert "--nproc-per-node" in command
        if "--resume" not in words:
            words[words.index("--out") + 1] += "-new"
        done = run_program(run.path.parents[1], *words, "--dry-run")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("# FrozenLake, ")


@pytest.mark.slow
def test_a_mistake_that_all_processes_meet_is_told_once(tmp_path: Path) -> None:
    cut = settings('learner.parallel="fsdp2"', "model.lora_rank=2")
    done = run_program(tmp_path, "train", "--processes", "3", *RUN, *cut, "--out", "run")
    assert_refused(
        done,
        tmp_path,
        'learner.parallel = "fsdp2" trains all weights; with model.lora_rank use "ddp", adapters '
        "are small",
    )
