"""``ragen2 bench``: how fast the parts are on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ragen2.cli.shared import (
    SetOption,
    TrustOption,
    make_env,
    plugin_rule,
    require_torch,
    write_json,
)
from ragen2.errors import ConfigError

if TYPE_CHECKING:
    from ragen2.backends.settings import Precision
    from ragen2.config import RunConfig

ModelOption = Annotated[
    str, typer.Option(help="Folder, hub id, GGUF file, run directory, or ragen2-tiny.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
RepeatsOption = Annotated[int, typer.Option(min=1, help="Timed runs of each; the median counts.")]
OutOption = Annotated[Path | None, typer.Option(help="Also write all figures here, as JSON.")]

app = typer.Typer(help="Measure throughput on this machine.", no_args_is_help=True)


@app.command("rollout")
def bench_rollout(  # noqa: PLR0913, PLR0917 - one parameter per flag
    model: ModelOption = "ragen2-tiny",
    device: DeviceOption = "auto",
    dtype: Annotated[
        str, typer.Option(help="auto, float32 or bfloat16; auto is bfloat16 on a GPU.")
    ] = "auto",
    sequences: Annotated[int, typer.Option(min=1, help="Completions written at once.")] = 128,
    prompts: Annotated[int, typer.Option(min=1, help="Distinct prompts among them.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 86,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a completion.")] = 128,
    repeats: RepeatsOption = 3,
    check_greedy: Annotated[
        bool,
        typer.Option("--check-greedy", help="Also compare greedy tokens, in float32."),
    ] = False,
    out: OutOption = None,
) -> None:
    """Write completions with our sampler and with `model.generate`, in turn, on the same prompts.

    Example: ragen2 bench rollout --sequences 16 --new-tokens 32 --repeats 1
    """
    _check_choice("--device", device, ("auto", "cpu", "cuda"))
    _check_choice("--dtype", dtype, ("auto", "float32", "bfloat16"))
    require_torch()
    from ragen2.bench import rollout as bench
    from ragen2.bench.device import copy_bandwidth, machine
    from ragen2.cli.views.bench import print_greedy, print_rollouts

    size = bench.RolloutSize(sequences, prompts, prompt_tokens, new_tokens)
    policy = bench.open_endless(model, device, cast("Precision", dtype))
    engine = bench.engine_of(policy)
    costs = bench.rollout_costs(policy, size, repeats=repeats)
    limit = bench.limit_of(policy, size, copy_bandwidth(policy.device))
    gap = bench.logprob_gap(policy, size)
    greedy = bench.greedy_agreement(policy, size) if check_greedy else None
    print_rollouts(f"{size.describe()}; engine: {engine}", costs, limit, gap)
    if greedy is not None:
        print_greedy(greedy)
    found = {
        "model": model,
        "dtype": str(policy.dtype).removeprefix("torch."),
        "engine": engine,
        **machine(policy.device),
        **asdict(size),
        "ways": {name: asdict(cost) for name, cost in costs.items()},
        "limit": {**asdict(limit), "tokens_per_second": limit.tokens_per_second},
        "logprob_gap": asdict(gap),
        "greedy": None if greedy is None else asdict(greedy),
    }
    _write(out, found)


@app.command("step")
def bench_step(  # noqa: PLR0913, PLR0917 - one parameter per flag
    run_file: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN.toml]", help="A run file or recipe; left out, the default."),
    ] = None,
    overrides: SetOption = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, help="Groups per step; left out, as in the run file.")
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(min=2, help="Rollouts of each; left out, as in the run file.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed steps.")] = 10,
    warmup: Annotated[int, typer.Option(min=1, help="Steps before them that do not count.")] = 2,
    against: Annotated[
        str | None,
        typer.Option(metavar="trl", help="Do the same single-turn job with TRL's GRPOTrainer."),
    ] = None,
    way: Annotated[
        list[str] | None,
        typer.Option(
            help="How TRL writes: generate, static, continuous or bfloat16; may be given often. Left "
            "out: all of them on a GPU, the first two on a CPU."
        ),
    ] = None,
    out: OutOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Time whole steps of a run, phase by phase; with --against trl, a single-turn job against TRL.

    Example: ragen2 bench step --set rollout.max_tokens=16 --prompts 2 --repeats 2
    """
    if against is not None:
        _check_choice("--against", against, ("trl",))
    elif way:
        raise ConfigError("--way is for --against trl; add that or leave --way out")
    changes = list(overrides or ())
    changes += [] if prompts is None else [f"rollout.prompts={prompts}"]
    changes += [] if group_size is None else [f"rollout.group_size={group_size}"]
    require_torch()
    from ragen2.bench.peer_job import peer_config
    from ragen2.config import load_run

    load = load_run if against is None else peer_config
    config = load(run_file, changes, plugins=plugin_rule(trust=trust_plugins))
    if against is None:
        found = _time_phases(config, warmup, repeats)
    else:
        found = _time_against_trl(config, warmup, repeats, way)
    _write(out, found)


def _time_phases(config: RunConfig, warmup: int, repeats: int) -> dict[str, Any]:
    from ragen2.bench.step import measure_steps, measured_on, open_timed
    from ragen2.cli.views.bench import print_phases

    agent = open_timed(config)
    costs = measure_steps(config, agent.local, agent.learner, warmup=warmup, repeats=repeats)
    print_phases(costs)
    about = {**measured_on(config, agent.local), "warmup": warmup}
    return {**about, **asdict(costs), "shares": costs.shares}


def _time_against_trl(
    config: RunConfig, warmup: int, repeats: int, modes: Sequence[str] | None
) -> dict[str, Any]:
    from ragen2.bench.step import open_timed
    from ragen2.bench.trl import compare_with_trl, import_trl
    from ragen2.cli.views.bench import print_trl

    import_trl()
    agent = open_timed(config)
    found = compare_with_trl(config, agent, modes=modes, warmup=warmup, repeats=repeats)
    print_trl(found)
    return found


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
    """Resets and steps per second of each environment; with no NAME, also what training asks of them.

    Example: ragen2 bench envs Sokoban --seconds 0.2
    """
    from ragen2.bench.environments import measure_env, measure_workloads
    from ragen2.cli.views.bench import print_env_speeds
    from ragen2.envs import Env

    chosen = [make_env(name, overrides) for name in names or Env.kinds()]
    print_env_speeds({env.kind: measure_env(env, seconds) for env in chosen})
    if not names:
        for workload in measure_workloads():
            print(f"{workload.what}: {workload.seconds:.4f} s")


@app.command("score")
def bench_score(
    model: ModelOption = "ragen2-tiny",
    device: DeviceOption = "auto",
    prompts: Annotated[
        list[int] | None,
        typer.Option(min=2, max=64, help="Columns; may be given often. Left out: 8 and 64."),
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
    """Cross-score 64 FrozenLake reasoning traces, and time it against re-encoding every pair.

    Example: ragen2 bench score --prompts 8 --repeats 1
    """
    _check_choice("--device", device, ("auto", "cpu", "cuda"))
    policy = require_torch().open_policy(model, device, score_tokens=score_tokens)
    from ragen2.bench.score import TRACES, compare_prompts, measured_on
    from ragen2.cli.views.bench import print_comparison

    found = []
    for columns in prompts or (8, TRACES):
        comparison, sizes = compare_prompts(
            policy, columns, repeats=repeats, naive_columns=naive_columns
        )
        print_comparison(TRACES, columns, comparison)
        found.append({**sizes, **asdict(comparison), "speedup": comparison.speedup})
    about = {"model": model, "score_tokens": score_tokens, **measured_on(policy)}
    _write(out, {**about, "sizes": found})


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
    torch_backends = require_torch()
    from ragen2.bench.device import machine
    from ragen2.bench.step import play_workload, update_costs, workload_config
    from ragen2.cli.views.bench import print_updates

    config = workload_config(overrides or (), prompts=prompts, group_size=group_size)
    agent = torch_backends.open_agent(
        config.model, config.learner, seed=config.seed, algorithm=config.algorithm
    )
    work = play_workload(config, agent.policy, agent.learner, share=share)
    costs = update_costs(agent.learner, work.updates, repeats=repeats)
    found = {name: asdict(cost) for name, cost in costs.items()}
    kept = {name: int(selection.kept_P.sum()) for name, selection in work.selections.items()}
    summary = work.summary(found)
    print_updates(kept, found, summary)
    about = {
        **machine(agent.learner.device),
        "model": config.model.path,
        "algorithm": config.algorithm.kind,
        "prompts": prompts,
        "group_size": group_size,
    }
    _write(out, {**about, **summary, "updates": found})


def _check_choice(flag: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        *first, last = choices
        known = f"{', '.join(first)} or {last}" if first else last
        raise ConfigError(f"{flag} must be {known}, got {value}")


def _write(out: Path | None, found: dict[str, Any]) -> None:
    if out is not None:
        write_json("--out", out, found)
