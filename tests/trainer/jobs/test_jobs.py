"""Many runs side by side: who runs when, what is told about them, and how they end."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from ragen2.config import RunConfig, dump_config, load_run
from ragen2.errors import ConfigError, RunError
from ragen2.runs.record import StepRecord
from ragen2.trainer.jobs import logged_process as process_module
from ragen2.trainer.jobs import run as jobs_module
from ragen2.trainer.jobs.logged_process import LoggedProcess, end_all, is_locked, lock_log
from ragen2.trainer.jobs.run import (
    Job,
    JobStatus,
    is_finished,
    process_variables,
    refuse_unfit,
    run_jobs,
)
from ragen2.trainer.state import AlarmState, TrainerState

TRAINEE = (sys.executable, str(Path(__file__).with_name("trainee.py")))
PATIENCE = 60.0
GOOD, CRASH, MISTAKE, KILLED, DEAF, WAITING = range(6)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "SECONDS_BETWEEN_POLLS", 0.01)
    monkeypatch.delenv("MEET", raising=False)


def job(out: Path, name: str = "a", seed: int = GOOD, steps: int = 3) -> Job:
    return Job(name, RunConfig(seed=seed, steps=steps), out / name)


def train(jobs: Sequence[Job], at_once: int = 4, **more) -> list[JobStatus]:
    return run_jobs(jobs, at_once=at_once, program=TRAINEE, **more)


def noted(out: Path) -> list[list[str]]:
    """``start NAME PID`` and ``end NAME PID``, in order."""
    return [line.split() for line in (out / "noted").read_text().splitlines()]


def states(statuses: Sequence[JobStatus]) -> list[str]:
    return [status.state for status in statuses]


def steps(status: JobStatus) -> list[int]:
    return [record.step for record in status.records]


# --- running ---------------------------------------------------------------------------------------


def test_every_job_is_trained_in_its_folder_and_has_its_own_log(tmp_path: Path) -> None:
    todo = [job(tmp_path, "a"), job(tmp_path, "b", steps=2)]
    found = train(todo)
    assert states(found) == ["done", "done"]
    assert [status.exit_code for status in found] == [0, 0]
    assert [steps(status) for status in found] == [[1, 2, 3], [1, 2]]
    assert [status.job for status in found] == todo
    lines = (tmp_path / "logs" / "a.log").read_text().splitlines()
    assert lines[0].startswith("$ ")
    assert lines[0].endswith(f"train {tmp_path}/logs/a.toml --out {tmp_path}/a")
    assert lines[1].startswith("finished")
    assert load_run(todo[1].run_file) == todo[1].config


@pytest.mark.parametrize("at_once", [1, 2])
def test_at_most_so_many_run_at_a_time_and_as_many_as_may(tmp_path: Path, at_once: int) -> None:
    todo = [job(tmp_path, name) for name in "abcd"]
    train(todo, at_once, variables={"MEET": str(at_once)})
    going, most = 0, 0
    for what, *_ in noted(tmp_path):
        going += 1 if what == "start" else -1
        most = max(most, going)
    assert most == at_once
    started = [name for what, name, _ in noted(tmp_path) if what == "start"]
    assert (started if at_once == 1 else sorted(started)) == list("abcd")


def test_jobs_share_nothing_with_this_process_but_its_environment(tmp_path: Path) -> None:
    train([job(tmp_path)])
    ((_, _, pid), _) = noted(tmp_path)
    assert int(pid) != os.getpid()


@pytest.mark.parametrize(
    ("seed", "code", "problem"),
    [
        (CRASH, 1, "RuntimeError: it broke"),
        (MISTAKE, 2, "ragen2: a mistake"),
        (KILLED, -9, "ended by SIGKILL; no output"),
    ],
)
def test_a_failed_job_shows_its_last_line_and_stops_no_other(
    tmp_path: Path, seed: int, code: int, problem: str
) -> None:
    found = train([job(tmp_path, "bad", seed), job(tmp_path, "good")], at_once=1)
    assert states(found) == ["failed", "done"]
    assert (found[0].exit_code, found[0].problem) == (code, problem)
    assert found[1].problem == ""


def test_no_jobs_are_no_statuses() -> None:
    assert train([]) == []


def test_a_folder_that_cannot_be_written_is_a_failed_job(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = train([job(tmp_path / "file", "a"), job(tmp_path, "b")])
    assert states(found) == ["failed", "done"]
    assert "Not a directory" in found[0].problem


def test_changes_are_told_as_they_happen(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []

    def hear(statuses: Sequence[JobStatus]) -> None:
        told.append((statuses[0].state, statuses[0].step))
        if statuses[0].step == 2:
            (tmp_path / "go").touch()

    train([job(tmp_path, seed=WAITING)], on_change=hear)
    assert told[0] == ("running", 0)
    assert ("running", 2) in told
    assert told[-1] == ("done", 3)
    assert len(set(told)) == len(told)


# --- stopping and going on -------------------------------------------------------------------------


def stopped_at_two(out: Path, todo: Sequence[Job]) -> list[JobStatus]:
    """Ask to stop once the first job is at step 2; only one runs at a time."""
    seen: list[int] = []
    return train(
        todo,
        at_once=1,
        on_change=lambda statuses: seen.append(statuses[0].step),
        stop_asked=lambda: 2 in seen,
    )


def test_asked_to_stop_running_jobs_save_and_queued_ones_never_begin(tmp_path: Path) -> None:
    found = stopped_at_two(tmp_path, [job(tmp_path, "a", WAITING), job(tmp_path, "b")])
    assert states(found) == ["stopped", "stopped"]
    assert [status.exit_code for status in found] == [130, None]
    assert steps(found[0]) == [1, 2]
    assert (tmp_path / "a" / "checkpoints" / "step_000002").is_dir()
    assert not (tmp_path / "b").exists()


def test_the_same_jobs_again_go_on_and_keep_what_is_finished(tmp_path: Path) -> None:
    todo = [job(tmp_path, "a", WAITING), job(tmp_path, "b")]
    stopped_at_two(tmp_path, todo)
    (tmp_path / "go").touch()
    again = train(todo)
    assert states(again) == ["done", "done"]
    assert steps(again[0]) == [1, 2, 3]
    log = (tmp_path / "logs" / "a.log").read_text().splitlines()
    assert log[1] == "stopped after step 2"
    assert log[2].endswith(f"train --resume {tmp_path}/a")
    before = noted(tmp_path)
    third = train(todo)
    assert states(third) == ["done", "done"]
    assert [status.exit_code for status in third] == [None, None]
    assert [steps(status) for status in third] == [[1, 2, 3], [1, 2, 3]]
    assert noted(tmp_path) == before


def test_an_error_here_ends_every_job_with_its_work_saved(tmp_path: Path) -> None:
    def break_down(statuses: Sequence[JobStatus]) -> None:
        if all(status.step == 2 for status in statuses):
            raise KeyboardInterrupt

    todo = [job(tmp_path, "a", WAITING), job(tmp_path, "b", WAITING)]
    with pytest.raises(KeyboardInterrupt):
        train(todo, on_change=break_down)
    assert [what for what, *_ in noted(tmp_path)] == ["start", "start", "end", "end"]
    assert (tmp_path / "b" / "checkpoints" / "step_000002").is_dir()


def test_a_job_that_does_not_listen_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(statuses: Sequence[JobStatus]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / "noted").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs_module, "SECONDS_TO_END", 0.3)
    with pytest.raises(KeyboardInterrupt):
        train([job(tmp_path, seed=DEAF)], on_change=break_down)
    pid = int(noted(tmp_path)[0][2])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_run_that_another_process_trains_is_left_alone(tmp_path: Path) -> None:
    todo = job(tmp_path, seed=WAITING)
    first: list[list[JobStatus]] = []
    other = threading.Thread(target=lambda: first.append(train([todo])))
    other.start()
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "a" / "steps.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (second,) = train([todo])
    assert second.state == "failed"
    assert second.problem == (
        f"another process still trains this run (it holds {todo.log}); wait for it or end it"
    )
    (tmp_path / "go").touch()
    other.join()
    assert states(first[0]) == ["done"]


def test_a_run_that_another_process_finishes_meanwhile_is_not_resumed(tmp_path: Path) -> None:
    first, second = job(tmp_path, "a", WAITING), job(tmp_path, "b")

    def finish_second(statuses: Sequence[JobStatus]) -> None:
        if statuses[0].step == 2 and not second.folder.exists():
            begun(second)
            saved(second, TrainerState(step=3))
            (tmp_path / "go").touch()

    found = train([first, second], at_once=1, on_change=finish_second)
    assert states(found) == ["done", "done"]
    assert {name for _, name, _ in noted(tmp_path)} == {"a"}


def test_a_ctrl_c_of_the_terminal_does_not_reach_the_jobs(tmp_path: Path) -> None:
    """It goes to the process group of the terminal; jobs hear of it once, from here."""
    groups: list[int] = []

    def look(statuses: Sequence[JobStatus]) -> None:
        if statuses[0].step == 2:
            groups.append(os.getpgid(int(noted(tmp_path)[0][2])))
            (tmp_path / "go").touch()

    train([job(tmp_path, seed=WAITING)], on_change=look)
    assert groups[0] != os.getpgid(0)


@pytest.mark.parametrize(
    ("code", "is_asked", "state"),
    [
        (0, False, "done"),
        (0, True, "done"),
        (130, False, "stopped"),
        (-signal.SIGTERM, True, "stopped"),
        (-signal.SIGTERM, False, "failed"),
        (1, True, "failed"),
        (2, False, "failed"),
    ],
)
def test_how_a_process_ended_says_how_its_job_did(code: int, is_asked: bool, state: str) -> None:
    assert jobs_module._end_state(code, is_asked=is_asked) == state


# --- folders ---------------------------------------------------------------------------------------


def begun(one: Job) -> Path:
    one.folder.mkdir(parents=True)
    (one.folder / "run.toml").write_text(dump_config(one.config))
    return one.folder


def test_a_run_of_the_same_settings_may_be_there(tmp_path: Path) -> None:
    begun(job(tmp_path, "a"))
    refuse_unfit([job(tmp_path, "a"), job(tmp_path, "b")])


def test_a_run_of_other_settings_is_refused_with_the_first_of_them(tmp_path: Path) -> None:
    folder = begun(job(tmp_path, "a", steps=3))
    line = f"{folder} was trained with other settings: steps is 3 there and 5 now; choose another"
    with pytest.raises(ConfigError, match=line):
        refuse_unfit([job(tmp_path, "a", steps=5)])


def test_other_settings_of_a_table_are_found(tmp_path: Path) -> None:
    begun(job(tmp_path, "a"))
    other = load_run(tmp_path / "a" / "run.toml", ["rollout.window=7"])
    with pytest.raises(ConfigError, match=r"rollout.window is 2 there and 7 now"):
        refuse_unfit([Job("a", other, tmp_path / "a")])


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "letter.txt").write_text("mine")
    with pytest.raises(RunError, match="exists and is not empty"):
        refuse_unfit([job(tmp_path, "a")])


def test_two_jobs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"two jobs have the run directory {tmp_path}/a"):
        refuse_unfit([job(tmp_path, "a", 1), job(tmp_path, "a", 2)])


def saved(one: Job, state: TrainerState) -> Job:
    folder = one.folder / "checkpoints" / f"step_{state.step:06d}"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(state.model_dump_json())
    return one


def alarmed(step: int) -> TrainerState:
    calm = AlarmState()
    raised = AlarmState.model_validate(
        calm.model_dump() | {"warning": {**_plain(calm.warning), "is_raised": True}}
    )
    return TrainerState(step=step, watch=raised)


def _plain(state: object) -> dict[str, object]:
    return {name: getattr(state, name) for name in state.__dataclass_fields__}


def test_a_run_is_finished_at_its_last_step_or_when_it_ended_itself(tmp_path: Path) -> None:
    assert not is_finished(job(tmp_path, "none"))
    assert not is_finished(saved(job(tmp_path, "two"), TrainerState(step=2)))
    assert is_finished(saved(job(tmp_path, "three"), TrainerState(step=3)))
    assert is_finished(saved(job(tmp_path, "self"), TrainerState(step=2, stopped="no variance")))


def test_an_alarm_finishes_a_run_only_if_it_stops_it(tmp_path: Path) -> None:
    warned = saved(job(tmp_path, "warned"), alarmed(2))
    assert warned.config.warning.response == "warn"
    assert not is_finished(warned)
    config = load_run(None, ["warning.response=stop"])
    assert is_finished(saved(Job("ended", config, tmp_path / "ended"), alarmed(2)))
    assert not is_finished(saved(Job("calm", config, tmp_path / "calm"), TrainerState(step=2)))


def test_a_damaged_state_is_not_finished(tmp_path: Path) -> None:
    one = saved(job(tmp_path), TrainerState(step=3))
    (one.folder / "checkpoints" / "step_000003" / "trainer_state.json").write_text("{")
    assert not is_finished(one)


# --- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cores", "at_once", "share"), [(8, 3, "2"), (2, 12, "1"), (16, 1, "16")])
def test_jobs_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, at_once: int, share: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert process_variables(at_once)["OMP_NUM_THREADS"] == share


def test_threads_that_the_user_chose_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert process_variables(4)["OMP_NUM_THREADS"] == "5"


def status_of(seconds: Sequence[float], **more) -> JobStatus:
    records = [StepRecord(step=0, metrics={"eval/success": 0.1}, seconds={"evaluate": 99.0})]
    records += [
        StepRecord(step=step, metrics={"rollout/success": step / 100}, seconds={"step": took})
        for step, took in enumerate(seconds, 1)
    ]
    return JobStatus(job(Path(), steps=40), "running", tuple(records), **more)


def test_the_pace_is_the_mean_of_the_last_ten_steps() -> None:
    status = status_of([100.0, *[1.0] * 5, *[3.0] * 5])
    assert status.step == 11
    assert status.seconds_per_step == pytest.approx(2.0)
    assert status.seconds_left == pytest.approx(29 * 2.0)
    assert status.newest("rollout/success") == 0.11
    assert status.newest("eval/success") == 0.1


def test_what_is_not_known_yet_is_none() -> None:
    status = status_of([])
    assert (status.step, status.seconds_per_step, status.seconds_left) == (0, None, None)
    assert status.newest("rollout/success") is None
    assert JobStatus(job(Path())).step == 0


def test_a_job_that_does_not_run_has_no_time_left() -> None:
    status = status_of([1.0, 1.0])
    assert status.seconds_left == 38.0
    assert JobStatus(status.job, "done", status.records).seconds_left is None


# --- starts are told -------------------------------------------------------------------------------


def test_a_start_is_told_before_the_process_begins(tmp_path: Path) -> None:
    told: list[tuple[str, bool]] = []
    train(
        [job(tmp_path, "a"), job(tmp_path, "b")],
        at_once=1,
        on_start=lambda one: told.append((one.name, one.folder.exists())),
    )
    assert told == [("a", False), ("b", False)]
    train([job(tmp_path, "a")], on_start=lambda one: told.append((one.name, True)))
    assert len(told) == 2, "a finished job is not started"


def test_a_start_that_another_process_was_before_is_not_told(tmp_path: Path) -> None:
    todo = job(tmp_path)
    todo.log.parent.mkdir()
    told: list[Job] = []
    with lock_log(todo.log):
        (status,) = train([todo], on_start=told.append)
    assert (status.state, told) == ("failed", [])


def test_a_look_at_a_log_does_not_keep_anybody_from_taking_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    with log.open("ab") as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        monkeypatch.setattr(
            process_module.time, "sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN)
        )
        with lock_log(log) as file:
            assert file.name == str(log)


def test_a_full_disk_is_no_reason_not_to_look_at_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, real = tmp_path / "log", Path.open
    log.touch()

    def full(self: Path, mode: str = "r", **more: str) -> IO[Any]:
        if mode != "rb":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, mode, **more)

    monkeypatch.setattr(Path, "open", full)
    assert not is_locked(log)


def test_a_damaged_record_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = saved(job(tmp_path), TrainerState(step=1))
    (one.folder / "steps.jsonl").write_text("nonsense\n")
    run = jobs_module._JobRun(one, (), {})
    for _ in range(3):
        run.poll()
    assert [record.message for record in caplog.records] == [
        f"{one.folder / 'steps.jsonl'} line 1 is damaged: 'nonsense'"
    ]


def test_a_log_is_held_as_long_as_its_process_runs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert not is_locked(log)
    with lock_log(log) as file:
        reader = LoggedProcess([sys.executable, "-c", "input()"], file, {})
    try:
        assert reader.popen.wait(PATIENCE) != 0  # it reads from nothing
        assert not is_locked(log)
        with lock_log(log) as file:
            sleeper = LoggedProcess([sys.executable, "-c", "import time; time.sleep(60)"], file, {})
        assert is_locked(log)
    finally:
        end_all([sleeper], 0.1)
    assert not is_locked(log)
