"""Run an experiment: models first, then every run that is not finished; failed ones are tried once more.

Everything that decides what is left to do is read from the disk, so a command that was killed at any moment
goes on where it was: finished runs are kept, others resumed. Processes that outlived it are waited for.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ragen2.config import load_run
from ragen2.errors import ConfigError, RunError
from ragen2.experiments.plan import Model, Plan, write_run_files
from ragen2.reading import read_bytes
from ragen2.runs.checkpoints import SETTINGS, STATE, list_checkpoints
from ragen2.runs.files import MANIFEST, PARTIAL, append_line
from ragen2.runs.lock import LOCK, LockedError
from ragen2.trainer.jobs.logged_process import (
    LoggedProcess,
    end_all,
    is_locked,
    lock_log,
)
from ragen2.trainer.jobs.run import (
    PROGRAM,
    Job,
    JobStatus,
    is_finished,
    process_variables,
    refuse_unfit,
    run_jobs,
)

STARTED = "started.jsonl"
SECONDS_TO_END = 10.0
Tell = Callable[[str], None]
KEPT = (STATE, SETTINGS, MANIFEST)
"""What says that a run is finished, with which settings, and what its last checkpoint held."""
TRIES = 2
"""Starts of a run that fails, in one command."""
SECONDS_BETWEEN_POLLS = 0.2


class Started(BaseModel):
    """One start of one process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["run", "model"]
    name: str
    experiment: str
    at: str
    """Local time with its zone, ISO 8601."""


def note_start(out: Path, kind: Literal["run", "model"], name: str, experiment: str) -> None:
    """Add a line; it is on disk before the process begins, so that none can be left out."""
    one = Started(
        kind=kind, name=name, experiment=experiment, at=time.strftime("%Y-%m-%dT%H:%M:%S%z")
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        append_line(out / STARTED, one.model_dump_json())
    except OSError as error:
        raise RunError(f"{out / STARTED} cannot be written: {error.strerror}") from error


def read_started(out: Path) -> list[Started]:
    """All starts; a line that a crash cut short is left out."""
    if not (out / STARTED).is_file():
        return []
    found = []
    for line in read_bytes(out / STARTED).splitlines():
        try:
            found.append(Started.model_validate_json(line))
        except ValidationError:
            continue
    return found


def make_models(
    models: Sequence[Model],
    *,
    at_once: int,
    variables: Mapping[str, str],
    on_start: Callable[[Model], None] = lambda model: None,
    tell: Tell = lambda line: None,
    stop_asked: Callable[[], bool] = lambda: False,
    program: Sequence[str] = PROGRAM,
) -> dict[str, str]:
    """Make what is not there yet; why each one that cannot be had is missing.

    A model appears whole or not at all, so a folder that is there is done. A process of an earlier start
    that still makes one is waited for. Once ``stop_asked`` is true none is begun; those are not missing for
    a reason, so nothing is said of them.
    """
    given = process_variables(min(at_once, max(1, len(models)))) | dict(variables)
    state = _Making()
    by_name = {model.name: model for model in models}
    try:
        while True:
            _reap(state, by_name, tell)
            left = [m for m in models if not m.folder.is_dir() and m.name not in state.problems]
            if not left or (stop_asked() and not state.going):
                break
            for model in left:
                is_free = len(state.going) < at_once and not stop_asked()
                if is_free and _can_begin(state, model, by_name):
                    _begin(state, model, [*program, *model.words], given, on_start, tell)
            time.sleep(SECONDS_BETWEEN_POLLS)
    finally:
        end_all(list(state.going.values()), SECONDS_TO_END)
    return state.problems


def drop_weights(job: Job) -> None:
    """Remove the weights of a finished run; one that is not finished needs them and keeps them."""
    if not is_finished(job):
        return
    for folder in list_checkpoints(job.folder):
        for path in folder.iterdir():
            if path.is_file() and path.name not in KEPT:
                path.unlink()


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """What is called while a plan runs: on every change of status, with every message, to ask for a stop."""

    on_change: Callable[[Sequence[JobStatus]], None] = lambda statuses: None
    tell: Callable[[str], None] = lambda line: None
    stop_asked: Callable[[], bool] = lambda: False


def run_plan(
    plan: Plan,
    *,
    at_once: int,
    variables: Mapping[str, str] | None = None,
    callbacks: RunCallbacks | None = None,
    keep_weights: bool = True,
    program: Sequence[str] = PROGRAM,
) -> list[JobStatus]:
    """Train every run of the plan; how each ended, in the plan's order.

    Without ``keep_weights`` those of a run are removed as soon as it is finished.
    """
    calls = callbacks or RunCallbacks()
    given = dict(variables or {})
    write_run_files(plan)
    missing = make_models(
        _needed_models(plan),
        at_once=at_once,
        variables=given,
        on_start=lambda model: note_start(plan.out, "model", model.name, plan.name),
        tell=calls.tell,
        stop_asked=calls.stop_asked,
        program=program,
    )
    lost = _lost_jobs(plan, missing)
    todo = [job for job in plan.jobs if job.folder not in lost]
    remover = _WeightRemover() if not keep_weights else None
    found = _Trials(plan, at_once, given, calls, program, remover).run(todo)
    return [lost.get(job.folder) or found[job.folder] for job in plan.jobs]


def refuse_changed(plan: Plan) -> None:
    """Raise when a folder of the plan holds another run; where the models lie may differ."""
    same = []
    for job in plan.jobs:
        file = job.folder / "run.toml"
        if not file.is_file():
            continue
        there = load_run(file, plugins="skip")
        config = job.config.model_copy(
            update={"model": job.config.model.model_copy(update={"path": there.model.path})}
        )
        same.append(Job(job.name, config, job.folder))
    try:
        refuse_unfit(same)
    except ConfigError as error:
        raise ConfigError(f"{error}, or remove that run") from error


@dataclass(slots=True)
class _Making:
    """Models under way and how those that ended did."""

    going: dict[str, LoggedProcess] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    waits_for: set[str] = field(default_factory=set)
    """Models that a process of an earlier start still makes."""


def _can_begin(state: _Making, model: Model, models: Mapping[str, Model]) -> bool:
    """Whether it is not under way and has what it is made from; where that cannot be had, nor can it."""
    if model.name in state.going:
        return False
    if model.needs in state.problems:
        state.problems[model.name] = f"{model.needs} is missing: {state.problems[model.needs]}"
        return False
    return not model.needs or models[model.needs].folder.is_dir()


def _begin(
    state: _Making,
    model: Model,
    words: list[str],
    variables: Mapping[str, str],
    on_start: Callable[[Model], None],
    tell: Tell,
) -> None:
    """Start its process, unless a process of another start makes it or has just made it."""
    model.log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with lock_log(model.log) as log:
            if model.folder.is_dir():
                return
            on_start(model)
            tell(f"making {model.name}")
            state.going[model.name] = LoggedProcess(words, log, variables)
    except LockedError:
        if model.name not in state.waits_for:
            tell(f"{model.name}: a process of an earlier start still makes it; waiting")
        state.waits_for.add(model.name)


def _reap(state: _Making, models: Mapping[str, Model], tell: Tell) -> None:
    for name, child in list(state.going.items()):
        code = child.exit_code
        if code is None:
            continue
        del state.going[name]
        if models[name].folder.is_dir():  # whatever it ended with: another may have been faster
            tell(f"made {name}")
        else:
            state.problems[name] = f"{child.last_line()} (see {child.log})"
            tell(f"{name} failed: {state.problems[name]}")


def _needed_models(plan: Plan) -> list[Model]:
    """Those that unfinished runs begin with, and what these are made from, in the plan's order."""
    by_name = {model.name: model for model in plan.models}
    unfinished = {job.folder for job in plan.jobs if not is_finished(job)}
    names = {cell.model for cell in plan.cells if cell.job.folder in unfinished}
    while more := {by_name[name].needs for name in names if name} - names:
        names |= more
    return [model for model in plan.models if model.name in names]


def _lost_jobs(plan: Plan, missing: Mapping[str, str]) -> dict[Path, JobStatus]:
    """Runs that cannot be trained because their model is missing; a finished one needs none."""
    return {
        cell.job.folder: JobStatus(cell.job, "failed", problem=missing[cell.model])
        for cell in plan.cells
        if cell.model in missing and not is_finished(cell.job)
    }


@dataclass(slots=True)
class _Trials:
    """Trains jobs, again where they failed, and waits for those that another process still trains."""

    plan: Plan
    at_once: int
    variables: Mapping[str, str]
    calls: RunCallbacks
    program: Sequence[str]
    remover: _WeightRemover | None

    def run(self, jobs: Sequence[Job]) -> dict[Path, JobStatus]:
        found = {job.folder: JobStatus(job) for job in jobs}
        left = list(jobs)
        for attempt in range(TRIES):
            if attempt:
                self.calls.tell(f"trying {len(left)} failed runs again")
            self._try(left, found)
            left = [job for job in left if found[job.folder].state == "failed"]
            if not left or self.calls.stop_asked():
                break
        return found

    def _try(self, jobs: Sequence[Job], found: dict[Path, JobStatus]) -> None:
        """Train each once. One that another process trains, or has just taken, is waited for first."""
        held = [job for job in jobs if is_locked(job.log)]
        rest = [job for job in jobs if job not in held]
        found |= self._train(rest, found)
        held += [job for job in rest if found[job.folder].state == "failed" and is_locked(job.log)]
        while held and not self.calls.stop_asked():
            self._wait_for(held)
            found |= self._train(held, found)
            held = [
                job for job in held if found[job.folder].state == "failed" and is_locked(job.log)
            ]

    def _train(
        self, jobs: Sequence[Job], others: Mapping[Path, JobStatus]
    ) -> dict[Path, JobStatus]:
        if not jobs:
            return {}
        for job in jobs:
            _remove_empty_run(job.folder)
        mine = {job.folder for job in jobs}
        rest = [status for folder, status in others.items() if folder not in mine]
        statuses = run_jobs(
            jobs,
            at_once=self.at_once,
            variables=self.variables,
            on_change=lambda now: self._tell([*now, *rest]),
            stop_asked=self.calls.stop_asked,
            on_start=lambda job: note_start(self.plan.out, "run", job.folder.name, self.plan.name),
            program=self.program,
        )
        return {status.job.folder: status for status in statuses}

    def _tell(self, statuses: Sequence[JobStatus]) -> None:
        if self.remover is not None:
            self.remover.remove(statuses)
        self.calls.on_change(statuses)

    def _wait_for(self, jobs: Sequence[Job]) -> None:
        self.calls.tell(f"waiting for {len(jobs)} runs that an earlier start still trains")
        while any(is_locked(job.log) for job in jobs) and not self.calls.stop_asked():
            time.sleep(SECONDS_BETWEEN_POLLS)


class _WeightRemover:
    """Drops the weights of each run once, when it is first seen finished."""

    def __init__(self) -> None:
        self._done: set[Path] = set()

    def remove(self, statuses: Sequence[JobStatus]) -> None:
        for status in statuses:
            if status.state == "done" and status.job.folder not in self._done:
                self._done.add(status.job.folder)
                drop_weights(status.job)


def _remove_empty_run(folder: Path) -> None:
    """Remove a run directory that was killed before its settings were written: it holds nothing."""
    if not folder.is_dir() or (folder / "run.toml").exists():
        return
    inside = [path for path in folder.rglob("*") if path.is_file()]
    if all(path.name == LOCK or path.name.startswith(PARTIAL) for path in inside):
        shutil.rmtree(folder)
