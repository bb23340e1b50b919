"""``ragen2 envs``: what there is, write one, play it, check it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from ragen2.cli.shared import PluginOption, SetOption, make_env, require_torch, write_text
from ragen2.errors import RunError

app = typer.Typer(help="List, write, play, show and check environments.", no_args_is_help=True)


@app.command("list")
def list_envs(plugin: PluginOption = None) -> None:
    """What there is, two lines each: what an episode is like by default, and what it is about.

    Example: ragen2 envs list
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from ragen2.envs import Env

    _load(plugin)
    console = Console()
    for kind in Env.kinds():
        env = Env.from_dict({"kind": kind})
        low, high = env.reward_range
        facts = (
            f"{env.max_turns} turn{'s' * (env.max_turns > 1)}, "
            f"{env.max_actions} action{'s' * (env.max_actions > 1)}, "
            f"{'stochastic' if env.stochastic else 'deterministic'}, {env.state_kind}, "
            f"{env.reward_kind} reward {low:g} to {high:g}"
        )
        console.print(Text.assemble((f"{kind:<12}", "bold"), facts))
        first = (type(env).__doc__ or "").strip().partition("\n")[0]
        console.print(Padding(Text(first), (0, 0, 0, 2), expand=False))


@app.command("new")
def new_env(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of its class and kind: TeaShop.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.py", help="File to write.", show_default="tea_shop.py"),
    ] = None,
) -> None:
    """Write a small environment of your own that plays, passes its check, and can be changed.

    Example: ragen2 envs new TeaShop --out tea_shop.py
    """
    from ragen2.envs.new_env import new_env_text

    file = out or Path(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() + ".py")
    text = new_env_text(name, file)
    if file.exists():
        raise RunError(f"{file} exists already; choose another with --out")
    write_text("--out", file, text)
    own = shlex.join([name, "--plugin", str(file)])
    print(f"wrote {file}; next:")
    print(f"  ragen2 envs check {own}")
    print(f"  ragen2 envs play {own}")
    print(f"  ragen2 preflight --env {own}")
    print(f"  ragen2 train --env {own}")


@app.command("play")
def play_env(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    seed: Annotated[int, typer.Option(help="Which task.")] = 0,
    overrides: SetOption = None,
    plugin: PluginOption = None,
) -> None:
    """Play a task yourself in the terminal.

    Example: ragen2 envs play FrozenLake --seed 3 --set observation=grid
    """
    from ragen2.cli.views.play import play_in_terminal

    _load(plugin)
    play_in_terminal(make_env(name, overrides), seed)


@app.command("show")
def show_prompt(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    model: Annotated[
        str | None,
        typer.Option(help="Also count tokens, and show what its chat template makes of it."),
    ] = None,
    style: Annotated[
        str, typer.Option(help="reference, brief or native; auto: what the model was taught with.")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Which task.")] = 0,
    overrides: SetOption = None,
    plugin: PluginOption = None,
) -> None:
    """Print exactly what a model reads at the start of a task, coloured by part.

    --set takes settings of a run: env.size=5, rollout.thinking=false, prompt.template=mine.toml.

    Example: ragen2 envs show Sokoban --style reference --set env.observation=grid
    """
    from ragen2.cli.views.prompt import show_first_prompt
    from ragen2.config import RunConfig, resolve_config

    _load(plugin)
    data = {"env": {"kind": name}, "prompt": {"style": style}, "model": {"path": model or "any"}}
    config = resolve_config(RunConfig, data, overrides or (), "envs show", "known")
    tokenizer = require_torch().open_tokenizer(model) if model else None
    show_first_prompt(config, seed, tokenizer)


@app.command("check")
def check(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    seeds: Annotated[int, typer.Option(min=1, help="Tasks to check.")] = 20,
    overrides: SetOption = None,
    plugin: PluginOption = None,
) -> None:
    """Run the conformance suite, also on an environment of your own.

    Example: ragen2 envs check FrozenLake --seeds 50
    """
    from ragen2.envs.check.conformance import check_env, some_seeds, unchecked_claims

    _load(plugin)
    env = make_env(name, overrides)
    for claim in check_env(env, some_seeds(seeds)):
        print(f"ok  {claim}")
    for claim, why in unchecked_claims(env).items():
        print(f"--  {claim}: not checked, {why}")
    print(f"{env.kind} passed on {seeds} seeds")


def _load(plugins: list[str] | None) -> None:
    from ragen2.component import load_installed_plugins, load_plugin

    load_installed_plugins()
    for plugin in plugins or ():
        load_plugin(plugin)
