"""``ragen2 train`` with several runs: which they are, and how they are trained side by side."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from ragen2.backends.settings import GPU_SHARE
from ragen2.cli.outlasting import StopRequest
from ragen2.cli.shared import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER, print_settings
from ragen2.cli.views.live import jobs_view
from ragen2.config import default_run_file, load_run
from ragen2.consent import PluginRule
from ragen2.errors import ConfigError, RunError
from ragen2.reports.page import write_report
from ragen2.trainer.jobs.mps import Sharing, has_gpu, shared_gpu
from ragen2.trainer.jobs.run import Job, JobStatus, refuse_unfit, run_jobs


def name_jobs(
    run_files: Sequence[Path],
    overrides: Sequence[str],
    seeds: int,
    out: Path | None,
    plugins: PluginRule = "known",
) -> list[Job]:
    """Every run with every seed, as ``OUT/NAME-seedS``; all their mistakes are found before any starts."""
    folder = out or Path("runs") / time.strftime("jobs-%Y%m%d-%H%M%S")
    files = list(run_files) or [default_run_file()]
    jobs = []
    for file, name in zip(files, _names(files), strict=True):
        config = load_run(file, overrides, plugins=plugins)
        for seed in range(config.seed, config.seed + seeds):
            label = f"{name}-seed{seed}"
            jobs.append(Job(label, config.model_copy(update={"seed": seed}), folder / label))
    refuse_unfit(jobs)
    return jobs


def print_jobs(jobs: Sequence[Job], *, full: bool) -> None:
    """The settings of each job, one run file after another."""
    for job in jobs:
        print_settings(job.config, full=full, name=job.name)
        print()


def train_jobs(jobs: Sequence[Job], *, at_once: int, mps: bool) -> None:
    """Train all of them, show how they do, and end with the exit code that fits."""
    folder = jobs[0].folder.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"{folder} cannot be written: {error.strerror}; choose another with --out"
        ) from error
    asked = StopRequest("finishing the step of every job, then saving")
    with gpu_sharing(jobs, at_once, mps=mps) as sharing, jobs_view(folder, sharing.note) as view:
        statuses = run_jobs(
            jobs,
            at_once=at_once,
            variables=sharing.variables,
            on_change=view.update,
            stop_asked=asked,
        )
    _report(statuses, folder)
    for status in statuses:
        if status.state == "failed":
            print(f"{status.job.name} failed: {status.problem} (see {status.job.log})")
    code = exit_code(statuses)
    if code == EXIT_INTERRUPTED or asked():
        print(f"stopped; go on with the same command and --out {folder}")
        raise typer.Exit(EXIT_INTERRUPTED)
    if code:
        raise typer.Exit(code)


def exit_code(statuses: Sequence[JobStatus]) -> int:
    """1 when a job failed, 2 when all did by a mistake of the user, 130 when one was interrupted."""
    failed = [status for status in statuses if status.state == "failed"]
    if failed:
        is_mistake = all(status.exit_code == EXIT_USER for status in failed)
        return EXIT_USER if is_mistake and len(failed) == len(statuses) else EXIT_FAILED
    return EXIT_INTERRUPTED if any(status.state == "stopped" for status in statuses) else 0


def _names(files: Sequence[Path]) -> list[str]:
    """The name of each file, with its folder's before it where two files are called the same."""
    stems = [file.stem for file in files]
    names = [
        f"{file.resolve().parent.name}-{file.stem}" if stems.count(file.stem) > 1 else file.stem
        for file in files
    ]
    for file, name in zip(files, names, strict=True):
        if names.count(name) > 1:
            raise ConfigError(
                f"two runs would be called {name} (one is {file}); for several seeds of one run use "
                "--seeds, else rename one file"
            )
    return names


@contextlib.contextmanager
def gpu_sharing(jobs: Sequence[Job], at_once: int, *, mps: bool) -> Iterator[Sharing]:
    """Equal shares of memory where several jobs will meet on a GPU, and MPS unless it is declined."""
    num_on_gpu = sum(job.config.model.device != "cpu" for job in jobs)
    num_meeting = min(at_once, num_on_gpu)
    if num_meeting < 2 or not has_gpu():
        yield Sharing()
        return
    share = {GPU_SHARE: os.environ.get(GPU_SHARE) or f"{1.0 / num_meeting:.4f}"}
    with shared_gpu() if mps else contextlib.nullcontext(Sharing()) as sharing:
        yield replace(sharing, variables={**sharing.variables, **share})


def _report(statuses: Sequence[JobStatus], folder: Path) -> None:
    paths = [status.job.folder for status in statuses if status.records]
    if paths:
        print(f"report {write_report(paths, folder / 'report.html')}")
