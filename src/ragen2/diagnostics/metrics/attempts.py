"""What was done on a prompt and what came of it: the evidence that triage compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ragen2.types import FloatArray, Group, StopReason, Trajectory


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
