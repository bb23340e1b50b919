"""``ragen2 report`` and ``ragen2 watch``: the page of runs and audits, as a file or live, and its figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ragen2.errors import ConfigError, RunError


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories, or folders of `ragen2 audit`."),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page to write.",
            show_default="report.html in RUN, or here for several",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write each chart as a file into this folder."),
    ] = None,
    figure_format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="F", help="png, svg or pdf.", show_default="svg, with --figures"
        ),
    ] = None,
) -> None:
    """Write one page that needs no network: verdict, curves, matrices, replays; several runs compared.

    Example: ragen2 report runs/first --figures figures --format png
    """
    from ragen2.reports.data.episodes import changed_files, missing_images, missing_records
    from ragen2.reports.data.report import report_of
    from ragen2.reports.figures import FORMATS, load_matplotlib
    from ragen2.reports.load import load
    from ragen2.reports.page import write_page

    if figure_format is not None and figures is None:
        raise ConfigError("--format is for --figures DIR; add that or leave --format out")
    if figure_format is not None and figure_format not in FORMATS:
        raise ConfigError(f"--format takes {', '.join(FORMATS)}; got {figure_format!r}")
    if figures is not None:
        load_matplotlib()  # what is missing is reported before anything is written
    page = out or (paths[0] if len(paths) == 1 else Path()) / "report.html"
    if page.is_dir():
        raise RunError(f"--out {page} is a folder; give a file such as {page / 'report.html'}")
    runs = [load(path) for path in paths]
    checks = (missing_records, missing_images, changed_files)
    lost = [line for run in runs for check in checks if (line := check(run))]
    written = write_page(report_of(runs), page)
    print(f"report {written} ({written.stat().st_size / 1e6:.1f} MB)")
    for line in lost:  # the page says so, too, where they would be
        print(f"ragen2: {line}", file=sys.stderr)
    if figures is not None:
        from ragen2.reports.paper import write_figures

        found = write_figures(runs, figures, figure_format or "svg")
        print(f"{len(found)} figures in {figures}")


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
            help="Address to listen on. The page asks for the token that is printed with its address; "
            "on a loopback address only this machine is answered."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
) -> None:
    """Show runs in the browser as they are written; Ctrl-C ends it.

    Example: ragen2 watch runs/try
    """
    from ragen2.reports.watch import is_there, open_watch

    with open_watch(paths, host, port) as server:
        for path in paths:
            if not is_there(path):
                print(f"{path} is not there yet; it shows as soon as it is")
        try:
            print(f"watching at {server.url} (Ctrl-C ends it)", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:  # the way to end it: nothing was cut short
            print("\nno longer watching")
