"""Records: the schemas of one line of steps.jsonl, and of audit.json."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
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
    files: dict[str, str] = {}
    """Digests of what the step left in ``rollouts``, ``scores`` and ``images``."""


def records_digest(records: Iterable[StepRecord], before: str = "") -> str:
    """A digest of records in their order, or of more of them after those that gave ``before``.

    It leaves out what depends on the clock, and fields that hold their default: a version that brings a
    field finds the digest of an older one.
    """
    for record in records:
        data = record.model_dump_json(exclude={"seconds", "schema_version"}, exclude_defaults=True)
        before = hashlib.sha256(f"{before}{data}".encode()).hexdigest()[:32]
    return before


class Sink(Protocol):
    """Something that wants to see every record."""

    def record(self, record: StepRecord) -> None:
        """Take one record."""
        ...

    def phase(self, name: str) -> None:
        """Hear that the current step has entered phase ``name``."""
        ...


class Rows(BaseModel):
    """What became of the rows of the log."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read: int
    used: int
    """Rows that gave at least one rollout."""
    unused: dict[str, int] = {}
    """Rows that gave none, by reason."""
    no_trace: dict[str, int] = {}
    """Rollouts whose rewards count but which gave no trace to score, by reason."""


class FoundFailure(BaseModel):
    """A failure that shows over several steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    since_step: int
    severity: str
    text: str


class BlindPrompt(BaseModel):
    """A prompt whose behaviour differs and whose reward does not."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    reason: str
    examples: list[str]


class AuditRecord(BaseModel):
    """One audit. Every number is finite; what could not be computed is in a step's ``absent``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    sources: list[str]
    formats: list[str]
    likelihood: Literal["text", "model", "server"]
    """``text``: estimated from wording, not from any policy's likelihood."""
    scorer: str
    settings: dict[str, str | int | float]
    rows: Rows
    unreadable: dict[str, str] = {}
    """Files that were left out, with the reason."""
    notes: list[str] = []
    steps: list[StepRecord]
    regime: str | None = None
    """Regime of the last step that could be measured: the verdict."""
    regime_since: int | None = None
    """First step from which on every measured step is in that regime."""
    failures: list[FoundFailure] = []
    blind_prompts: list[BlindPrompt] = []
