"""``ragen2 experiment``: a table or figure of the paper, or a grid of one's own, end to end."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragen2.cli.outlasting import StopRequest
from ragen2.cli.shared import EXIT_INTERRUPTED, SetOption, TrustOption, plugin_rule
from ragen2.errors import ConfigError

if TYPE_CHECKING:
    from ragen2.experiments.grid import Grid, Scale
    from ragen2.experiments.plan import Plan


def experiment(  # noqa: PLR0913 - one parameter per flag
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|GRID.toml",
            help="An experiment (--list shows them), or a grid file of your own.",
        ),
    ] = None,
    *,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="tiny|small|full",
            help="Embedded model on a CPU, SmolLM2-135M on one GPU, or the paper's settings.",
            show_default="tiny",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Seeds of every cell, from 0.", show_default="the experiment's"
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs side by side.", show_default="tiny: one per core; otherwise 1"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for runs, models and tables; several experiments may share it, and runs that "
            "they have in common are trained once.",
            show_default="runs/experiments-SCALE",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check every cell, estimate memory and time, train nothing."
        ),
    ] = False,
    overrides: SetOption = None,
    mps: Annotated[
        bool, typer.Option(help="Let jobs share an NVIDIA GPU through its MPS daemon.")
    ] = True,
    keep_weights: Annotated[
        bool | None,
        typer.Option(
            "--keep-weights/--drop-weights",
            help="Whether the weights of finished runs stay on disk.",
            show_default="kept at tiny and for a grid of your own",
        ),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Show the experiments and stop.")
    ] = False,
    trust_plugins: TrustOption = False,
) -> None:
    """Run a grid of cells and seeds, then write one table, figures and the exact commands.

    The same command goes on where it was left: finished runs are kept, failed ones tried again.

    Example: ragen2 experiment main_table --scale tiny --seeds 1
    """
    from ragen2.cli.views.experiment import print_list, print_plan
    from ragen2.experiments.grid import load_grid
    from ragen2.experiments.plan import make_plan
    from ragen2.runs.lock import one_writer

    if show_list:
        print_list()
        return
    if name is None:
        raise ConfigError("which experiment? name one, or see them with: ragen2 experiment --list")
    chosen = _scale(scale, load_grid(name))
    folder = out or Path("runs") / (f"experiments-{chosen}" if chosen else Path(name).stem)
    plan = make_plan(
        name,
        scale=chosen,
        out=folder,
        seeds=seeds,
        overrides=overrides or (),
        plugins=plugin_rule(trust=trust_plugins, dry_run=dry_run),
    )
    if dry_run:
        print_plan(plan)
        return
    keep = _keeps_weights(plan) if keep_weights is None else keep_weights
    with one_writer(plan.folder):
        _run(plan, at_once=jobs or _default_jobs(plan), mps=mps, keep_weights=keep)


def _scale(scale: str | None, grid: Grid) -> Scale | None:
    """The scale that was asked for; none for a grid that stands on a run file of its own."""
    from ragen2.component import suggest
    from ragen2.experiments.grid import SCALES

    if scale is not None and scale not in SCALES:
        raise ConfigError(f"unknown scale {scale!r}; {suggest(scale, SCALES)}")
    if grid.run:
        if scale is not None:
            raise ConfigError(
                f"the grid stands on the run file {grid.run}, so it has no scale; leave --scale out"
            )
        return None
    return next(one for one in SCALES if one == (scale or "tiny"))


def _default_jobs(plan: Plan) -> int:
    from ragen2.experiments.grid import load_scale
    from ragen2.rollout.pool import usable_cores

    many = plan.scale is not None and load_scale(plan.scale).side_by_side
    return usable_cores() if many else 1


def _keeps_weights(plan: Plan) -> bool:
    from ragen2.experiments.grid import load_scale

    return plan.scale is None or load_scale(plan.scale).keep_weights


def _run(plan: Plan, *, at_once: int, mps: bool, keep_weights: bool) -> None:
    from ragen2.cli.jobs import exit_code, gpu_sharing
    from ragen2.cli.views.live import jobs_view
    from ragen2.experiments.output import write_results
    from ragen2.experiments.running import RunCallbacks, refuse_changed, run_plan

    refuse_changed(plan)
    asked = StopRequest("finishing the step of every run, then saving")
    with (
        gpu_sharing(plan.jobs, at_once, mps=mps) as sharing,
        jobs_view(plan.out, sharing.note) as view,
    ):
        callbacks = RunCallbacks(view.update, view.tell, asked)
        statuses = run_plan(
            plan,
            at_once=at_once,
            variables=sharing.variables,
            callbacks=callbacks,
            keep_weights=keep_weights,
        )
    for status in statuses:
        if status.state == "failed":
            print(f"{status.job.name} failed: {status.problem} (see {status.job.log})")
    command = shlex.join(["ragen2", *sys.argv[1:]])
    written = write_results(plan, statuses, command)
    print((written.folder / "table.md").read_text(encoding="utf-8"))
    print(f"tables, commands and records in {written.folder}")
    if written.no_figures:
        print(written.no_figures)
    code = exit_code(statuses)
    if code == EXIT_INTERRUPTED or asked():
        print("stopped; go on with the same command")
        raise typer.Exit(EXIT_INTERRUPTED)
    if code:
        raise typer.Exit(code)
