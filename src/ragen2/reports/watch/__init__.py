"""Watching runs: the report page, served while its runs are written."""

from ragen2.reports.watch.server import WatchServer, open_watch
from ragen2.reports.watch.snapshots import Snapshots

__all__ = ["Snapshots", "WatchServer", "open_watch"]
