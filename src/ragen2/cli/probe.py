"""``ragen2 probe``: which part of the loss pulls on prompts with little and with much reward variance?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragen2.cli.shared import (
    EnvOption,
    PluginOption,
    SetOption,
    TrustOption,
    plugin_rule,
    require_torch,
    with_shorthands,
)
from ragen2.errors import ConfigError, RunError

if TYPE_CHECKING:
    from ragen2.backends.agent import Agent
    from ragen2.config import RunConfig
    from ragen2.consent import PluginRule
    from ragen2.diagnostics.metrics.gradients import ProbeRecord

PROMPTS, GROUP_SIZE = 48, 16


def probe(  # noqa: PLR0913 - one parameter per flag
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run directory.")],
    *,
    step: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Checkpoint to probe; 0 is the starting model.",
            show_default="newest checkpoint",
        ),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Tasks to play.")] = PROMPTS,
    group_size: Annotated[int, typer.Option(min=2, help="Rollouts of each.")] = GROUP_SIZE,
    buckets: Annotated[
        int | None,
        typer.Option(
            min=1, help="Equal buckets by reward variance.", show_default="the run's own, or 6"
        ),
    ] = None,
    edges: Annotated[
        str | None,
        typer.Option(metavar="0,A,B", help="Lower edges of variance buckets, instead."),
    ] = None,
    env: EnvOption = None,
    plugin: PluginOption = None,
    overrides: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for probe.json and probe.html.",
            show_default="RUN_DIR/probe/step_N",
        ),
    ] = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Take the gradients of a checkpoint apart, on one batch of new tasks.

    Example: ragen2 probe runs/try --prompts 24 --group-size 8 --edges 0,0.05,0.2
    """
    from ragen2.consent import link_risks, require_consent
    from ragen2.runs.store import RunDirectory
    from ragen2.trainer.resume import refuse_edited

    RunDirectory.open(run_dir)
    flags = [f"rollout.prompts={prompts}", f"rollout.group_size={group_size}"]
    named = with_shorthands(overrides, env=env, plugins=plugin)
    changes = [*flags, *_bucket_flags(buckets, edges), *named]
    config = _config(run_dir, changes, plugin_rule(trust=trust_plugins))
    chosen, folder = _checkpoint(run_dir, step)
    place = f"probe/step_{chosen:06d}"
    if out is None:
        links = link_risks(run_dir, ("probe", place))
        require_consent(f"run {run_dir}", links, trust=trust_plugins)
    target = out or run_dir / place
    if target.exists() and not target.is_dir():
        raise RunError(f"--out {target} is a file; choose a folder")
    refuse_edited(run_dir, folder)
    agent = _open(config, folder)
    record = _probe(config, agent, run_dir, chosen)
    _write(record, target)
    from ragen2.cli.views.verdicts import print_probe

    print_probe(record, target)


def _bucket_flags(buckets: int | None, edges: str | None) -> list[str]:
    if buckets is not None and edges is not None:
        raise ConfigError("--buckets and --edges exclude each other; leave one out")
    if edges is not None:
        try:
            numbers = [float(edge) for edge in edges.split(",")]
        except ValueError:
            raise ConfigError(
                f"--edges takes numbers with commas between, got {edges!r}; for example 0,0.05,0.2"
            ) from None
        return [f"probe.edges={numbers}"]
    return ["probe.edges=[]", f"probe.buckets={buckets}"] if buckets is not None else []


def _config(run_dir: Path, overrides: Sequence[str], plugins: PluginRule) -> RunConfig:
    """The run's settings with what was asked for over them; the model stays the run's own."""
    from ragen2.config import load_run

    own = load_run(run_dir / "run.toml", plugins="skip")
    config = load_run(run_dir / "run.toml", overrides, plugins=plugins)
    if config.rollout.group_size < 2:
        raise ConfigError(
            f"rollout.group_size must be at least 2 to have a variance, got {config.rollout.group_size}"
        )
    for name in ("path", "lora_rank", "lora_alpha", "frozen"):
        if getattr(config.model, name) != getattr(own.model, name):
            raise ConfigError(f"--set model.{name}: a checkpoint has its run's model; leave it out")
    return config


def _checkpoint(run_dir: Path, step: int | None) -> tuple[int, Path | None]:
    """Step and folder to probe; no folder for the starting model."""
    from ragen2.runs.checkpoints import (
        checkpoint_step,
        find_damage,
        list_checkpoints,
        newest_checkpoint,
    )

    if step == 0:
        return 0, None
    there = {checkpoint_step(folder): folder for folder in list_checkpoints(run_dir)}
    if not there:
        raise RunError(
            f"{run_dir} has no checkpoint yet; train it, or probe the start with --step 0"
        )
    if step is None:
        newest = newest_checkpoint(run_dir)
        if newest is None:
            raise RunError(
                f"every checkpoint of {run_dir} is damaged; probe the start with --step 0"
            )
        return checkpoint_step(newest), newest
    if step not in there:
        steps = ", ".join(map(str, there))
        raise RunError(f"{run_dir} has no checkpoint of step {step}; there are those of {steps}")
    damage = find_damage(there[step])
    if damage:
        raise RunError(
            f"checkpoint {there[step]} is damaged ({damage}); choose another with --step"
        )
    return step, there[step]


def _open(config: RunConfig, folder: Path | None) -> Agent:
    """The starting model is remembered first: it is what KL is measured against.

    Our own engine plays: a server may be busy with the run that is probed.
    """
    from ragen2.cli.views.waiting import waiting

    with waiting(config.model.path):
        agent: Agent = require_torch().open_agent(
            config.model.model_copy(update={"engine": "auto"}),
            config.learner,
            seed=config.seed,
            algorithm=config.algorithm,
            steps=config.steps,
        )
    agent.learner.keep_reference()
    if folder is not None:
        agent.learner.load(folder)
    return agent


def _probe(config: RunConfig, agent: Agent, run_dir: Path, step: int) -> ProbeRecord:
    from ragen2.cli.views.verdicts import probe_progress
    from ragen2.diagnostics.metrics.gradients import ProbeRecord, broken_numbers
    from ragen2.trainer.probe import kl_estimator, play_probe, probe_gradients

    with probe_progress(config.rollout.prompts) as tell:
        started = time.perf_counter()
        groups = play_probe(config, agent.policy, step)
        played = time.perf_counter()
        found = probe_gradients(
            config, agent.learner, groups, config.probe, has_reference=True, tell=tell
        )
    seconds = {"rollout": played - started, "gradients": time.perf_counter() - played}
    if not found.buckets[-1].norms:
        raise RunError(f"no rollout of {config.env.kind} wrote a token; there is nothing to probe")
    broken = broken_numbers(found)
    if broken:
        raise RunError(
            f"the gradient is not finite ({broken[0]}); probe an earlier step with --step"
        )
    return ProbeRecord(
        run=run_dir.resolve().name,
        step=step,
        model=config.model.path,
        env=config.env.kind,
        algorithm=config.algorithm.kind,
        aggregation=config.algorithm.aggregation,
        kl_estimator=kl_estimator(config.algorithm),
        num_prompts=config.rollout.prompts,
        group_size=config.rollout.group_size,
        edges=config.probe.edges,
        buckets=found.buckets,
        prompts=found.prompts,
        trends=found.trends(),
        prompt_correlation=found.prompt_correlation(),
        seconds={name: round(value, 2) for name, value in seconds.items()},
    )


def _write(record: ProbeRecord, folder: Path) -> None:
    """Both files are made before the first is written, each whole or not at all."""
    from ragen2.reports.data.report import probe_report
    from ragen2.reports.page import render
    from ragen2.runs.files import write_atomically

    texts = {
        "probe.json": record.model_dump_json(indent=1) + "\n",
        "probe.html": render(probe_report(record).data, {}),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(folder / name, text)
    except OSError as error:
        raise RunError(
            f"--out {folder} cannot be written: {error.strerror}; choose another folder"
        ) from error
