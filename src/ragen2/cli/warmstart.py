"""``ragen2 warmstart``: supervised cold start on scripted expert episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragen2.cli.outlasting import results_are_saved
from ragen2.cli.shared import SetOption, TrustOption, plugin_rule, require_torch
from ragen2.errors import RunError


def warmstart(
    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RECIPE]", help="File or embedded name. Left out: that of the embedded model."
        ),
    ] = None,
    overrides: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder for the model; must not exist yet.")] = Path(
        "warmstart"
    ),
    trust_plugins: TrustOption = False,
) -> None:
    """Teach a model the reply format and the game from scripted play of chosen quality.

    Example: ragen2 warmstart --set steps=50 --set quality=0.3 --set groundedness=0 --out models/ungrounded
    """
    from ragen2.cli.views.waiting import waiting
    from ragen2.config import dump_config, find_warm_start, load_config
    from ragen2.trainer.warmstart import (
        WarmstartConfig,
        default_recipe,
        tokenizer_corpus,
    )
    from ragen2.trainer.warmstart import warmstart as run_warmstart

    file = find_warm_start(recipe) if recipe else default_recipe()
    plugins = plugin_rule(trust=trust_plugins)
    config = load_config(WarmstartConfig, file, overrides or (), plugins=plugins)
    if out.exists():
        raise RunError(f"{out} exists already; choose another folder with --out")
    results_are_saved()
    torch_backends = require_torch()
    if config.new is not None:
        agent = torch_backends.make_agent(
            config.new,
            tokenizer_corpus(config),
            config.learner,
            device=config.model.device,
            seed=config.seed,
        )
    else:
        with waiting(config.model.path):
            agent = torch_backends.open_agent(config.model, config.learner, seed=config.seed)

    def report(step: int, loss: float) -> None:
        if step % max(1, config.steps // 10) == 0 or step == 1:
            print(f"step {step}/{config.steps}  loss {loss:.4f} nats per token", flush=True)

    loss = run_warmstart(config, agent.learner, report)
    from ragen2.runs.files import fill_folder
    from ragen2.trainer.card import FILE, warmstart_card

    texts = {"warmstart.toml": dump_config(config), FILE: warmstart_card(config, loss)}
    fill_folder(out, agent.learner.save_model, texts)
    print(f"saved {out}; try it with: ragen2 eval {out} --env {config.env.kind}")
