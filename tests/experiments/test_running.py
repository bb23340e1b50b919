"""Running a plan: models first, finished runs kept, failed ones tried again, nothing lost by a kill."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from made_runs import STAND_IN

from ragen2.errors import ConfigError
from ragen2.experiments import running as running_module
from ragen2.experiments.plan import Model, Plan, make_plan, write_run_files
from ragen2.experiments.running import (
    RunCallbacks,
    drop_weights,
    make_models,
    note_start,
    read_started,
    refuse_changed,
    run_plan,
)
from ragen2.trainer.jobs import run as jobs_module
from ragen2.trainer.jobs.logged_process import LoggedProcess, is_locked
from ragen2.trainer.jobs.run import Job, is_finished
from ragen2.trainer.warmstart import WarmstartConfig

GOOD, CRASH, WAITING = 0, 1, 5
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (jobs_module, running_module):
        monkeypatch.setattr(module, "SECONDS_BETWEEN_POLLS", 0.01)
    monkeypatch.delenv("MEET", raising=False)


def plan_of(folder: Path, *seeds: int, values: str = "0.5, 0.9", steps: int = 3) -> Plan:
    """A plan of two cells with these seeds; the trainee's behaviour is in the seed."""
    (folder / "mine.toml").write_text(
        f"""
        run = "frozen_lake_grpo"
        settings = {{ steps = {steps} }}
        [[block]]
        seeds = {list(seeds)}
        [block.grid]
        "filter.mass" = [{values}]
        """
    )
    return make_plan(str(folder / "mine.toml"), scale=None, out=folder / "out")


def starts(plan: Plan) -> Counter[str]:
    """How often each run's process really began, as the processes themselves noted it."""
    lines = (plan.out / "runs" / "noted").read_text().splitlines()
    return Counter(line.split()[1] for line in lines if line.startswith("start"))


def run(plan: Plan, **more) -> list[str]:
    return [status.state for status in run_plan(plan, at_once=2, program=STAND_IN, **more)]


def wait_until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


# --- runs ------------------------------------------------------------------------------------------


def test_every_run_is_trained_once_and_every_start_is_on_the_list(tmp_path):
    plan = plan_of(tmp_path, GOOD)
    assert run(plan) == ["done", "done"]
    names = [job.folder.name for job in plan.jobs]
    assert starts(plan) == dict.fromkeys(names, 1)
    found = read_started(plan.out)
    assert sorted(one.name for one in found) == sorted(names)
    assert {(one.kind, one.experiment) for one in found} == {("run", "mine")}


def test_finished_runs_are_not_started_again(tmp_path):
    plan = plan_of(tmp_path, GOOD)
    run(plan)
    assert run(plan) == ["done", "done"]
    assert set(starts(plan).values()) == {1}
    assert len(read_started(plan.out)) == 2


def test_a_grid_that_grew_runs_only_what_is_new(tmp_path):
    run(plan_of(tmp_path, GOOD))
    more = plan_of(tmp_path, GOOD, values="0.5, 0.7, 0.9")
    assert run(more) == ["done"] * 3
    assert set(starts(more).values()) == {1}


def test_a_failed_run_is_tried_once_more_and_stops_no_other(tmp_path):
    plan = plan_of(tmp_path, GOOD, CRASH, values="0.5")
    told: list[str] = []
    statuses = run_plan(plan, at_once=1, program=STAND_IN, callbacks=RunCallbacks(tell=told.append))
    assert [status.state for status in statuses] == ["done", "failed"]
    assert statuses[1].problem == "RuntimeError: it broke"
    good, bad = (job.folder.name for job in plan.jobs)
    assert starts(plan) == {good: 1, bad: 2}
    assert Counter(one.name for one in read_started(plan.out)) == {good: 1, bad: 2}
    assert told == ["trying 1 failed runs again"]


def test_asked_to_stop_it_starts_nothing_more(tmp_path):
    plan = plan_of(tmp_path, GOOD)
    assert run(plan, callbacks=RunCallbacks(stop_asked=lambda: True)) == ["stopped", "stopped"]
    assert read_started(plan.out) == []
    assert run(plan) == ["done", "done"]


def test_changes_are_told_with_all_runs(tmp_path):
    plan = plan_of(tmp_path, GOOD)
    seen: list[list[str]] = []
    run(plan, callbacks=RunCallbacks(on_change=lambda now: seen.append([one.state for one in now])))
    assert {len(one) for one in seen} == {2}
    assert seen[-1] == ["done", "done"]


def test_a_folder_that_was_killed_before_it_was_a_run_is_begun_anew(tmp_path):
    plan = plan_of(tmp_path, GOOD, values="0.5")
    folder = plan.jobs[0].folder
    (folder / "rollouts").mkdir(parents=True)
    (folder / ".partial-run.toml").write_text("see")
    assert run(plan) == ["done"]


def test_a_folder_with_something_else_in_it_is_not_touched(tmp_path):
    plan = plan_of(tmp_path, GOOD, values="0.5")
    folder = plan.jobs[0].folder
    folder.mkdir(parents=True)
    (folder / "diary.txt").write_text("mine")
    assert run(plan) == ["failed"]
    assert (folder / "diary.txt").read_text() == "mine"


def test_another_run_in_a_folder_is_refused_but_moved_models_are_not(tmp_path):
    plan = plan_of(tmp_path, GOOD, values="0.5")
    run(plan)
    refuse_changed(plan)
    file = plan.jobs[0].folder / "run.toml"
    text = file.read_text()
    file.write_text(text.replace('path = "ragen2-tiny"', 'path = "/moved/models/tiny"'))
    refuse_changed(plan)
    file.write_text(text.replace("mass = 0.5", "mass = 0.6"))
    with pytest.raises(
        ConfigError, match=r"filter.mass is 0.6 there and 0.5 now.*or remove that run"
    ):
        refuse_changed(plan)


# --- room ------------------------------------------------------------------------------------------


def with_weights(plan: Plan) -> list[Path]:
    """A file of weights in the last checkpoint of every run."""
    files = [
        next((job.folder / "checkpoints").iterdir()) / "model.safetensors" for job in plan.jobs
    ]
    for file in files:
        file.write_text("large")
    return files


def test_weights_of_finished_runs_are_dropped_where_that_is_asked_for(tmp_path):
    plan = plan_of(tmp_path, GOOD)
    run(plan)
    files = with_weights(plan)
    run(plan)
    assert all(file.exists() for file in files)
    assert run(plan, keep_weights=False) == ["done", "done"]
    assert not any(file.exists() for file in files)
    assert run(plan) == ["done", "done"], "a run without weights is still finished"
    assert set(starts(plan).values()) == {1}


def test_a_run_that_is_not_finished_keeps_its_weights(tmp_path):
    plan = plan_of(tmp_path, GOOD, values="0.5")
    run(plan)
    (file,) = with_weights(plan)
    longer = plan.jobs[0].config.model_copy(update={"steps": 9})
    drop_weights(Job("longer", longer, plan.jobs[0].folder))
    assert file.exists()


# --- killed ----------------------------------------------------------------------------------------

DRIVER = """
import sys
from pathlib import Path
from ragen2.experiments.plan import make_plan
from ragen2.experiments.running import run_plan
plan = make_plan(sys.argv[1], scale=None, out=Path(sys.argv[2]))
run_plan(plan, at_once=2, program=sys.argv[3:])
"""


def start_driver(folder: Path) -> subprocess.Popen[bytes]:
    """The experiment as a program of its own, so that it can be killed as one."""
    words = [
        sys.executable,
        "-c",
        DRIVER,
        str(folder / "mine.toml"),
        str(folder / "out"),
        *STAND_IN,
    ]
    return subprocess.Popen(words)


def pids(plan: Plan) -> dict[str, int]:
    lines = (plan.out / "runs" / "noted").read_text().splitlines()
    return {line.split()[1]: int(line.split()[2]) for line in lines if line.startswith("start")}


def is_waiting(plan: Plan, count: int) -> bool:
    """Whether so many runs have done two steps and go no further by themselves."""
    files = [job.folder / "steps.jsonl" for job in plan.jobs if job.config.seed == WAITING]
    return (
        sum(file.is_file() and len(file.read_text().splitlines()) >= 2 for file in files) == count
    )


def test_killed_and_started_again_it_waits_for_runs_that_outlived_it(tmp_path):
    plan = plan_of(tmp_path, GOOD, WAITING, values="0.5")
    driver = start_driver(tmp_path)
    first = plan.jobs[0]
    wait_until(lambda: is_waiting(plan, 1) and is_finished(first) and not is_locked(first.log))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    told: list[str] = []

    def go_on(line: str) -> None:
        told.append(line)
        (plan.out / "runs" / "go").touch()

    assert run(plan, callbacks=RunCallbacks(tell=go_on)) == ["done", "done"]
    assert told == ["waiting for 1 runs that an earlier start still trains"]
    assert set(starts(plan).values()) == {1}, "a run was started although it went on"
    assert len(read_started(plan.out)) == 2


def test_killed_with_its_runs_and_started_again_it_repeats_no_finished_run(tmp_path):
    plan = plan_of(tmp_path, GOOD, WAITING, values="0.5")
    driver = start_driver(tmp_path)
    finished, killed = (job.folder.name for job in plan.jobs)
    wait_until(lambda: is_waiting(plan, 1) and (plan.jobs[0].folder / "checkpoints").is_dir())
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    os.kill(pids(plan)[killed], signal.SIGKILL)
    (plan.out / "runs" / "go").touch()
    assert run(plan) == ["done", "done"]
    assert starts(plan) == {finished: 1, killed: 2}
    assert Counter(one.name for one in read_started(plan.out)) == {finished: 1, killed: 2}


# --- models ----------------------------------------------------------------------------------------


def with_models(plan: Plan, *models: Model) -> Plan:
    """The plan's cells, each waiting for the last of these models."""
    from dataclasses import replace

    cells = tuple(replace(cell, model=models[-1].name) for cell in plan.cells)
    return Plan(plan.name, plan.grid, plan.scale, plan.out, cells, models)


def model(plan: Plan, name: str, seed: int = GOOD, needs: str = "") -> Model:
    return Model(name, plan.out / "models" / name, WarmstartConfig(seed=seed), needs=needs)


def made(plan: Plan) -> list[str]:
    return (plan.out / "models" / "noted").read_text().splitlines()


def test_models_are_made_once_in_order_and_before_the_runs(tmp_path):
    bare = plan_of(tmp_path, GOOD, values="0.5")
    pulled = Model("base", bare.out / "models" / "base", None, "base")
    plan = with_models(bare, pulled, model(bare, "warm", needs="base"))
    assert run(plan) == ["done"]
    assert run(plan) == ["done"]
    assert made(plan) == ["pull base", "warmstart warm"]
    kinds = [(one.kind, one.name) for one in read_started(plan.out)]
    assert kinds == [("model", "base"), ("model", "warm"), ("run", plan.jobs[0].folder.name)]


def test_runs_without_their_model_fail_with_its_reason_and_others_go_on(tmp_path):
    bare = plan_of(tmp_path, GOOD, values="0.5")
    plan = with_models(bare, model(bare, "bad", CRASH), model(bare, "later", needs="bad"))
    (status,) = run_plan(plan, at_once=2, program=STAND_IN)
    assert status.state == "failed"
    assert status.problem.startswith("bad is missing: ragen2: no such model (see ")
    assert not (plan.out / "runs" / "noted").exists()


def test_a_model_that_another_process_makes_is_waited_for(tmp_path):
    bare = plan_of(tmp_path, GOOD, values="0.5")
    plan = with_models(bare, model(bare, "slow", WAITING))
    driver = threading.Thread(target=run, args=(plan,), daemon=True)
    driver.start()
    wait_until((plan.out / "models" / "noted").is_file)
    told: list[str] = []

    def go_on(line: str) -> None:
        told.append(line)
        (plan.out / "models" / "go").touch()

    assert run(plan, callbacks=RunCallbacks(tell=go_on)) == ["done"]
    driver.join(PATIENCE)
    assert told[0] == "slow: a process of an earlier start still makes it; waiting"
    assert made(plan) == ["warmstart slow"]


def test_two_starts_that_reach_a_model_together_make_it_once_and_neither_ends(
    tmp_path, monkeypatch
):
    bare = plan_of(tmp_path, GOOD, values="0.5")
    plan = with_models(bare, model(bare, "warm"))
    write_run_files(plan)
    both = threading.Barrier(2)
    start = running_module.LoggedProcess

    def start_together(*words) -> LoggedProcess:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1.0)
        return start(*words)

    monkeypatch.setattr(running_module, "LoggedProcess", start_together)
    make = functools.partial(make_models, plan.models, at_once=1, variables={}, program=STAND_IN)
    with ThreadPoolExecutor(2) as pool:
        assert [one.result(PATIENCE) for one in [pool.submit(make), pool.submit(make)]] == [{}, {}]
    assert made(plan) == ["warmstart warm"]


LATE = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[-1])
while folder.name == "slow" and not (folder.parent / "go").exists():
    time.sleep(0.01)
folder.mkdir()
sys.exit("it exists already")
"""


def test_a_model_that_another_made_meanwhile_is_there_however_our_process_ended(tmp_path):
    bare = plan_of(tmp_path, GOOD, values="0.5")
    wanted = [model(bare, "warm"), model(bare, "slow")]
    told: list[str] = []

    def go_on(line: str) -> None:
        told.append(line)
        if not line.startswith("making"):
            (bare.out / "models" / "go").touch()

    program = [sys.executable, "-c", LATE]
    assert make_models(wanted, at_once=2, variables={}, program=program, tell=go_on) == {}
    assert told[:3] == ["making warm", "making slow", "made warm"]


def test_a_model_of_finished_runs_is_not_made(tmp_path):
    bare = plan_of(tmp_path, GOOD, values="0.5")
    run(bare)
    plan = with_models(bare, model(bare, "base"), model(bare, "warm", CRASH, needs="base"))
    assert run(plan) == ["done"]
    assert not (plan.out / "models" / "noted").exists()


def test_a_finished_run_stays_finished_where_its_model_can_no_longer_be_made(tmp_path):
    run(plan_of(tmp_path, GOOD, values="0.5"))
    more = plan_of(tmp_path, GOOD, values="0.5, 0.7")
    assert run(with_models(more, model(more, "bad", CRASH))) == ["done", "failed"]


def test_asked_to_stop_while_models_are_made_it_leaves_the_runs_stopped(tmp_path):
    bare = plan_of(tmp_path, GOOD, values="0.5")
    plan = with_models(bare, model(bare, "base"), model(bare, "warm", needs="base"))
    told: list[str] = []
    callbacks = RunCallbacks(tell=told.append, stop_asked=lambda: "making base" in told)
    (status,) = run_plan(plan, at_once=2, program=STAND_IN, callbacks=callbacks)
    assert (status.state, status.problem) == ("stopped", "")
    assert made(plan) == ["warmstart base"]


# --- the list of starts ----------------------------------------------------------------------------


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path):
    note_start(tmp_path, "run", "a", "mine")
    with (tmp_path / "started.jsonl").open("a") as file:
        file.write('{"kind": "ru')
    assert [one.name for one in read_started(tmp_path)] == ["a"]
    assert read_started(tmp_path / "nowhere") == []


def test_a_start_after_a_line_that_a_crash_cut_short_is_on_the_list(tmp_path):
    note_start(tmp_path, "run", "a", "mine")
    with (tmp_path / "started.jsonl").open("a") as file:
        file.write('{"kind": "ru')
    note_start(tmp_path, "run", "b", "mine")
    note_start(tmp_path, "run", "c", "mine")
    assert [one.name for one in read_started(tmp_path)] == ["a", "b", "c"]
    assert len((tmp_path / "started.jsonl").read_text().splitlines()) == 4
