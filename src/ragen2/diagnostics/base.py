"""The diagnostic contract: evidence of one step in, named numbers out; and what was done on a prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from pydantic import Field

from ragen2.component import Component
from ragen2.diagnostics.metrics.mutual_information import Ema
from ragen2.policy import Scorer
from ragen2.runs.scores import ScopeScores
from ragen2.types import FloatArray, Group, StopReason, Trajectory

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

    def under(self, prefix: str) -> Measured:
        """The same with every name below a prefix."""
        return Measured(
            {f"{prefix}/{name}": value for name, value in self.items()},
            {f"{prefix}/{name}": why for name, why in self.absent.items()},
            self.scores,
        )


class StepMetrics(Protocol):
    """A step and its numbers: a ``StepRecord``, or anything like it."""

    @property
    def step(self) -> int:
        """Position in the run."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """Numbers by their full names."""
        ...


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


@dataclass(frozen=True, slots=True)
class Played:
    """One play of a prompt."""

    reward: float
    """What the environment paid; format penalties are not counted."""
    solved: bool | None = None
    """None where a log does not say."""
    actions: tuple[str, ...] = ()
    """What was done; for logs without actions, the answer."""
    outcome: str = ""
    """What the environment showed last; empty where unknown."""
    image: str = ""
    """Names the image that it showed beside it; empty where there was none."""

    @property
    def behaviour(self) -> tuple[str, ...]:
        """Actions (case and spaces folded) and outcome: plays that differ here did other things."""
        actions = (" ".join(action.lower().split()) for action in self.actions)
        return (*actions, self.outcome, self.image)


@dataclass(frozen=True, slots=True, eq=False)
class Attempts:
    """All plays of one prompt by the policy."""

    env: str
    members: tuple[Played, ...]
    name: str = ""
    num_broken: int = 0
    """Plays that ended because the environment raised."""
    format_spread: bool = False
    """Whether format penalties make returns differ."""

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError(f"prompt {self.name!r} has no plays")

    @property
    def rewards_G(self) -> FloatArray:
        """Task rewards of the members."""
        return np.array([member.reward for member in self.members])

    @property
    def variety(self) -> float:
        """Different behaviours over members: 1 when no two did the same."""
        return len({member.behaviour for member in self.members}) / len(self.members)


@dataclass(frozen=True, slots=True, eq=False)
class Contrasts:
    """Other behaviour on the same prompt, played in the environment."""

    expert: tuple[Played, ...] = ()
    """The scripted expert, under several lucks where luck matters."""
    random: tuple[Played, ...] = ()
    """Legal actions at random."""
    own: tuple[Played, ...] = ()
    """The members' own actions under other luck; empty where luck does nothing."""
    one_turn: bool = False
    """Whether an episode has one turn, so that no action of a member could answer to its luck."""
    problem: str = ""
    """Why the environment could not be replayed; empty when it could."""
    missing: tuple[str, ...] = ()
    """What the environment lacks for some of the plays, each in a few words."""

    @property
    def plays(self) -> tuple[Played, ...]:
        """All of them."""
        return (*self.expert, *self.random, *self.own)


class Replayer(Protocol):
    """Plays a group's prompt again in its environment."""

    @property
    def reward_range(self) -> tuple[float, float]:
        """Least and greatest return the environment can pay."""
        ...

    def contrasts(self, group: Group, replays: int) -> Contrasts:
        """``replays`` plays of each sort of contrast; the same call gives the same plays."""
        ...


def attempts_of(group: Group) -> Attempts:
    """What triage has to know of a group."""
    trajectories = group.trajectories
    penalties = {sum(turn.penalty for turn in one.turns) for one in trajectories}
    return Attempts(
        env=group.prompt.env,
        members=tuple(_played(one) for one in trajectories),
        name=f"{group.prompt.env} seed {group.prompt.seed}",
        num_broken=sum(one.stop is StopReason.ENV_ERROR for one in trajectories),
        format_spread=len(penalties) > 1,
    )


def task_reward(trajectory: Trajectory) -> float:
    """What the environment paid over the episode."""
    return float(sum(turn.reward for turn in trajectory.turns))


def executed_actions(trajectory: Trajectory) -> tuple[str, ...]:
    """Every action the environment took, in order."""
    return tuple(action for turn in trajectory.turns for action in turn.executed)


def _played(trajectory: Trajectory) -> Played:
    outcome, image = trajectory.turns[-1].shown if trajectory.turns else ("", "")
    return Played(
        reward=task_reward(trajectory),
        solved=trajectory.solved,
        actions=executed_actions(trajectory),
        outcome=outcome,
        image=image,
    )
