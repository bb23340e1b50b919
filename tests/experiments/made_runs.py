"""Runs made of numbers, so that what an analysis finds can be worked out by hand."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen2.reports.load import Run
from ragen2.runs.record import StepRecord

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in.py")))
"""In place of ``ragen2``."""
Curves = Mapping[str, Sequence[float | None]]


def run_of(curves: Curves, *, first: int = 0, settings: Mapping[str, Any] | None = None) -> Run:
    """A run whose metrics have these values, step by step; None leaves one out."""
    length = max((len(values) for values in curves.values()), default=0)
    records = [
        StepRecord(
            step=first + at,
            metrics={
                name: float(value)
                for name, values in curves.items()
                if at < len(values) and (value := values[at]) is not None
            },
            seconds={"rollout": 1.0, "update": 1.0},
        )
        for at in range(length)
    ]
    return Run(Path("run"), dict(settings or {}), tuple(records))
