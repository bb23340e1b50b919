"""``ragen2 preflight``: one batch before a run: is there something to learn, and should it be filtered?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragen2.cli.options import SetOption, require_torch
from ragen2.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

    from ragen2.trainer.preflight import Preflight, Tell


def preflight(
    run_file: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN.toml]", help="A run file; left out, the embedded default."),
    ] = None,
    overrides: SetOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write everything here.")
    ] = None,
) -> None:
    """Play one batch, train nothing, and say what there is to learn from.

    Example: ragen2 preflight --set rollout.prompts=16 --json preflight.json
    """
    from rich.console import Console

    from ragen2.config import load_run
    from ragen2.trainer.preflight import preflight as run_preflight

    config = load_run(run_file, overrides or ())
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise RunError(f"--json {json_file} cannot be written: its folder does not exist")
    console = Console()
    with progress(Console(stderr=True)) as tell:
        tell("model", config.model.path)
        policy = require_torch().open_policy(config.model.path, config.model.device)
        found = run_preflight(config, policy, tell)
    from ragen2.cli.views.preflight import show

    show(found, console)
    if json_file is not None:
        _write(found, json_file)


@contextmanager
def progress(console: Console) -> Iterator[Tell]:
    """A line that says what is going on and for how long; plain lines where there is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ragen2.trainer.preflight import PHASES

    phases = ("model", *PHASES)
    if not console.is_terminal:
        last = ""

        def say(phase: str, doing: str) -> None:
            nonlocal last
            if phase != last:
                console.print(f"{phase}: {doing}", markup=False, highlight=False)
            last = phase

        yield say
        return
    bar = Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}"),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task(phases[0], total=len(phases), doing="")
        yield lambda phase, doing: bar.update(
            task, description=phase, completed=phases.index(phase), doing=doing
        )


def _write(found: Preflight, file: Path) -> None:
    import json

    from ragen2.runs.files import write_atomically

    try:
        write_atomically(file, json.dumps(found.as_dict(), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise RunError(f"--json {file} cannot be written: {error.strerror}") from error
