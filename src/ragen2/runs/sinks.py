"""Sinks: where records go as a run goes on. The run directory is always one of them."""

from __future__ import annotations

from typing import Protocol

from ragen2.runs.record import StepRecord


class Sink(Protocol):
    """Something that wants to see every record."""

    def record(self, record: StepRecord) -> None:
        """Take one record."""
        ...

    def phase(self, name: str) -> None:
        """Hear that the current step has entered phase ``name``."""
        ...
