"""``ragen2 train``: the main job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragen2.backends.distributed.rank import Rank, rank_of
from ragen2.cli.outlasting import StopRequest
from ragen2.cli.processes import open_rank_zero, resume_line, run_worker, start_processes
from ragen2.cli.shared import (
    EXIT_INTERRUPTED,
    EnvOption,
    ModelOption,
    PluginOption,
    SetOption,
    StepsOption,
    TrustOption,
    new_run_path,
    plugin_rule,
    require_torch,
    with_shorthands,
)
from ragen2.errors import ConfigError, RunError

if TYPE_CHECKING:
    from ragen2.config import RunConfig
    from ragen2.consent import PluginRule
    from ragen2.policy import Learner, Policy
    from ragen2.runs.record import Sink
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.resume import ResumedSettings
    from ragen2.trainer.state import TrainerState


class TrainingEngine(StrEnum):
    """What trains."""

    OWN = "own"
    VERL = "verl"


EngineOption = Annotated[
    TrainingEngine,
    typer.Option(help="What trains: our own loop, or verl on Ray (docs/integrations/verl.md)."),
]
NodesOption = Annotated[
    int, typer.Option(min=1, help="With --engine verl: machines of the Ray cluster.")
]
GPUsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With --engine verl: GPUs of each machine; left out, those of this one. On a CPU: processes.",
    ),
]
EngineSetOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="With --engine verl: a setting of verl that the run file knows nothing of, such as "
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.6. Repeatable.",
    ),
]


@dataclass(frozen=True, slots=True)
class Trained:
    """What the loop trains and plays with."""

    learner: Learner
    policy: Policy


def train(  # noqa: PLR0913 - one parameter per flag
    run_files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN.toml]...",
            help="A run file, or the name of an embedded recipe such as frozen_lake_ppo "
            "(docs/recipes.md has the list); left out, the embedded default. Several are trained "
            "each in a process of its own.",
        ),
    ] = None,
    *,
    model: ModelOption = None,
    env: EnvOption = None,
    steps: StepsOption = None,
    plugin: PluginOption = None,
    overrides: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run directory; must not exist yet. With several runs, the folder for all of them: "
            "those that are in it and unfinished are resumed."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN_DIR", help="Go on with this run from its newest checkpoint."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything, print the settings that differ from the defaults, train nothing.",
        ),
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="With --dry-run: print every setting.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Train every run with so many seeds, from its own upwards."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs trained side by side; left out, 1.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train one run in so many processes of this machine, one GPU each; left out, 1.",
        ),
    ] = None,
    mps: Annotated[
        bool, typer.Option(help="Let jobs share an NVIDIA GPU through its MPS daemon.")
    ] = True,
    engine: EngineOption = TrainingEngine.OWN,
    nodes: NodesOption = 1,
    gpus_per_node: GPUsOption = None,
    engine_set: EngineSetOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Train an agent and watch for collapse.

    --model, --env, --steps and --plugin are short for settings; --set has all of them.

    Example: ragen2 train --env FrozenLake --steps 20 --set filter.mass=0.8 --out runs/try
    """
    rank = rank_of(os.environ)
    if not rank.is_zero:
        run_worker(rank)
        return
    if full and not dry_run:
        raise ConfigError("--full goes with --dry-run; add it or leave --full out")
    has_jobs = len(run_files or ()) > 1 or seeds is not None or jobs is not None
    has_cluster = nodes != 1 or gpus_per_node is not None or bool(engine_set)
    _refuse_with_engine(engine, has_jobs=has_jobs or processes is not None, has_cluster=has_cluster)
    run_file = run_files[0] if run_files else None
    changes = with_shorthands(overrides, model=model, env=env, steps=steps, plugins=plugin)
    _refuse_with_resume(resume, has_settings=bool(run_file or out), has_jobs=has_jobs)
    plugins = plugin_rule(trust=trust_plugins, dry_run=dry_run)
    if engine is TrainingEngine.VERL:
        from ragen2.cli.verl import Cluster, train_elsewhere

        cluster = Cluster(nodes, gpus_per_node, tuple(engine_set or ()))
        train_elsewhere(cluster, run_file, changes, out, resume=resume, plugins=plugins)
    elif resume is not None:
        if dry_run:
            _print_settings(_settings_of(resume, changes, plugins).config, full=full)
        else:
            _resume(resume, changes, rank, processes, plugins)
    elif has_jobs:
        if rank.world_size > 1 or processes is not None:
            raise ConfigError("--processes and torchrun train one run; leave the others out")
        from ragen2.cli.jobs import name_jobs, print_jobs, train_jobs

        named = name_jobs(run_files or [], changes, seeds or 1, out, plugins)
        if dry_run:
            print_jobs(named, full=full)
        else:
            train_jobs(named, at_once=jobs or 1, mps=mps)
    elif dry_run:
        _print_settings(_checked(run_file, changes, plugins), full=full)
    else:
        _train_one(run_file, changes, out, rank, processes, plugins)


def _print_settings(config: RunConfig, *, full: bool) -> None:
    from ragen2.cli.shared import print_settings

    print_settings(config, full=full)


def _refuse_with_engine(engine: TrainingEngine, *, has_jobs: bool, has_cluster: bool) -> None:
    if engine is TrainingEngine.OWN and has_cluster:
        raise ConfigError(
            "--nodes, --gpus-per-node and --engine-set go with --engine verl; add it or leave them out"
        )
    if engine is TrainingEngine.VERL and has_jobs:
        raise ConfigError(
            "--engine verl trains one run, and starts its own processes; leave further run files, "
            "--seeds, --jobs and --processes out"
        )


def _refuse_with_resume(resume: Path | None, *, has_settings: bool, has_jobs: bool) -> None:
    if resume is None:
        return
    if has_settings:
        raise ConfigError(
            "--resume takes its settings from the run; leave RUN.toml and --out out, and change some "
            "with --set"
        )
    if has_jobs:
        raise ConfigError(
            "--resume goes on with one run; for several, repeat their command with its --out"
        )


def _starts_others(processes: int | None, rank: Rank) -> bool:
    """Whether ``--processes`` asks for a job; inside one, the number must be the same."""
    if rank.world_size > 1 and processes not in (None, rank.world_size):
        raise ConfigError(
            f"--processes is {processes}, but this is a job of {rank.world_size} already; leave one out"
        )
    return rank.world_size == 1 and (processes or 1) > 1


def _checked(run_file: Path | None, overrides: list[str], plugins: PluginRule) -> RunConfig:
    from ragen2.config import load_run

    config = load_run(run_file, overrides, plugins=plugins)
    _require_loggers(config)
    return config


def _require_loggers(config: RunConfig) -> None:
    if config.logging.to:
        from ragen2.runs.loggers import require_loggers

        require_loggers(config.logging.to)


def _new_path(config: RunConfig, out: Path | None) -> Path:
    """The run directory, before the model is opened, which takes a while."""
    from ragen2.runs.store import RunDirectory

    path = out or new_run_path(config)
    RunDirectory.refuse_taken(path)
    return path


def _train_one(
    run_file: Path | None,
    overrides: list[str],
    out: Path | None,
    rank: Rank,
    processes: int | None,
    plugins: PluginRule,
) -> None:
    """Train a new run, here or in processes of its own; mistakes are found before any of them starts."""
    from ragen2.config import dump_config
    from ragen2.rollout.context import require_vision
    from ragen2.runs.lock import one_writer
    from ragen2.runs.store import RunDirectory

    starts_others = _starts_others(processes, rank)
    config = _checked(run_file, overrides, plugins)
    path = _new_path(config, out)
    if starts_others:
        words = [str(run_file)] if run_file else []
        for override in overrides:
            words += ["--set", override]
        raise typer.Exit(start_processes([*words, "--out", str(path)], processes or 1, path))
    with _open(config, rank) as agent:
        require_vision(config.env, agent.policy, config.rollout, config.prompt)
        with one_writer(path):
            run = RunDirectory.create(path, dump_config(config))
            _run(config, agent, run, None, rank)


def _settings_of(
    path: Path, overrides: list[str], plugins: PluginRule, checkpoint: Path | None = None
) -> ResumedSettings:
    """The settings that a run goes on with, with the loggers that they name at hand.

    Without a ``checkpoint`` that was found whole they are held against the newest one's.
    """
    from ragen2.runs.checkpoints import list_checkpoints
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.resume import resumed_settings

    RunDirectory.open(path)
    newest = next(reversed(list_checkpoints(path)), None)
    found = resumed_settings(path, checkpoint or newest, overrides, plugins=plugins)
    _require_loggers(found.config)
    return found


def _resume(
    path: Path, overrides: list[str], rank: Rank, processes: int | None, plugins: PluginRule
) -> None:
    from ragen2.runs.lock import one_writer
    from ragen2.runs.store import RunDirectory

    RunDirectory.open(path)
    starts_others = _starts_others(processes, rank)
    with one_writer(path):  # rank 0 holds it; this program only looks, before it starts others
        if not starts_others:
            _go_on(path, overrides, rank, plugins)
            return
        _settings_of(path, overrides, plugins)  # with consent, which processes of its own inherit
    words = ["--resume", str(path)]
    for override in overrides:
        words += ["--set", override]
    raise typer.Exit(start_processes(words, processes or 1, path))


def _go_on(path: Path, overrides: list[str], rank: Rank, plugins: PluginRule) -> None:
    """Resume the run of a directory in which nobody else writes."""
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.resume import sound_checkpoint
    from ragen2.trainer.state import read_state

    run = RunDirectory.open(path)
    checkpoint = sound_checkpoint(run)
    found = _settings_of(path, overrides, plugins, checkpoint)
    config = found.config
    state = read_state(checkpoint) if checkpoint else None
    with _open(config, rank) as agent:
        if checkpoint:
            agent.learner.load(checkpoint)
        if state is None and (begun := run.sound_records()[0]):
            print(f"{path} has no checkpoint; all until step {begun[-1].step} is done again")
        run.rewind(state.step if state else -1)
        if state is not None and state.step >= config.steps:
            print(f"{path} is finished: {state.step} of {config.steps} steps are done")
        if found.changed:
            print(f"from step {state.step + 1 if state else 0} on: {', '.join(found.changed)}")
        _run(config, agent, run, state, rank, found.changed)


@contextmanager
def _open(config: RunConfig, rank: Rank) -> Iterator[Trained]:
    """Learner and policy; in a job of several processes, those that lead all of them."""
    if rank.world_size > 1:
        with open_rank_zero(config, rank) as all_processes:
            yield Trained(all_processes, all_processes)
        return
    from ragen2.cli.views.waiting import waiting

    with waiting(config.model.path):
        agent = require_torch().open_agent(
            config.model,
            config.learner,
            seed=config.seed,
            algorithm=config.algorithm,
            steps=config.steps,
            server=config.server,
        )
    yield Trained(agent.learner, agent.policy)


def _run(
    config: RunConfig,
    agent: Trained,
    run: RunDirectory,
    state: TrainerState | None,
    rank: Rank,
    changed: Sequence[str] = (),
) -> None:
    from ragen2.cli.views.live import live_view
    from ragen2.reports.page import write_report
    from ragen2.trainer.loop import train as train_loop
    from ragen2.trainer.resume import record_start

    record_start(run.path, state.step if state else 0, config, changed)
    asked = StopRequest("finishing this step, then saving")
    loggers = _loggers(config, run, state)
    with loggers as others, live_view(config, run, agent.learner.describe()) as view:
        sinks = [view, *others]
        with _naming(run.path, rank):
            final = train_loop(
                config, agent.policy, agent.learner, run, state=state, sinks=sinks, stop_asked=asked
            )
    report = write_report([run.path], run.path / "report.html")
    view.summary(run, report)
    if final.step < config.steps and not asked():
        alarm = f" by the early warning: {final.watch.warning.reason}"
        why = f": {final.stopped}" if final.stopped else alarm
        print(f"stopped after step {final.step}{why}; go on with: ragen2 train --resume {run.path}")
    elif final.step < config.steps:
        print(f"stopped after step {final.step}; go on with: ragen2 train --resume {run.path}")
        raise typer.Exit(EXIT_INTERRUPTED)
    if not (run.path / "checkpoints").is_dir():
        raise RunError(f"{run.path} has no checkpoint; the run directory was changed from outside")


@contextmanager
def _naming(run: Path, rank: Rank) -> Iterator[None]:
    """A lost process is reported with the command that goes on."""
    if rank.world_size == 1:
        yield
        return
    from ragen2.backends.distributed.process_group import LostProcess

    try:
        yield
    except LostProcess as error:
        raise RunError(f"{error}; {resume_line(run, rank.world_size)}") from error


def _loggers(
    config: RunConfig, run: RunDirectory, state: TrainerState | None
) -> AbstractContextManager[list[Sink]]:
    """The loggers that the run file names; none leaves no trace in the run directory."""
    from ragen2.runs.loggers import LoggedRun, open_loggers

    if not config.logging.to:
        return nullcontext([])
    settings = config.model_dump(mode="json", exclude_none=True)
    next_step = state.step + 1 if state else 0
    logged = LoggedRun.of(run.path, config.logging.project, settings, next_step)
    return open_loggers(config.logging.to, logged)
