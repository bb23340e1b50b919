"""Our environments behind OpenEnv's server: ``app_of(make("Sokoban"))`` is an application for uvicorn.

One action is one ``step``, given as text; every session plays episodes of its own.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import numpy as np

from ragen2.envs import Env, Episode
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.guard import start_episode
from ragen2.errors import EnvError
from ragen2.integrations.versions import require_tested
from ragen2.rollout.context import refuse_images

require_tested("openenv")

from openenv.core.env_server import (  # noqa: E402 - the version is checked before an import that may fail
    Action,
    Environment,
    Observation,
    State,
    create_app,
)
from openenv.core.env_server.types import EnvironmentMetadata  # noqa: E402

_LAST_SEED = 2**31
SESSIONS = 64


class TextAction(Action):  # type: ignore[misc]  # openenv is checked as untyped
    """One action, written as the rules name it."""

    text: str


class TextObservation(Observation):  # type: ignore[misc]
    """What the agent is shown; ``reward`` is that of the last action."""

    text: str
    actions_left: int
    instruction: str = ""
    """The rules; given with the first observation of an episode."""
    solved: bool = False
    valid: bool = True
    effective: bool = True


class TextState(State):  # type: ignore[misc]
    """Which task is played: the same seed and luck give the same episode."""

    env: str
    seed: int
    luck: int


class TextEnvironment(Environment):  # type: ignore[misc]
    """One of our environments behind OpenEnv's interface.

    ``reset(seed=s, luck=n)`` plays task ``s`` under luck ``n``, or 0. Without a seed both are drawn, the
    task from those that are not held out. An episode ends after ``max_actions`` steps at the latest.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: Env) -> None:
        refuse_images(env, "an observation of OpenEnv")
        super().__init__()
        self.env = env
        self._rng = np.random.default_rng()
        self._episode: Episode | None = None
        self._state = TextState(env=env.kind, seed=0, luck=0)
        self._is_over = True

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        luck: int | None = None,
        **unknown: Any,
    ) -> TextObservation:
        """Begin a task."""
        if unknown:
            raise EnvError(f"reset takes seed and luck, got {', '.join(unknown)}; leave it out")
        task = int(self._rng.integers(HELD_OUT_SEEDS, _LAST_SEED)) if seed is None else seed
        if luck is None:
            luck = int(self._rng.integers(_LAST_SEED)) if seed is None else 0
        self._episode = start_episode(self.env, task, luck)
        self._is_over = False
        name = episode_id or uuid4().hex
        self._state = TextState(episode_id=name, env=self.env.kind, seed=task, luck=luck)
        return self._observed(instruction=self.env.instruction)

    def step(
        self, action: TextAction, timeout_s: float | None = None, **unknown: Any
    ) -> TextObservation:
        """Take one action."""
        del timeout_s, unknown
        if self._episode is None or self._is_over:
            raise EnvError(f"{self.env.kind} has no episode under way; call reset first")
        step = self._episode.step(action.text)
        self._state.step_count += 1
        self._is_over = step.done or self._state.step_count >= self.env.max_actions
        return self._observed(
            reward=float(step.reward),
            done=self._is_over,
            solved=step.solved,
            valid=step.valid,
            effective=step.effective,
        )

    @property
    def state(self) -> TextState:
        """What is played."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Name and rules, for people."""
        return EnvironmentMetadata(name=self.env.kind, description=self.env.instruction)

    def _observed(self, **more: Any) -> TextObservation:
        assert self._episode is not None  # noqa: S101 - reset and step checked it
        left = self.env.max_actions - self._state.step_count
        return TextObservation(text=self._episode.observation, actions_left=left, **more)


def app_of(env: Env, *, sessions: int = SESSIONS) -> Any:
    """The server's application; so many sessions may play at the same time."""
    return create_app(
        lambda: TextEnvironment(env),
        TextAction,
        TextObservation,
        env_name=env.kind,
        max_concurrent_envs=sessions,
        state_cls=TextState,
    )
