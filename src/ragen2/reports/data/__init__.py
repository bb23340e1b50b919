"""The data behind the page: run directories and audits in, one JSON object out (docs/report-data.md)."""

from ragen2.reports.data.report import Report, build_report

__all__ = ["Report", "build_report"]
