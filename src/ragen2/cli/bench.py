"""``ragen2 bench``: how fast the parts are on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragen2.bench.output import OutOption, RepeatsOption, check_device, write_json
from ragen2.cli.bench_rollout import bench_rollout
from ragen2.cli.bench_step import bench_step
from ragen2.cli.options import SetOption, require_torch

if TYPE_CHECKING:
    from ragen2.bench.score import Comparison
    from ragen2.bench.update import UpdateWorkload

TRACES = 64

app = typer.Typer(help="Measure throughput on this machine.", no_args_is_help=True)
app.command("rollout")(bench_rollout)
app.command("step")(bench_step)


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

    from ragen2.bench.environments import measure_env, measure_workloads
    from ragen2.config import apply_override
    from ragen2.envs import Env

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


@app.command("score")
def bench_score(
    model: Annotated[
        str, typer.Option(help="Folder, hub id, GGUF file, run directory, or ragen2-tiny.")
    ] = "ragen2-tiny",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    prompts: Annotated[
        list[int] | None,
        typer.Option(min=2, max=TRACES, help="Columns; may be given often. Left out: 8 and 64."),
    ] = None,
    repeats: RepeatsOption = 3,
    score_tokens: Annotated[
        int, typer.Option(min=1, help="Padded tokens in memory at once, as in a run file.")
    ] = 16_384,
    naive_columns: Annotated[
        int,
        typer.Option(min=0, help="Re-encode so many columns only and scale up; 0 means all."),
    ] = 0,
    out: OutOption = None,
) -> None:
    """Cross-score 64 FrozenLake reasonings, and time it against re-encoding every pair.

    Example: ragen2 bench score --prompts 8 --repeats 1
    """
    check_device(device)
    room = require_torch()
    from ragen2.bench.score import compare, expert_traces, machine
    from ragen2.envs import FrozenLake
    from ragen2.policy import Pair

    policy = room.open_policy(model, device, score_tokens=score_tokens)
    found = []
    for columns in prompts or (8, TRACES):
        traces = expert_traces(FrozenLake(), policy.tokenizer, prompts=columns, traces=TRACES)
        contexts = {trace.prompt_ids_T.tobytes(): trace.prompt_ids_T for trace in traces}.values()
        pairs = [Pair(ids, trace.reasoning_ids_T) for ids in contexts for trace in traces]
        few = TRACES * min(naive_columns, columns) or None
        comparison = compare(policy, pairs, repeats=repeats, naive_pairs=few)
        found.append(
            {
                "traces": TRACES,
                "prompts": columns,
                "prompt_tokens": sum(map(len, contexts)) / columns,
                "trace_tokens": sum(len(trace.reasoning_ids_T) for trace in traces) / TRACES,
                **_as_json(comparison),
            }
        )
        _print_comparison(columns, comparison)
    if out is not None:
        about = {"model": model, "score_tokens": score_tokens, **machine(policy)}
        write_json(out, {**about, "sizes": found})


@app.command("update")
def bench_update(
    prompts: Annotated[int, typer.Option(min=2, help="Groups that are played.")] = 10,
    group_size: Annotated[int, typer.Option(min=2, help="Rollouts of each group.")] = 16,
    share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the prompts the filter keeps.")
    ] = 0.4,
    repeats: RepeatsOption = 3,
    overrides: SetOption = None,
    out: OutOption = None,
) -> None:
    """Update on the same rollouts with and without a filter, and time the filter itself.

    Settings are those of the embedded default.

    Example: ragen2 bench update --prompts 5 --group-size 4 --repeats 1
    """
    room = require_torch()
    from ragen2.bench.update import machine, play_workload, update_costs, workload_config

    config = workload_config(overrides or (), prompts=prompts, group_size=group_size)
    agent = room.open_agent(
        config.model, config.learner, seed=config.seed, algorithm=config.algorithm
    )
    work = play_workload(config, agent.policy, agent.learner, share=share)
    costs = update_costs(agent.learner, work.updates, repeats=repeats)
    found = {name: asdict(cost) for name, cost in costs.items()}
    _print_updates(work, found)
    if out is not None:
        about = {
            **machine(agent.learner),
            "model": config.model.path,
            "algorithm": config.algorithm.kind,
            "prompts": prompts,
            "group_size": group_size,
        }
        write_json(out, {**about, **work.summary(found), "updates": found})


def _print_updates(work: UpdateWorkload, found: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="One update on the same rollouts", title_justify="left")
    for column in ("", "prompts", "seconds", "tokens read"):
        table.add_column(column, justify="right" if column else "left")
    for name, cost in found.items():
        kept = str(int(work.selections[name].kept_P.sum()))
        table.add_row(name, kept, f"{cost['seconds']:.3f}", f"{cost['tokens']:,}")
    Console().print(table)
    told = work.summary(found)
    print(
        f"filtered over unfiltered: {told['seconds_ratio']:.2f} of the time, "
        f"{told['tokens_ratio']:.2f} of the tokens"
    )
    print(
        f"choosing the prompts: {1000 * told['seconds_select']:.3f} ms, {told['select_share']:.4%} of "
        "rollout and filtered update"
    )


def _print_comparison(columns: int, comparison: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{TRACES} traces x {columns} prompts", title_justify="left")
    for column in ("", "seconds", "tokens read", "peak memory, MiB"):
        table.add_column(column, justify="right" if column else "left")
    for name, cost in (("ours", comparison.ours), ("naive", comparison.naive)):
        peak = "not measured" if cost.peak_bytes is None else f"{cost.peak_bytes / 2**20:,.0f}"
        table.add_row(name, f"{cost.seconds:.3f}", f"{cost.tokens:,}", peak)
    Console().print(table)
    told = f"{comparison.speedup:.1f} times faster; largest difference of a token's log-prob "
    told += f"{comparison.difference:.1e} in float32"
    if comparison.timed_difference != comparison.difference:
        told += f", {comparison.timed_difference:.1e} as timed"
    if comparison.naive_ratio < 1:
        told += f"; naive scored {comparison.naive_ratio:.0%} of the pairs, scaled up"
    print(told)


def _as_json(comparison: Comparison) -> dict[str, Any]:
    return {**asdict(comparison), "speedup": comparison.speedup}
