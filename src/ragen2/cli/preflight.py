"""``ragen2 preflight``: one batch before a run: is there something to learn, and should it be filtered?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragen2.cli.shared import (
    EnvOption,
    ModelOption,
    PluginOption,
    SetOption,
    StepsOption,
    TrustOption,
    plugin_rule,
    require_torch,
    with_shorthands,
    write_json,
)
from ragen2.errors import RunError


def preflight(  # noqa: PLR0913 - one parameter per flag
    run_file: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN.toml]", help="A run file; left out, the embedded default."),
    ] = None,
    *,
    model: ModelOption = None,
    env: EnvOption = None,
    steps: StepsOption = None,
    plugin: PluginOption = None,
    overrides: SetOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write everything here.")
    ] = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Play one batch, train nothing, and say what there is to learn from.

    Example: ragen2 preflight --env Bandit --set rollout.prompts=16 --json preflight.json
    """
    from rich.console import Console

    from ragen2.cli.views.preflight import show
    from ragen2.cli.views.waiting import waiting
    from ragen2.config import load_run
    from ragen2.trainer.preflight import preflight as run_preflight

    changes = with_shorthands(overrides, model=model, env=env, steps=steps, plugins=plugin)
    config = load_run(run_file, changes, plugins=plugin_rule(trust=trust_plugins))
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise RunError(f"--json {json_file} cannot be written: its folder does not exist")
    with waiting(config.model.path):
        policy = require_torch().open_policy(config.model.path, config.model.device)
        found = run_preflight(config, policy)
    show(found, Console())
    if json_file is not None:
        write_json("--json", json_file, found.as_dict())
