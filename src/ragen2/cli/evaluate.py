"""``ragen2 eval``: how well does a model play, and has it collapsed?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragen2.backends.remote.journal import JOURNAL_FILE
from ragen2.cli.shared import (
    PluginOption,
    SetOption,
    TrustOption,
    plugin_rule,
    require_torch,
    with_shorthands,
    write_json,
)
from ragen2.errors import ConfigError, ModelError, RunError
from ragen2.runs.files import write_atomically
from ragen2.runs.lock import one_writer
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.runs.trajectories import group_lines, images_of

if TYPE_CHECKING:
    from ragen2.backends.settings import ServerSettings
    from ragen2.config import RunConfig
    from ragen2.consent import PluginRule
    from ragen2.policy import Policy, TextSampler
    from ragen2.trainer.evaluate import Assessment

TASKS = 256
OWN_SETTINGS = ("plugins", "env", "rollout", "prompt", "evaluation")
"""What a run brings to its evaluation; the rest of its file is about training."""
EVALUATED_FILE = "evaluation.jsonl"
"""Held-out tasks, one trajectory per line; ``rollouts/`` has the groups that were cross-scored."""
STEP = 0


def evaluate(  # noqa: PLR0913 - one parameter per flag
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="Folder, hub id, GGUF file, run directory or http://server#NAME."
        ),
    ] = None,
    *,
    named: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The same as MODEL.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Environment (env.kind); left out, the run's own, or FrozenLake."
        ),
    ] = None,
    plugin: PluginOption = None,
    tasks: Annotated[
        int | None,
        typer.Option(min=1, help=f"Held-out tasks to play; left out, the run's own, or {TASKS}."),
    ] = None,
    collapse: Annotated[
        bool,
        typer.Option(
            "--collapse/--no-collapse",
            help="Also play groups, at most as many episodes as tasks, and cross-score their reasoning.",
        ),
    ] = True,
    overrides: SetOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all metrics here.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Run directory for all that is played; with a server, the same command goes on "
            "after an interruption.",
        ),
    ] = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Play held-out tasks and cross-score the reasoning.

    A run directory is evaluated under its own settings; --env, --tasks and --set go over them.

    Example: ragen2 eval runs/try --tasks 64 --set env.slip=0.1
    """
    from ragen2.cli.views.verdicts import print_verdict
    from ragen2.cli.views.waiting import waiting
    from ragen2.config import dump_config
    from ragen2.trainer.evaluate import assess

    if (model is None) == (named is None):
        raise ConfigError("eval needs one model: name it once, as MODEL or with --model")
    model = model or named or ""
    changes = with_shorthands(overrides, env=env, plugins=plugin)
    rule = plugin_rule(trust=trust_plugins)
    config = evaluation_config(model, tasks, changes, rule)
    with _writing(out):
        run = start_run(out, dump_config(config)) if out is not None else None
        with waiting(model):
            policy = open_policy(model, config, out)
        with _usage_printed(policy, out), waiting(model, is_open=True):
            verdict = assess(config, policy, scores_reasoning=collapse)
        if run is not None:
            finish_run(run, verdict)
    print_verdict(model, config.env.kind, verdict)
    if json_file is not None:
        write_verdict(json_file, model, verdict)


@contextmanager
def _usage_printed(policy: Policy | TextSampler, out: Path | None) -> Iterator[None]:
    """Say what a server took, also when it is interrupted, and how to go on then."""
    from ragen2.backends.remote.policy import ChatServer, ServerPolicy

    served = policy if isinstance(policy, ServerPolicy | ChatServer) else None
    try:
        yield
    except (KeyboardInterrupt, ModelError):
        if out is not None and served is not None:
            print(
                f"stopped; all answers so far are in {out}: the same command goes on from there",
                file=sys.stderr,
            )
        raise
    finally:
        if served is not None:
            print(served.usage_line())


def open_policy(model: str, config: RunConfig, out: Path | None = None) -> Policy | TextSampler:
    """The model itself, or the server that has it, whose completions are kept in ``out``."""
    if not model.startswith(("http://", "https://")):
        torch_backends = require_torch()
        local = torch_backends.open_policy(
            model, config.model.device, score_tokens=config.model.score_tokens
        )
        settings = config.model.model_copy(update={"path": model})
        opened: Policy = torch_backends.learner_policy(local, settings, config.server)
        return opened
    from ragen2.audit.likelihoods import server_and_model

    url, name = server_and_model(model, config.server.api_key_env)
    journal = out / JOURNAL_FILE if out is not None else None
    if config.server.api == "chat":
        return _chat_server(url, name, config.server, journal)
    return _token_server(url, name, config, journal)


def _chat_server(
    url: str, name: str, settings: ServerSettings, journal: Path | None
) -> TextSampler:
    from ragen2.backends.remote.journal import Journal
    from ragen2.backends.remote.policy import ChatServer

    kept = Journal(journal, name) if journal is not None else None
    return ChatServer(url, name, settings, kept)


def _token_server(url: str, name: str, config: RunConfig, journal: Path | None) -> Policy:
    """The tokenizer of a served model is found by the name it is served under, or by ``model.path``."""
    tokenizer = config.model.path if "path" in config.model.model_fields_set else name
    served: Policy = require_torch().open_server(
        url, name, tokenizer, settings=config.server, journal=journal
    )
    return served


def evaluation_config(
    model: str,
    tasks: int | None,
    overrides: Sequence[str],
    plugins: PluginRule = "known",
) -> RunConfig:
    """The settings to evaluate under: the run's own if ``model`` is one, then what was asked for."""
    from ragen2.config import RunConfig, merge, read_toml, resolve_config

    data: dict[str, Any] = {
        "env": {"kind": "FrozenLake"},
        "evaluation": {"tasks": TASKS},
        "prompt": _prompt(model, overrides),
    }
    run_file = _run_file(Path(model))
    if run_file is not None:
        _refuse_edited(run_file.parent, Path(model))
        run = read_toml(run_file)
        data = merge(data, {name: run[name] for name in OWN_SETTINGS if name in run})
    if tasks is not None:
        data = merge(data, {"evaluation": {"tasks": tasks}})
    return resolve_config(RunConfig, data, overrides, f"run file {run_file}", plugins)


def _prompt(model: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What the model was taught with; a served one is known by its tokenizer or by its name."""
    from ragen2.rollout.prompts import taught_prompt

    if model.startswith(("http://", "https://")):
        given = [one.partition("=")[2] for one in overrides if one.startswith("model.path=")]
        model = given[-1] if given else model.partition("#")[2]
    return (taught_prompt(model) if model else None) or {"style": "reference"}


def _refuse_edited(run: Path, model: Path) -> None:
    """A run is evaluated on what it was trained on, not on what its run.toml was made to say later."""
    from ragen2.runs.checkpoints import list_checkpoints
    from ragen2.trainer.resume import refuse_edited

    newest = next(reversed(list_checkpoints(run)), None) if model == run else model
    refuse_edited(run, newest, OWN_SETTINGS)


def _run_file(model: Path) -> Path | None:
    """run.toml of a run directory, or of the run that a checkpoint belongs to."""
    folders = [model, model.parent.parent] if model.parent.name == "checkpoints" else [model]
    return next((f / "run.toml" for f in folders if (f / "run.toml").is_file()), None)


def start_run(out: Path, run_toml: str) -> RunDirectory:
    """A new directory, or that of an evaluation of a served model, which is gone on with.

    Settings may have changed since: completions are found by all that decides them.
    """
    if not (out / JOURNAL_FILE).is_file():
        _refuse_taken(out)
        return RunDirectory.create(out, run_toml)
    try:
        write_atomically(out / "run.toml", run_toml)
    except OSError as error:
        raise RunError(f"--out {out} cannot be written: {error.strerror}") from error
    return RunDirectory(out)


@contextmanager
def _writing(out: Path | None) -> Iterator[None]:
    """The only writer of ``--out``; what is there already and is no evaluation is not even locked."""
    if out is None:
        yield
        return
    _refuse_taken(out)
    with one_writer(out):
        yield


def _refuse_taken(out: Path) -> None:
    if (out / JOURNAL_FILE).is_file():
        return
    try:
        RunDirectory.refuse_taken(out)
    except RunError as error:
        raise RunError(f"--out {out} exists and is not empty; choose another folder") from error


def finish_run(run: RunDirectory, verdict: Assessment) -> None:
    """Trajectories and numbers, in place of those of an earlier evaluation there."""
    run.rewind(STEP - 1)
    run.save_rollouts(STEP, verdict.groups)
    run.images.save(STEP, (image for group in verdict.evaluated for image in images_of(group)))
    lines = [line for group in verdict.evaluated for line in group_lines(group, STEP)]
    file = run.path / EVALUATED_FILE
    try:
        write_atomically(file, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror}") from error
    record = StepRecord(
        step=STEP,
        metrics=verdict.metrics,
        absent=verdict.absent,
        regime=verdict.regime,
        files=run.digests(STEP),
    )
    run.append(record)


def write_verdict(file: Path, model: str, verdict: Assessment) -> None:
    """All that was found, for a program to read."""
    found = {
        "model": model,
        "regime": verdict.regime,
        "metrics": verdict.metrics,
        "absent": verdict.absent,
    }
    write_json("--json", file, found)
