"""What several verbs share: options, exit codes, torch with a clear error, dry runs, JSON files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragen2.errors import DependencyError, RunError

if TYPE_CHECKING:
    from types import ModuleType

    from ragen2.config import RunConfig
    from ragen2.consent import PluginRule
    from ragen2.envs import Env

EXIT_FAILED = 1
EXIT_USER = 2
EXIT_INTERRUPTED = 130

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a setting; may be given often."),
]

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="MODEL", help="The agent: a folder, hub id or GGUF file (model.path)."
    ),
]
EnvOption = Annotated[
    str | None,
    typer.Option("--env", metavar="NAME", help="Environment (env.kind); see ragen2 envs list."),
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", metavar="N", min=1, help="Steps of the run (steps).")
]
PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="Import a file or module with kinds of your own (added to plugins); may be given often.",
    ),
]

TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-plugins",
        help="Let the file import its plug-ins, run its command and use its servers; asked once for each.",
    ),
]


def plugin_rule(*, trust: bool, dry_run: bool = False) -> PluginRule:
    """What the flags say about the plug-ins of a file."""
    if dry_run:
        return "skip"
    return "trust" if trust else "known"


def with_shorthands(
    overrides: Sequence[str] | None,
    *,
    model: str | None = None,
    env: str | None = None,
    steps: int | None = None,
    plugins: Sequence[str] | None = None,
) -> list[str]:
    """What --model, --env, --steps and --plugin stand for as overrides, and those of ``--set`` over them."""
    named = {"plugins+": list(plugins or ()), "model.path": model, "env.kind": env, "steps": steps}
    # JSON: what a name looks like (3, true, a quote in it) must not change what it is.
    flags = [
        f"{path}={json.dumps(value)}" for path, value in named.items() if value not in (None, [])
    ]
    return [*flags, *(overrides or ())]


def as_flags(tables: Mapping[str, Any]) -> list[str]:
    """Words of a command line that give these settings: flags where there are some, ``--set`` elsewhere."""
    words: list[str] = []
    for path, value in _leaves(tables):
        if path == "plugins":
            words += [word for one in value for word in ("--plugin", one)]
        elif path == "env.kind":
            words += ["--env", value]
        else:
            words += ["--set", f"{path}={json.dumps(value)}"]
    return words


def _leaves(tables: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def require_torch() -> ModuleType:
    """``ragen2.backends.agent``, or a line that says how to install what it needs."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # On busy cores, threads that wait by spinning slow a small model down several times over.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        from ragen2.backends import agent as torch_backends
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ragen2"):
            raise
        raise DependencyError(
            f"this needs torch and transformers ({error.name} is missing); pip install 'ragen2[train]'"
        ) from error
    torch_backends.quiet_transformers()
    return torch_backends


def new_run_path(config: RunConfig) -> Path:
    """Where a run goes that was given no folder."""
    return Path("runs") / time.strftime(f"{config.env.kind}-{config.algorithm.kind}-%Y%m%d-%H%M%S")


def make_env(name: str, overrides: list[str] | None) -> Env:
    """The environment of that name; ``--set`` may say ``env.size=5`` or ``size=5``."""
    from ragen2.config import apply_override
    from ragen2.envs import Env

    data: dict[str, object] = {"kind": name}
    for override in overrides or ():
        data = apply_override(data, override.removeprefix("env."))
    return Env.from_dict(data, name)


def write_json(flag: str, file: Path, found: dict[str, Any]) -> None:
    """All that was found, for a program to read; ``flag`` is named where it cannot be written."""
    write_text(flag, file, json.dumps(found, indent=1) + "\n")


def write_text(flag: str, file: Path, text: str) -> None:
    """The whole file or none; ``flag`` is named where it cannot be written."""
    from ragen2.runs.files import write_atomically

    try:
        write_atomically(file, text)
    except OSError as error:
        raise RunError(f"{flag} {file} cannot be written: {error.strerror}") from error


def print_unchecked(config: RunConfig) -> None:
    """A comment that names the kinds of plug-ins, if there are any."""
    from ragen2.config import unchecked_kinds

    found = unchecked_kinds(config).items()
    named = ", ".join(f"{path} {kind}" for path, kinds in found for kind in kinds)
    if named:
        print(f"# not checked, because a dry run imports no plug-in: {named}")


def print_settings(config: RunConfig, *, full: bool, name: str = "") -> None:
    """A run file that gives the same run again, with comments above it; ``name`` is that of a job."""
    import tomli_w

    from ragen2.config import changed_settings, count_settings, dump_config

    if name:
        print(f"# {name}")
    print_unchecked(config)
    if full:
        print(dump_config(config), end="")
        return
    changed = changed_settings(config)
    everything = count_settings(config.model_dump(mode="json", exclude_none=True))
    rollout = config.rollout
    print(
        f"# {config.env.kind}, {config.algorithm.kind}, filter {config.filter.kind}, model "
        f"{config.model.path}: {config.steps} steps of {rollout.prompts} prompts x "
        f"{rollout.group_size} rollouts"
    )
    print(
        f"# {count_settings(changed)} of {everything} settings differ from their defaults; "
        "--full prints every one"
    )
    print(tomli_w.dumps(changed), end="")
