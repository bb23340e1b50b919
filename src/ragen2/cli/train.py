"""``ragen2 train``: the main job."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ragen2.cli.options import SetOption, torch_room
from ragen2.errors import ConfigError, RunError

if TYPE_CHECKING:
    from ragen2.backends.opening import Agent
    from ragen2.config import RunConfig
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.state import TrainerState

EXIT_INTERRUPTED = 130


def train(
    run_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN.toml]",
            help="A run file, or the name of an embedded recipe such as frozen_lake_ppo "
            "(docs/recipes.md has the list); left out, the embedded default.",
        ),
    ] = None,
    overrides: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; must not exist yet.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN_DIR", help="Go on with this run from its newest checkpoint."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print it, train nothing.")
    ] = False,
) -> None:
    """Train an agent and watch for collapse.

    Example: ragen2 train --set steps=20 --set filter.mass=0.8 --out runs/try
    """
    from ragen2.config import dump_config, load_run

    if resume is not None:
        if run_file is not None or overrides or out is not None:
            raise ConfigError(
                "--resume takes its settings from the run; leave RUN.toml, --set and --out out"
            )
        _resume(resume, dry_run=dry_run)
        return
    config = load_run(run_file, overrides or ())
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
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.state import read_state

    run = RunDirectory.open(path)
    config = load_run(path / "run.toml")
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
        server=config.server,
    )
    return agent


def _run(config: RunConfig, agent: Agent, run: RunDirectory, state: TrainerState | None) -> None:
    from ragen2.cli.live import live_view
    from ragen2.reports.page import write_report
    from ragen2.trainer.loop import train as train_loop

    asked = _StopRequest()
    with live_view(config, run, agent.learner.describe()) as view:
        final = train_loop(
            config, agent.policy, agent.learner, run, state=state, sinks=[view], stop_asked=asked
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


class _StopRequest:
    """True after the first Ctrl-C or SIGTERM, so that the step is finished; a second stops at once."""

    def __init__(self) -> None:
        self.is_set = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def __call__(self) -> bool:
        return self.is_set

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True
        print("\nfinishing this step, then saving; press Ctrl-C again to stop at once", flush=True)
