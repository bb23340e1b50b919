"""The report page: a shell of HTML, styles and scripts around one JSON object (docs/report-data.md)."""

from ragen2.reports.web.shell import DATA_ID, render, script_json

__all__ = ["DATA_ID", "render", "script_json"]
