"""``ragen2 train --engine verl``: the same run file as a job of verl, on as many machines as Ray has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen2.cli.outlasting import results_are_saved
from ragen2.cli.shared import new_run_path, print_unchecked
from ragen2.errors import ConfigError, RunError
from ragen2.runs.lock import one_writer

if TYPE_CHECKING:
    from ragen2.config import RunConfig
    from ragen2.consent import PluginRule
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
    plugins: PluginRule,
) -> None:
    """Train a run file, or go on with a run, on another engine."""
    if resume is None:
        train_on_verl(run_file, overrides, out, cluster, plugins=plugins)
    else:
        resume_on_verl(resume, overrides, cluster, plugins=plugins)


def train_on_verl(
    run_file: Path | None,
    overrides: list[str],
    out: Path | None,
    cluster: Cluster,
    *,
    plugins: PluginRule,
) -> None:
    """Start a new run; with ``skip``, print its settings."""
    from ragen2.config import dump_config, load_run
    from ragen2.runs.store import RunDirectory

    config = load_run(run_file, overrides, plugins=plugins)
    path = out or new_run_path(config)
    if plugins != "skip":
        RunDirectory.refuse_taken(path)
    settings, job = _translated(config, path, cluster)
    if plugins == "skip":
        _print(config, settings)
        return
    with one_writer(path):
        RunDirectory.create(path, dump_config(config))
        _run(config, settings, job)


def resume_on_verl(
    path: Path, overrides: list[str], cluster: Cluster, *, plugins: PluginRule
) -> None:
    """Go on from the newest checkpoint in the run directory, or from the start; ``skip`` as above."""
    from ragen2.runs.store import RunDirectory

    RunDirectory.open(path)
    with nullcontext() if plugins == "skip" else one_writer(path):
        _go_on(path, overrides, cluster, plugins=plugins)


def _go_on(path: Path, overrides: list[str], cluster: Cluster, *, plugins: PluginRule) -> None:
    from ragen2.consent import require_consent
    from ragen2.integrations.verl.publish import newest_step, unpickled_risks
    from ragen2.runs.checkpoints import checkpoint_folder
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.resume import record_start, resumed_settings

    step = newest_step(path)
    saved = checkpoint_folder(path, step) if step else None
    found = resumed_settings(path, saved, overrides, plugins=plugins)
    config = found.config
    settings, job = _translated(config, path, cluster, step)
    if plugins == "skip":
        _print(config, settings)
        return
    if step >= config.steps:
        record_start(path, step, config, found.changed)
        print(f"{path} is finished: {step} of {config.steps} steps are done")
        return
    _refuse_others_checkpoints(path, step)
    _refuse_other_shape(job)
    if step:
        require_consent(f"run {path}", unpickled_risks(path, step), trust=plugins == "trust")
    else:
        RunDirectory.open(path).rewind(-1)
    _run(config, settings, job, found.changed)


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
    if not config.algorithm.is_checked:
        raise ConfigError(
            f"algorithm {config.algorithm.kind} is of a plug-in, which a dry run does not import, so that "
            "it cannot say what verl would be told; leave --dry-run out"
        )
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

    from ragen2.runs.toml_files import parse_toml

    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ConfigError(f"--engine-set takes name=value, got {text!r}")
    try:
        return name.strip(), parse_toml(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()
    except ValueError as error:
        raise ConfigError(f"--engine-set {name.strip()}: {error}") from error


def _print(config: RunConfig, settings: dict[str, Any]) -> None:
    print_unchecked(config)
    for name, value in settings.items():
        print(f"{name}={value}")


def _run(
    config: RunConfig, settings: dict[str, Any], job: VerlJob, changed: Sequence[str] = ()
) -> None:
    """Train to the end, or to where the run stops by itself; then the report."""
    from ragen2.integrations.verl.job import run_job
    from ragen2.reports.page import write_report
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.resume import record_start

    path = job.run
    machines = f"--nodes {job.nodes} --gpus-per-node {job.workers}"
    go_on = f"go on with: ragen2 train --resume {path} --engine verl {machines}"
    results_are_saved()
    record_start(path, job.resume_step, config, changed)
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
