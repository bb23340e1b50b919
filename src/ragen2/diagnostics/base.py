"""The diagnostic contract: evidence of one step in, named numbers out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
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


class Measured(Metrics):
    """The metrics of a diagnostic, with what it could not give and the matrices that it made."""

    def __init__(
        self,
        metrics: Mapping[str, float] | None = None,
        absent: Mapping[str, str] | None = None,
        scores: Sequence[ScopeScores] = (),
    ) -> None:
        super().__init__(metrics or {})
        self.absent = dict(absent or {})
        """Each metric that was due and cannot be had, with the reason in one phrase.

        A name may be that of a family of metrics: ``collapse/turn_3``.
        """
        self.scores = list(scores)
        """The score matrices behind the metrics, with their texts."""

    def add(self, other: Metrics) -> None:
        """Take in what another diagnostic measured; a plain mapping has nothing absent."""
        self |= other
        if isinstance(other, Measured):
            self.absent |= other.absent
            self.scores += other.scores


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
    """Spreads of the marginal averaged over earlier steps, one per scope."""
    seed: int = 0
    """Of the run; random draws are named by it and the step."""
    replayer: Replayer | None = None
    """Plays a prompt again in its environment; None where only the rollouts are at hand."""


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
        """Names to finite numbers. A number that cannot be had is left out, never made up.

        Return ``Measured`` to say why something was left out; a plain dict where nothing was.
        """


def measure_all(diagnostics: Iterable[Diagnostic], evidence: Evidence) -> Measured:
    """What all of them find in one evidence."""
    whole = Measured()
    for diagnostic in diagnostics:
        whole.add(diagnostic.measure(evidence))
    return whole
