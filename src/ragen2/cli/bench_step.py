"""``ragen2 bench step``: seconds of whole training steps, by phase and against TRL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragen2.bench.output import OutOption, print_table, write_json
from ragen2.cli.options import SetOption, require_torch
from ragen2.errors import ConfigError

if TYPE_CHECKING:
    from ragen2.backends.agent import Agent
    from ragen2.backends.sampling.hf import HFPolicy
    from ragen2.bench.step import StepCosts
    from ragen2.config import RunConfig


def bench_step(  # noqa: PLR0913, PLR0917 - one parameter a flag
    run_file: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN.toml]", help="A run file or recipe; left out, the default."),
    ] = None,
    overrides: SetOption = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, help="Groups a step; left out, as in the run file.")
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
) -> None:
    """Time whole steps of a run, phase by phase; with --against trl, a single-turn job against TRL.

    Example: ragen2 bench step --set rollout.max_tokens=16 --prompts 2 --repeats 2
    """
    if against not in {None, "trl"}:
        raise ConfigError(f"--against must be trl, got {against}")
    if way and against is None:
        raise ConfigError("--way is for --against trl; add that or leave --way out")
    changes = list(overrides or ())
    changes += [] if prompts is None else [f"rollout.prompts={prompts}"]
    changes += [] if group_size is None else [f"rollout.group_size={group_size}"]
    if against is None:
        found = _phases(run_file, changes, warmup, repeats)
    else:
        found = _against_trl(run_file, changes, warmup, repeats, way)
    if out is not None:
        write_json(out, found)


def _phases(
    run_file: Path | None, changes: Sequence[str], warmup: int, repeats: int
) -> dict[str, Any]:
    from ragen2.bench.step import measure_steps
    from ragen2.config import load_run

    config = load_run(run_file, changes)
    agent = _open(config)
    costs = measure_steps(config, agent.local, agent.learner, warmup=warmup, repeats=repeats)
    _print_phases(costs)
    return {
        **_about(config, agent.local),
        "warmup": warmup,
        **asdict(costs),
        "shares": costs.shares,
    }


def _against_trl(
    run_file: Path | None,
    changes: Sequence[str],
    warmup: int,
    repeats: int,
    ways: Sequence[str] | None,
) -> dict[str, Any]:
    require_torch()
    from ragen2.bench import trl as bench
    from ragen2.bench.peer_job import our_step, peer_config, prompts_of, rewards_of
    from ragen2.bench.rollout import endless_policy

    bench.import_trl()
    config = peer_config(run_file, changes)
    agent = _open(config)
    policy = endless_policy(
        agent.local.network,
        agent.local.tokenizer,
        precision=config.model.precision,
        engine=config.model.engine,
    )
    job = bench.PeerJob(
        prompts=[
            task
            for step in range(1, warmup + repeats + 1)
            for task in prompts_of(config, policy, step).items()
        ],
        reward=lambda seeds, replies: rewards_of(config, policy, seeds, replies),
        prompts_a_step=config.rollout.prompts,
        group_size=config.rollout.group_size,
        max_tokens=config.rollout.max_tokens,
        temperature=config.rollout.temperature,
        lr=config.learner.lr,
    )
    races = bench.race_all(
        policy,
        job,
        bench.chosen_ways(ways, policy.device),
        our_step=lambda step: our_step(config, policy, agent.learner, step),
        warmup=warmup,
    )
    _print_races(races)
    return {
        **_about(config, policy),
        "trl": bench.TRL_VERSION,
        "warmup": warmup,
        "new_tokens": job.max_tokens,
        "prompt_tokens": job.prompt_tokens,
        "peer_prompt_tokens": bench.peer_prompt_tokens(policy.tokenizer, job),
        **races,
    }


def _open(config: RunConfig) -> Agent:
    if config.model.engine in {"vllm", "server"}:
        raise ConfigError(
            f'bench step times our own engines, got model.engine = "{config.model.engine}"; leave it out'
        )
    room = require_torch()
    agent: Agent = room.open_agent(
        config.model,
        config.learner,
        seed=config.seed,
        algorithm=config.algorithm,
        steps=config.steps,
    )
    return agent


def _about(config: RunConfig, policy: HFPolicy) -> dict[str, Any]:
    from ragen2.bench.rollout import engine_of, machine

    return {
        **machine(policy.device),
        "engine": engine_of(policy),
        "model": config.model.path,
        "env": config.env.kind,
        "prompts": config.rollout.prompts,
        "group_size": config.rollout.group_size,
        "max_tokens": config.rollout.max_tokens,
        "max_turns": config.env.max_turns,
    }


def _print_phases(costs: StepCosts) -> None:
    rows = [
        (name, f"{seconds:.3f}", f"{costs.shares[name]:.1%}")
        for name, seconds in costs.phases.items()
    ]
    rows.append(("step", f"{costs.seconds:.3f}", "100.0%"))
    print_table(f"Mean of {len(costs.steps)} steps", ("phase", "seconds", "share"), rows)
    print(
        f"sampled {costs.sampled_tokens:,.0f} tokens a step, "
        f"{costs.sampled_tokens / costs.phases['rollout']:,.0f}/s in rollout; trained on "
        f"{costs.trained_tokens:,.0f}, {costs.trained_tokens / costs.phases['update']:,.0f}/s in update; "
        f"first step {costs.first_seconds:.3f} s; one evaluation {costs.seconds_evaluation:.3f} s"
    )


def _print_races(races: dict[str, Any]) -> None:
    rows = []
    for name, found in races["ways"].items():
        if "failed" in found:
            rows.append((name, "does not run here", "", ""))
            continue
        cells = (found["theirs"]["seconds_a_token"], found["ours"]["seconds_a_token"])
        shown = (f"{1e6 * seconds:,.1f}" for seconds in cells)
        rows.append((name, *shown, f"{found['ratio']:.2f}"))
    columns = ("TRL writes by", "TRL, µs a token", "ours, µs a token", "ratio")
    print_table("One step of the same single-turn job", columns, rows)
    for name, found in races["ways"].items():
        if "failed" in found:
            print(f"{name}: {found['failed']}")
    print(
        f"ours is {races['ratio']:.2f} times as fast as TRL's fastest way, {races['fastest']}; by "
        f"processor time {races['cpu_ratio']:.2f} times"
    )
