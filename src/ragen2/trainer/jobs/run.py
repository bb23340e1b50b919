"""Train many runs side by side: each is a process of its own, and they share nothing but the machine.

``run_jobs`` takes any list of jobs, so a sweep needs no more than their settings and folders:

    jobs = [Job(f"seed{s}", config.model_copy(update={"seed": s}), out / f"seed{s}") for s in range(4)]
    statuses = run_jobs(jobs, at_once=2)

Called again with the same jobs, it goes on where it was left: finished runs are kept, others resumed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ragen2.config import RunConfig, dump_config, load_run, unchecked_kinds
from ragen2.errors import ConfigError, RunError
from ragen2.rollout.pool import usable_cores
from ragen2.runs.checkpoints import list_checkpoints
from ragen2.runs.files import write_atomically
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RecordTail, RunDirectory
from ragen2.trainer.jobs.logged_process import LoggedProcess, end_all, lock_log
from ragen2.trainer.resume import as_tables, differences, lacks_records
from ragen2.trainer.state import read_state

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_POLLS = 0.2
SECONDS_TO_END = 30.0
"""For jobs to save and end, when this program itself ends."""
STEPS_AVERAGED = 10
"""Newest steps whose mean time is the time of a step."""
EXIT_INTERRUPTED = (129, 130, 143)
"""After SIGHUP, Ctrl-C and SIGTERM, with the run saved."""
PROGRAM = (sys.executable, "-m", "ragen2")

State = Literal["queued", "running", "done", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class Job:
    """One run to train, in a folder that is its own."""

    name: str
    config: RunConfig
    folder: Path

    @property
    def log(self) -> Path:
        """The output of its process; beside the run directory, which the run itself creates."""
        return self.folder.parent / "logs" / f"{self.folder.name}.log"

    @property
    def run_file(self) -> Path:
        """The settings that its process is started with."""
        return self.log.with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How a job is doing. ``stopped`` is one that was interrupted, saved or not yet begun."""

    job: Job
    state: State = "queued"
    records: tuple[StepRecord, ...] = ()
    exit_code: int | None = None
    """What its process ended with; below zero: the signal that ended it."""
    problem: str = ""
    """The last line of a failed job's log."""

    @property
    def step(self) -> int:
        """Steps done."""
        return self.records[-1].step if self.records else 0

    @property
    def seconds_per_step(self) -> float | None:
        """Mean of the newest steps; None before the first."""
        times = [record.seconds["step"] for record in self.records if "step" in record.seconds]
        newest = times[-STEPS_AVERAGED:]
        return sum(newest) / len(newest) if newest else None

    @property
    def seconds_left(self) -> float | None:
        """Until the last step at that pace; None when nothing is known or nothing goes on."""
        if self.state != "running" or self.seconds_per_step is None:
            return None
        return (self.job.config.steps - self.step) * self.seconds_per_step

    def newest(self, metric: str) -> float | None:
        """The value at the last step that has one."""
        return next(
            (one.metrics[metric] for one in reversed(self.records) if metric in one.metrics), None
        )


def run_jobs(
    jobs: Sequence[Job],
    *,
    at_once: int,
    variables: Mapping[str, str] | None = None,
    on_change: Callable[[Sequence[JobStatus]], None] = lambda statuses: None,
    stop_asked: Callable[[], bool] = lambda: False,
    on_start: Callable[[Job], None] = lambda job: None,
    program: Sequence[str] = PROGRAM,
) -> list[JobStatus]:
    """Train ``jobs``, at most ``at_once`` at a time, until all have ended; one that fails stops no other.

    Args:
        jobs: what to train; ``refuse_unfit`` says beforehand whether their folders allow it.
        at_once: processes at a time.
        variables: environment variables that the processes get beside this one's.
        on_change: called with the status of all jobs whenever one changed.
        stop_asked: once it is true, running jobs finish their step and save, and none is started.
        on_start: called with each job just before its process is started, once nobody else can start it.
        program: what starts ``ragen2``.
    """
    given = process_variables(min(at_once, max(1, len(jobs)))) | dict(variables or {})
    runs = [_JobRun(job, program, given) for job in jobs]
    try:
        while True:
            if stop_asked():
                for run in runs:
                    run.stop()
            for run in runs:
                if sum(other.state == "running" for other in runs) < at_once:
                    run.start(on_start)
            changed = [run.poll() for run in runs]
            if any(changed):
                on_change([run.status() for run in runs])
            if not any(run.state in {"queued", "running"} for run in runs):
                return [run.status() for run in runs]
            time.sleep(SECONDS_BETWEEN_POLLS)
    finally:
        end_all([run.process for run in runs if run.process is not None], SECONDS_TO_END)


def refuse_unfit(jobs: Sequence[Job]) -> None:
    """Raise when two jobs have one folder, or a folder holds something else than this run."""
    folders = [job.folder for job in jobs]
    for job in jobs:
        if folders.count(job.folder) > 1:
            raise ConfigError(f"two jobs have the run directory {job.folder}; name one of them")
        if not (job.folder / "run.toml").is_file():
            RunDirectory.refuse_taken(job.folder)
            continue
        # Compared, not run: no plug-in is imported for that.
        there = load_run(job.folder / "run.toml", plugins="skip")
        unknown = set(unchecked_kinds(job.config))
        before, now = (
            {name: table for name, table in as_tables(one).items() if name not in unknown}
            for one in (there, job.config)
        )
        for name, old, new in differences(before, now):
            raise ConfigError(
                f"{job.folder} was trained with other settings: {name} is {old} there and {new} now; "
                "choose another --out"
            )


def is_finished(job: Job) -> bool:
    """Whether its last checkpoint is of the last step, or of one at which the run ended by itself."""
    saved = list_checkpoints(job.folder)
    if not saved:
        return False
    try:
        state = read_state(saved[-1])
    except RunError:
        return False  # damaged: resuming reports that, and takes the checkpoint before
    if state.records and lacks_records(RunDirectory(job.folder), state):
        return False  # and so here
    is_alarmed = job.config.warning.response == "stop" and state.watch.warning.is_raised
    return state.step >= job.config.steps or bool(state.stopped) or is_alarmed


def process_variables(at_once: int) -> dict[str, str]:
    """What each of so many processes gets: its share of the cores, unless the user has decided that."""
    shares = {"OMP_NUM_THREADS": str(max(1, usable_cores() // at_once))}
    decided = {name: os.environ[name] for name in shares if os.environ.get(name)}
    return {**shares, **decided, "PYTHONUNBUFFERED": "1"}


class _JobRun:
    """A job and, once it is started, its process."""

    def __init__(self, job: Job, program: Sequence[str], variables: Mapping[str, str]) -> None:
        self.job = job
        self.program = program
        self.variables = variables
        self.state: State = "done" if is_finished(job) else "queued"
        self.problem = ""
        self.process: LoggedProcess | None = None
        self.tail = RecordTail(RunDirectory(job.folder).steps_file)
        self.records: tuple[StepRecord, ...] = ()
        self._seen: State | None = None
        self._told = ""

    def start(self, on_start: Callable[[Job], None]) -> None:
        """Begin or resume it, if it waits for that and nobody has finished it meanwhile."""
        if self.state != "queued":
            return
        try:
            self.job.log.parent.mkdir(parents=True, exist_ok=True)
            with lock_log(self.job.log) as log:
                if is_finished(self.job):
                    self.state = "done"
                    return
                write_atomically(self.job.run_file, dump_config(self.job.config))
                on_start(self.job)
                self.process = LoggedProcess(self._command(), log, self.variables)
                self.state = "running"
        except (OSError, RunError) as error:
            self.state, self.problem = "failed", str(error)

    def stop(self) -> None:
        """Let it finish its step and save, or never begin; asked once: a second time ends it at once."""
        if self.state == "queued":
            self.state = "stopped"
        elif self.process is not None and not self.process.is_asked:
            self.process.ask_to_end()

    def poll(self) -> bool:
        """Whether there are new records or a new state."""
        code = self.process.exit_code if self.process is not None else None
        is_new = self._read()  # after the exit code: what a process wrote last is read too
        if self.state == "running" and self.process is not None and code is not None:
            self.state = _end_state(code, is_asked=self.process.is_asked)
            self.problem = self._reason(self.process, code) if self.state == "failed" else ""
        is_new |= self.state != self._seen
        self._seen = self.state
        return is_new

    def status(self) -> JobStatus:
        code = self.process.exit_code if self.process is not None else None
        return JobStatus(self.job, self.state, self.records, code, self.problem)

    def _command(self) -> list[str]:
        """The command that begins it, or resumes it where it has begun."""
        job = self.job
        has_begun = (job.folder / "run.toml").is_file()
        where = ["--resume", job.folder] if has_begun else [job.run_file, "--out", job.folder]
        return [*self.program, "train", *map(str, where)]

    def _read(self) -> bool:
        """Take in new records; those of a damaged file stay as they were, and the file is named."""
        before = self.records
        try:
            self.records = self.tail.records()
        except RunError as error:
            if str(error) != self._told:
                logger.warning("%s", error)
            self._told = str(error)
        return len(self.records) != len(before) or self.records[-1:] != before[-1:]

    def _reason(self, process: LoggedProcess, code: int) -> str:
        line = process.last_line()
        return f"ended by {signal.Signals(-code).name}; {line}" if code < 0 else line


def _end_state(code: int, *, is_asked: bool) -> State:
    if code == 0:
        return "done"
    is_interrupt = code in EXIT_INTERRUPTED or (is_asked and code == -signal.SIGTERM)
    return "stopped" if is_interrupt else "failed"
