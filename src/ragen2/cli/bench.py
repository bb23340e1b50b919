"""``ragen2 bench``: how fast the parts are on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from ragen2.cli.options import SetOption

app = typer.Typer(help="Measure throughput on this machine.", no_args_is_help=True)


@app.command("envs")
def bench_envs(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Left out: all of them.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(min=0.1, help="Time spent on each environment's resets and on its steps."),
    ] = 1.0,
    overrides: SetOption = None,
) -> None:
    """Resets and steps a second of each environment; with no NAME, also what training asks of them.

    Example: ragen2 bench envs Sokoban --seconds 0.2
    """
    from rich.console import Console
    from rich.table import Table

    from ragen2.config import apply_override
    from ragen2.envs import Env
    from ragen2.envs.bench import measure_env, measure_workloads

    table = Table()
    for column in (
        "environment",
        "first start, ms",
        "resets/s",
        "ms a reset",
        "steps/s",
        "ms a step",
    ):
        table.add_column(column, justify="left" if column == "environment" else "right")
    for name in names or Env.kinds():
        data: dict[str, object] = {"kind": name}
        for override in overrides or ():
            data = apply_override(data, override.removeprefix("env."))
        env = Env.from_dict(data, name)
        speed = measure_env(env, seconds)
        table.add_row(
            env.kind,
            f"{1000 * speed.seconds_first_start:.1f}",
            f"{1 / speed.seconds_reset:,.0f}",
            f"{1000 * speed.seconds_reset:.3f}",
            f"{1 / speed.seconds_step:,.0f}",
            f"{1000 * speed.seconds_step:.4f}",
        )
    Console().print(table)
    if not names:
        for workload in measure_workloads():
            print(f"{workload.what}: {workload.seconds:.4f} s")
