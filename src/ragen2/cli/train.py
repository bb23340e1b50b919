"""``ragen2 train``: the main job."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragen2.cli.interrupt import EXIT_INTERRUPTED, StopRequest
from ragen2.cli.options import SetOption, torch_room
from ragen2.errors import ConfigError, RunError

if TYPE_CHECKING:
    from ragen2.backends.opening import Agent
    from ragen2.config import RunConfig
    from ragen2.runs.sinks import Sink
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.state import TrainerState


def train(  # noqa: PLR0913 - one parameter a flag
    run_files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN.toml]...",
            help="A run file, or the name of an embedded recipe such as frozen_lake_ppo "
            "(docs/recipes.md has the list); left out, the embedded default. Several are trained "
            "each in a process of its own.",
        ),
    ] = None,
    overrides: SetOption = None,
    *,
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
        bool, typer.Option("--dry-run", help="Check everything, print it, train nothing.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Train every run with so many seeds, from its own upwards."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs trained side by side; left out, 1.")
    ] = None,
    mps: Annotated[
        bool, typer.Option(help="Let jobs share an NVIDIA GPU through its MPS daemon.")
    ] = True,
) -> None:
    """Train an agent and watch for collapse.

    Example: ragen2 train --set steps=20 --set filter.mass=0.8 --out runs/try
    """
    has_jobs = len(run_files or ()) > 1 or seeds is not None or jobs is not None
    if resume is not None:
        if run_files or overrides or out is not None:
            raise ConfigError(
                "--resume takes its settings from the run; leave RUN.toml, --set and --out out"
            )
        if has_jobs:
            raise ConfigError(
                "--resume goes on with one run; for several, repeat their command with its --out"
            )
        _resume(resume, dry_run=dry_run)
    elif has_jobs:
        from ragen2.cli.jobs import name_jobs, print_jobs, train_jobs

        named = name_jobs(run_files or [], overrides or [], seeds or 1, out)
        if dry_run:
            print_jobs(named)
        else:
            train_jobs(named, at_once=jobs or 1, mps=mps)
    else:
        _train_one(run_files[0] if run_files else None, overrides or [], out, dry_run=dry_run)


def _train_one(
    run_file: Path | None, overrides: list[str], out: Path | None, *, dry_run: bool
) -> None:
    from ragen2.config import dump_config, load_run
    from ragen2.runs.loggers import require_loggers

    config = load_run(run_file, overrides)
    require_loggers(config.logging.to)
    if dry_run:
        print(dump_config(config), end="")
        return
    from ragen2.runs.store import RunDirectory

    path = out or Path("runs") / time.strftime(
        f"{config.env.kind}-{config.algorithm.kind}-%Y%m%d-%H%M%S"
    )
    RunDirectory.refuse_taken(path)  # before the model is opened, which takes a while
    agent = _open(config)
    _run(config, agent, RunDirectory.create(path, dump_config(config)), None)


def _resume(path: Path, *, dry_run: bool) -> None:
    from ragen2.config import dump_config, load_run
    from ragen2.runs.checkpoints import list_checkpoints, newest_checkpoint
    from ragen2.runs.loggers import require_loggers
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.state import read_state

    run = RunDirectory.open(path)
    config = load_run(path / "run.toml")
    require_loggers(config.logging.to)
    if dry_run:
        print(dump_config(config), end="")
        return
    checkpoint = newest_checkpoint(path)
    if checkpoint is None and list_checkpoints(path):
        raise RunError(
            f"every checkpoint of {path} is damaged; to start again from step 1, remove "
            f"{path / 'checkpoints'} and resume"
        )
    state = read_state(checkpoint) if checkpoint else None
    agent = _open(config)
    if checkpoint:
        agent.learner.load(checkpoint)
    run.rewind(state.step if state else -1)
    if state is not None and state.step >= config.steps:
        print(f"{path} is finished: {state.step} of {config.steps} steps are done")
    _run(config, agent, run, state)


def _open(config: RunConfig) -> Agent:
    opening = torch_room()
    agent: Agent = opening.open_agent(
        config.model,
        config.learner,
        seed=config.seed,
        algorithm=config.algorithm,
        steps=config.steps,
    )
    return agent


def _run(config: RunConfig, agent: Agent, run: RunDirectory, state: TrainerState | None) -> None:
    from ragen2.cli.live import live_view
    from ragen2.reports.page import write_report
    from ragen2.runs.sessions import record_session
    from ragen2.trainer.loop import train as train_loop

    record_session(run.path, state.step if state else 0)
    asked = StopRequest("finishing this step, then saving")
    loggers = _loggers(config, run, state)
    with loggers as others, live_view(config, run, agent.learner.describe()) as view:
        sinks = [view, *others]
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
