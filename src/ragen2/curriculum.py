"""The curriculum: training tasks as hard as success allows, from the easiest level up to the run's own.

The reward of a task that is solved with chance p has variance p (1 - p). Above 1/2 harder tasks have more of
it, so a level with success surely above that is left for the next harder one. Below 1/4 less than three
quarters of the most is left, and tasks become easier again. Levels come from ``Env.easier``; held-out tasks
always have the run's own settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ragen2.component import Settings
from ragen2.diagnostics.statistics.resampling import Interval, student_quantile, wilson_interval
from ragen2.envs.base import Env
from ragen2.types import Group


@dataclass(frozen=True, slots=True)
class Level:
    """How hard the tasks of a step are."""

    number: int
    """0 is the easiest."""
    highest: int
    """Number of the level that has the run's own settings."""
    env: Env
    settings: Mapping[str, int | float]
    """Those of ``env`` that are not the run's own."""

    def __str__(self) -> str:
        """For example ``level 1 of 3: max_distance 2``."""
        shown = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return f"level {self.number} of {self.highest}: {shown or 'the settings of the run'}"


def levels_of(env: Env) -> tuple[Level, ...]:
    """The environment with each of its easier settings, then as it is."""
    own = env.model_dump()
    highest = len(env.easier)
    easier = [
        Level(
            number,
            highest,
            Env.from_dict({**own, **settings}, f"level {number} of env"),
            {name: value for name, value in settings.items() if own[name] != value},
        )
        for number, settings in enumerate(env.easier)
    ]
    return (*easier, Level(highest, highest, env, {}))


class CurriculumState(BaseModel):
    """What is remembered between steps; saved with the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: int | None = None
    """Level of the next step; None before the first."""
    success: tuple[tuple[float, ...], ...] = ()
    """Of the last steps at this level, oldest first: the share of rollouts that succeeded, by prompt."""


class Curriculum(Settings):
    """Whether training starts with easier tasks, and when they become harder."""

    mode: Literal["off", "adaptive"] = Field(
        "off",
        description="off: tasks as `[env]` says; adaptive: easier ones for as long as success asks for it. "
        "Held-out tasks are always as `[env]` says",
    )
    success_low: float = Field(
        0.25, ge=0.05, le=0.95, description="success surely below this goes down one level"
    )
    success_high: float = Field(
        0.5, ge=0.05, le=0.95, description="success surely above this goes up one level"
    )
    window: int = Field(5, ge=1, description="last steps at a level whose success counts")
    start_level: int = Field(0, ge=0, description="level of the first step; 0 is the easiest")

    @model_validator(mode="after")
    def _limits_are_ordered(self) -> Self:
        if self.success_low >= self.success_high:
            raise ValueError(
                f"success_low must be below success_high {self.success_high:g}, got "
                f"{self.success_low:g}; for example 0.25 and 0.5"
            )
        return self

    def problem(self, env: Env, num_prompts: int) -> str:
        """Why a run cannot have this curriculum; empty when it can."""
        if self.mode == "off":
            return ""
        highest = levels_of(env)[-1].highest
        if not highest:
            return f'{env.kind} has no easier settings than these; set mode = "off"'
        if self.start_level > highest:
            return f"start_level is {self.start_level}, {env.kind} has levels 0 to {highest} here"
        if self._is_sure(self.window * num_prompts):
            return ""
        window = next(steps for steps in count(1) if self._is_sure(steps * num_prompts))
        return (
            f"{self.window} steps of {num_prompts} prompts are never sure of a success below success_low or "
            f"above success_high; set window to {window} or more"
        )

    def level(self, env: Env, state: CurriculumState) -> Level:
        """The level of the step after ``state``; without a curriculum, that of the run's own settings."""
        levels = levels_of(env) if self.mode == "adaptive" else (Level(0, 0, env, {}),)
        number = self.start_level if state.level is None else state.level
        return levels[min(number, len(levels) - 1)]  # a resumed run may have fewer

    def update(
        self, env: Env, state: CurriculumState, groups: Sequence[Group]
    ) -> tuple[CurriculumState, str]:
        """The state after the step of ``groups``, and a note where the level is new or will be."""
        level = self.level(env, state)
        begins = f"curriculum: {level}" if state.level is None else ""
        now = tuple(float(np.mean([one.solved for one in group.trajectories])) for group in groups)
        before = state.success if state.level == level.number else ()
        seen = (*before, now)[-self.window :]
        shares_P = [share for step in seen for share in step]
        num_rollouts = len(shares_P) * max(len(group.trajectories) for group in groups)
        low, high = success_interval(shares_P, num_rollouts=num_rollouts)
        move = int(low > self.success_high) - int(high < self.success_low)
        number = min(max(level.number + move, 0), level.highest)
        if number == level.number:
            return CurriculumState(level=number, success=seen), begins
        after = CurriculumState(level=number)
        success = f"{np.mean(shares_P):.0%} ({low:.0%} to {high:.0%})"
        here = begins or f"curriculum: level {level.number}"
        return after, f"{here}, success {success}, next is {self.level(env, after)}"

    def _is_sure(self, num_prompts: int) -> bool:
        """Whether success of all is surely too much, and success of none surely too little."""
        low, _ = success_interval([1.0] * num_prompts, num_rollouts=num_prompts)
        _, high = success_interval([0.0] * num_prompts, num_rollouts=num_prompts)
        return low > self.success_high and high < self.success_low


def success_interval(shares_P: Sequence[float], *, num_rollouts: int) -> Interval:
    """95% interval of mean success, from its spread over prompts.

    Rollouts of one prompt succeed or fail together, so they are no independent trials. Prompts that all
    have the same success count as one trial each.
    """
    num = len(shares_P)
    error = float(np.std(shares_P, ddof=1)) / math.sqrt(num) if num > 1 else 0.0
    quantile = student_quantile(float(num - 1))
    return wilson_interval(float(np.mean(shares_P)), error, quantile, fewest=num, most=num_rollouts)
