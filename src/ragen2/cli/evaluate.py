"""``ragen2 eval``: how well does a model play, and has it collapsed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragen2.cli.options import SetOption, torch_room
from ragen2.errors import RunError


def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder, hub id, GGUF file or run directory.")
    ],
    env: Annotated[
        str, typer.Option(help="Environment, as `ragen2 envs list` names it.")
    ] = "FrozenLake",
    tasks: Annotated[int, typer.Option(min=1, help="Held-out tasks to play.")] = 256,
    overrides: SetOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all metrics here.")
    ] = None,
) -> None:
    """Play held-out tasks and cross-score the reasoning.

    Example: ragen2 eval runs/try --env FrozenLake --tasks 64 --set env.slip=0.1
    """
    from ragen2.config import RunConfig, apply_override, parse_config
    from ragen2.trainer.assess import assess

    data: dict[str, object] = {"env": {"kind": env}, "evaluation": {"tasks": tasks}}
    for override in overrides or ():
        data = apply_override(data, override)
    config = parse_config(RunConfig, data)
    policy = torch_room().open_policy(model, config.model.device)
    verdict = assess(config, policy)
    print_verdict(model, config.env.kind, verdict.metrics, verdict.regime)
    if json_file is not None:
        import json

        from ragen2.runs.files import write_atomically

        text = json.dumps(
            {"model": model, "regime": verdict.regime, "metrics": verdict.metrics}, indent=1
        )
        try:
            write_atomically(json_file, text + "\n")
        except OSError as error:
            raise RunError(f"--json {json_file} cannot be written: {error.strerror}") from error


def print_verdict(model: str, env: str, metrics: dict[str, float], regime: str | None) -> None:
    """A table a person can read."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{model} on {env}", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("95% interval", justify="right")
    for name, label in ROWS:
        if name in metrics:
            low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
            span = f"{low:.3f} .. {high:.3f}" if low is not None and high is not None else ""
            table.add_row(label, f"{metrics[name]:.3f}", span)
    Console().print(table)
    print(
        f"regime: {regime.replace('_', ' ') if regime else 'not measured (no reasoning to score)'}"
    )


COLLAPSE = "collapse/first_turn/"
ROWS = (
    ("eval/success", "success"),
    ("eval/reward", "reward"),
    ("eval/turns", "turns"),
    ("eval/format_validity", "format validity"),
    (f"{COLLAPSE}retrieval_accuracy", "retrieval accuracy"),
    (f"{COLLAPSE}retrieval_chance", "  chance"),
    (f"{COLLAPSE}mi_estimate", "MI (nats a token)"),
    (f"{COLLAPSE}mi_seq_estimate", "MI (nats a reasoning)"),
    (f"{COLLAPSE}mi_bound", "  its bound log P"),
    (f"{COLLAPSE}conditional_entropy", "H(Z|X) (nats a token)"),
    (f"{COLLAPSE}reasoning_entropy", "H(Z) (nats a token)"),
)
