"""The diagnostic contract: evidence of one step in, named numbers out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from ragen2.component import Component
from ragen2.diagnostics.metrics.attempts import Replayer
from ragen2.diagnostics.metrics.mutual_information import Ema
from ragen2.policy import Scorer
from ragen2.runs.scores import ScopeScores
from ragen2.types import Group

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Everything a diagnostic may look at: the whole, unfiltered batch of one step."""

    step: int
    groups: Sequence[Group]
    scorer: Scorer | None = None
    """The policy that wrote the batch; None where only the text is at hand."""
    temperature: float = 1.0
    """What the batch was sampled at; likelihoods are taken at the same."""
    ema: Mapping[str, Ema] = field(default_factory=dict)
    """Spreads of the marginal averaged over earlier steps, one a scope."""
    seed: int = 0
    """Of the run; random draws are named by it and the step."""
    replayer: Replayer | None = None
    """Plays a prompt again in its environment; None where only the rollouts are at hand."""
    keep_scores: Callable[[ScopeScores], None] | None = None
    """Takes every score matrix that was made, for the record; None where nobody looks at them."""


class Diagnostic(Component, ABC):
    """Turns evidence into metrics. It must not change anything."""

    family: ClassVar[str] = "diagnostic"
    needs_scorer: ClassVar[bool] = False
    """Whether ``measure`` asks ``evidence.scorer`` for likelihoods; without one it raises."""

    kind: str
    every: int = Field(1, ge=1, description="measured at steps that are multiples of this")

    def is_due(self, step: int) -> bool:
        """Steps count from 1; the first is always measured."""
        return step == 1 or step % self.every == 0

    @abstractmethod
    def measure(self, evidence: Evidence) -> Metrics:
        """Names to finite numbers. A number that cannot be had is left out, never made up."""

    def missing(self, evidence: Evidence) -> dict[str, str]:
        """What ``measure`` must leave out of this evidence, each name with the reason in one phrase.

        A name may be that of a family of metrics: ``collapse/turn_3``.
        """
        del evidence
        return {}
