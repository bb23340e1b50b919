"""``ragen2 train --engine verl``: the same run file as a job of verl, on as many machines as Ray has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen2.cli.shared import new_run_path
from ragen2.errors import ConfigError, RunError

if TYPE_CHECKING:
    from ragen2.config import RunConfig
    from ragen2.integrations.verl.translate import VerlJob


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the flags say about the machines that train."""

    nodes: int
    gpus_per_node: int | None
    settings: tuple[str, ...]


def train_elsewhere(
    cluster: Cluster,
    run_file: Path | None,
    overrides: list[str],
    out: Path | None,
    *,
    resume: Path | None,
    dry_run: bool,
) -> None:
    """Train a run file, or go on with a run, on another engine."""
    if resume is None:
        train_on_verl(run_file, overrides, out, cluster, dry_run=dry_run)
    elif run_file or overrides or out is not None:
        raise ConfigError(
            "--resume takes its settings from the run; leave RUN.toml, --set and --out out"
        )
    else:
        resume_on_verl(resume, cluster, dry_run=dry_run)


def train_on_verl(
    run_file: Path | None,
    overrides: list[str],
    out: Path | None,
    cluster: Cluster,
    *,
    dry_run: bool,
) -> None:
    """Start a new run."""
    from ragen2.config import dump_config, load_run
    from ragen2.runs.store import RunDirectory

    config = load_run(run_file, overrides)
    path = out or new_run_path(config)
    if not dry_run:
        RunDirectory.refuse_taken(path)
    settings, job = _translated(config, path, cluster)
    if dry_run:
        _print(settings)
        return
    RunDirectory.create(path, dump_config(config))
    _run(config, settings, job)


def resume_on_verl(path: Path, cluster: Cluster, *, dry_run: bool) -> None:
    """Go on from the newest checkpoint in the run directory, or from the start."""
    from ragen2.config import load_run
    from ragen2.integrations.verl.publish import newest_step
    from ragen2.runs.store import RunDirectory

    run = RunDirectory.open(path)
    config = load_run(path / "run.toml")
    step = newest_step(path)
    settings, job = _translated(config, path, cluster, step)
    if dry_run:
        _print(settings)
        return
    if step >= config.steps:
        print(f"{path} is finished: {step} of {config.steps} steps are done")
        return
    _refuse_others_checkpoints(path, step)
    _refuse_other_shape(job)
    if not step:
        run.rewind(-1)
    _run(config, settings, job)


def _refuse_others_checkpoints(path: Path, step: int) -> None:
    """A run of our own loop, or one whose checkpoints of verl are gone, must not start over in silence."""
    from ragen2.runs.checkpoints import list_checkpoints

    if not step and list_checkpoints(path):
        raise RunError(
            f"{path} has checkpoints, but none that verl can go on from; leave --engine verl out if our "
            "own loop made them, or start a new run with model.path set to one of them"
        )


def _refuse_other_shape(job: VerlJob) -> None:
    """A checkpoint is opened by as many processes as wrote it."""
    from ragen2.integrations.verl.publish import saved_workers

    saved = saved_workers(job.run, job.resume_step) if job.resume_step else None
    if saved not in (None, job.nodes * job.workers):
        raise ConfigError(
            f"the checkpoint of step {job.resume_step} is cut for {saved} processes, got "
            f"{job.nodes * job.workers}; give --nodes and --gpus-per-node as before"
        )


def _translated(
    config: RunConfig, path: Path, cluster: Cluster, resume_step: int = 0
) -> tuple[dict[str, Any], VerlJob]:
    from ragen2.integrations.versions import require_tested

    require_tested("verl")
    from ragen2.integrations.verl.job import describe_job
    from ragen2.integrations.verl.translate import defaults, translate
    from ragen2.runs.loggers import require_loggers

    require_loggers(config.logging.to)
    job = describe_job(config, path, cluster.nodes, cluster.gpus_per_node)
    job = replace(job, resume_step=resume_step)
    decided = translate(config, job)
    asked = dict(map(_assignment, cluster.settings))
    for name in asked.keys() & decided.keys():
        raise ConfigError(
            f"--engine-set {name} is decided by the run file ({decided[name]!r}); change it there"
        )
    return {**defaults(job), **asked, **decided}, job


def _assignment(text: str) -> tuple[str, Any]:
    import tomllib

    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ConfigError(f"--engine-set takes name=value, got {text!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()


def _print(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        print(f"{name}={value}")


def _run(config: RunConfig, settings: dict[str, Any], job: VerlJob) -> None:
    """Train to the end, or to where the run stops by itself; then the report."""
    from ragen2.integrations.verl.job import run_job
    from ragen2.reports.page import write_report
    from ragen2.runs.store import RunDirectory, record_session

    path = job.run
    machines = f"--nodes {job.nodes} --gpus-per-node {job.workers}"
    go_on = f"go on with: ragen2 train --resume {path} --engine verl {machines}"
    record_session(path, job.resume_step)
    try:
        run_job(job, settings)
    except KeyboardInterrupt:
        print(f"interrupted; {go_on}")
        raise
    report = write_report([path], path / "report.html")
    last = RunDirectory.open(path).records()[-1]
    if last.step < config.steps:
        print(f"stopped after step {last.step}: {last.note}; {go_on}; report: {report}")
    else:
        print(f"trained to step {last.step} in {path}; report: {report}")
