"""StepRecord: the schema of one line of steps.jsonl."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, FiniteFloat


class StepRecord(BaseModel):
    """What one step did. Everything but ``seconds`` is reproducible bit for bit on one machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    step: int
    """Steps count from 1; step 0 holds the evaluation before training."""
    metrics: dict[str, FiniteFloat]
    absent: dict[str, str] = {}
    """Metrics that were due and could not be computed, each with the reason."""
    regime: str | None = None
    """Regime of the newest cross-scoring."""
    kept: list[bool] = []
    scores: list[float] = []
    """Filter's verdict and signal for each prompt of the step, in order."""
    seeds: list[int] = []
    """Task of each prompt of the step."""
    note: str = ""
    """What a reader should know: why a step was skipped, what went wrong."""
    seconds: dict[str, float] = {}


class Sink(Protocol):
    """Something that wants to see every record."""

    def record(self, record: StepRecord) -> None:
        """Take one record."""
        ...

    def phase(self, name: str) -> None:
        """Hear that the current step has entered phase ``name``."""
        ...
