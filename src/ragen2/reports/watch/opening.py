"""Putting a watch together: followed directories, their data, the page, the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ragen2.reports.data.report import report_of
from ragen2.reports.watch.follow import Followed
from ragen2.reports.watch.server import WatchServer
from ragen2.reports.watch.snapshots import Blocks, Data, Snapshots
from ragen2.reports.web import render


def open_watch(paths: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> WatchServer:
    """A server that listens; what is wrong with a path, or with what lies there, is told now."""
    followed = Followed(paths)

    def build() -> tuple[Data, Blocks]:
        report = report_of(followed.runs())
        return report.data, report.blocks

    page = render({"title": ", ".join(path.resolve().name for path in paths)}, {}, live=True)
    snapshots = Snapshots(paths, build)
    snapshots.newest()
    return WatchServer(host, port, page, snapshots)
