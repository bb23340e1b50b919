"""The diagnostic contract: evidence of one step in, named numbers out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from ragen2.component import Component
from ragen2.diagnostics.mutual_information import Ema
from ragen2.types import Group, ScoreMatrix

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Everything a diagnostic may look at: the whole, unfiltered batch of one step."""

    step: int
    groups: Sequence[Group]
    scores: ScoreMatrix | None = None
    """First-turn cross-scores; None when no diagnostic asked for them or they could not be made."""
    ema: Ema | None = None


class Diagnostic(Component, ABC):
    """Turns evidence into metrics. It must not change anything."""

    family: ClassVar[str] = "diagnostic"
    needs_scores: ClassVar[bool] = False
    """Whether ``measure`` wants cross-scores; it is not called when they could not be made."""

    kind: str
    every: int = Field(1, ge=1, description="measured at steps that are multiples of this")

    def is_due(self, step: int) -> bool:
        """Steps count from 1; the first is always measured."""
        return step == 1 or step % self.every == 0

    @abstractmethod
    def measure(self, evidence: Evidence) -> Metrics:
        """Names to finite numbers. A number that cannot be had is left out, never made up."""
