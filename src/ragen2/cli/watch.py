"""``ragen2 watch``: the report page, live in the browser while a run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...", help="Run directories; one that is not there yet is waited for."
        ),
    ],
    *,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. On any but a loopback one the page asks for the token "
            "that is printed with its address."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
) -> None:
    """Show runs in the browser as they are written; Ctrl-C ends it.

    Example: ragen2 watch runs/try
    """
    from ragen2.reports.watch import open_watch
    from ragen2.reports.watch.snapshots import is_there

    with open_watch(paths, host, port) as server:
        for path in paths:
            if not is_there(path):
                print(f"{path} is not there yet; it shows as soon as it is")
        try:
            print(f"watching at {server.url} (Ctrl-C ends it)", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:  # the way to end it: nothing was cut short
            print("\nno longer watching")
