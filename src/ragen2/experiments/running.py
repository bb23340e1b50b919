"""Run an experiment: models first, then every run that is not finished; failed ones are tried once more.

Everything that decides what is left to do is read from the disk, so a command that was killed at any moment
goes on where it was: finished runs are kept, others resumed. Processes that outlived it are waited for.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ragen2.config import load_run
from ragen2.errors import ConfigError
from ragen2.experiments.models import make_models
from ragen2.experiments.plan import Model, Plan, write_run_files
from ragen2.experiments.started import note_start
from ragen2.runs.checkpoints import MANIFEST, STATE, list_checkpoints
from ragen2.runs.files import PARTIAL
from ragen2.trainer.jobs.logged_process import is_locked
from ragen2.trainer.jobs.run import PROGRAM, Job, JobStatus, is_finished, refuse_unfit, run_jobs

KEPT = (STATE, MANIFEST)
"""What says that a run is finished, and what its last checkpoint held."""


def drop_weights(job: Job) -> None:
    """Remove the weights of a finished run; one that is not finished needs them and keeps them."""
    if not is_finished(job):
        return
    for folder in list_checkpoints(job.folder):
        for path in folder.iterdir():
            if path.is_file() and path.name not in KEPT:
                path.unlink()


TRIES = 2
"""Starts of a run that fails, in one command."""
SECONDS_BETWEEN_POLLS = 0.5


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who hears what goes on, and who may stop it."""

    on_change: Callable[[Sequence[JobStatus]], None] = lambda statuses: None
    tell: Callable[[str], None] = lambda line: None
    stop_asked: Callable[[], bool] = lambda: False


def run_plan(
    plan: Plan,
    *,
    at_once: int,
    variables: Mapping[str, str] | None = None,
    watcher: Watcher | None = None,
    keep_weights: bool = True,
    program: Sequence[str] = PROGRAM,
) -> list[JobStatus]:
    """Train every run of the plan; how each ended, in the plan's order.

    Without ``keep_weights`` those of a run are removed as soon as it is finished.
    """
    watch = watcher or Watcher()
    given = dict(variables or {})
    write_run_files(plan)
    missing = make_models(
        _needed_models(plan),
        at_once=at_once,
        variables=given,
        on_start=lambda model: note_start(plan.out, "model", model.name, plan.name),
        tell=watch.tell,
        stop_asked=watch.stop_asked,
        program=program,
    )
    lost = _lost_jobs(plan, missing)
    todo = [job for job in plan.jobs if job.folder not in lost]
    room = _Room() if not keep_weights else None
    found = _Trials(plan, at_once, given, watch, program, room).run(todo)
    return [lost.get(job.folder) or found[job.folder] for job in plan.jobs]


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
    watch: Watcher
    program: Sequence[str]
    room: _Room | None

    def run(self, jobs: Sequence[Job]) -> dict[Path, JobStatus]:
        found = {job.folder: JobStatus(job) for job in jobs}
        left = list(jobs)
        for attempt in range(TRIES):
            if attempt:
                self.watch.tell(f"trying {len(left)} failed runs again")
            self._try(left, found)
            left = [job for job in left if found[job.folder].state == "failed"]
            if not left or self.watch.stop_asked():
                break
        return found

    def _try(self, jobs: Sequence[Job], found: dict[Path, JobStatus]) -> None:
        """Train each once. One that another process trains, or has just taken, is waited for first."""
        held = [job for job in jobs if is_locked(job.log)]
        rest = [job for job in jobs if job not in held]
        found |= self._train(rest, found)
        held += [job for job in rest if found[job.folder].state == "failed" and is_locked(job.log)]
        while held and not self.watch.stop_asked():
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
            stop_asked=self.watch.stop_asked,
            on_start=lambda job: note_start(self.plan.out, "run", job.folder.name, self.plan.name),
            program=self.program,
        )
        return {status.job.folder: status for status in statuses}

    def _tell(self, statuses: Sequence[JobStatus]) -> None:
        if self.room is not None:
            self.room.make(statuses)
        self.watch.on_change(statuses)

    def _wait_for(self, jobs: Sequence[Job]) -> None:
        self.watch.tell(f"waiting for {len(jobs)} runs that an earlier start still trains")
        while any(is_locked(job.log) for job in jobs) and not self.watch.stop_asked():
            time.sleep(SECONDS_BETWEEN_POLLS)


class _Room:
    """Drops the weights of each run once, when it is first seen finished."""

    def __init__(self) -> None:
        self._done: set[Path] = set()

    def make(self, statuses: Sequence[JobStatus]) -> None:
        for status in statuses:
            if status.state == "done" and status.job.folder not in self._done:
                self._done.add(status.job.folder)
                drop_weights(status.job)


def refuse_changed(plan: Plan) -> None:
    """Raise when a folder of the plan holds another run; where the models lie may differ."""
    same = []
    for job in plan.jobs:
        file = job.folder / "run.toml"
        if not file.is_file():
            continue
        there = load_run(file)
        config = job.config.model_copy(
            update={"model": job.config.model.model_copy(update={"path": there.model.path})}
        )
        same.append(Job(job.name, config, job.folder))
    try:
        refuse_unfit(same)
    except ConfigError as error:
        raise ConfigError(f"{error}, or remove that run") from error


def _remove_empty_run(folder: Path) -> None:
    """Remove a run directory that was killed before its settings were written: it holds nothing."""
    if not folder.is_dir() or (folder / "run.toml").exists():
        return
    inside = [path for path in folder.rglob("*") if path.is_file()]
    if all(path.name.startswith(PARTIAL) for path in inside):
        shutil.rmtree(folder)
