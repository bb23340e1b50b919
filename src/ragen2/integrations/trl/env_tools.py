"""Our environments as TRL tools: an ``environment_factory`` for models that call functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from ragen2.envs.base import Env, Episode
from ragen2.envs.guard import start_episode
from ragen2.errors import ConfigError
from ragen2.rollout.context import refuse_images

OVER = "The episode is over."
_LUCKS = 2**20
"""Lucks that one process may use before another's begin."""


class ToolEnvironment:
    """One of our environments behind TRL's protocol: ``reset``, the tool ``act``, and ``get_reward``."""

    def __init__(self, env: Env, number: int) -> None:
        self._env = env
        self._lucks = count(number * _LUCKS)
        self._episode: Episode | None = None
        self._reward = 0.0
        self._taken = 0
        self._is_over = True

    def reset(self, seed: int | None = None, **row: Any) -> str:
        """Begin the task that the row's column ``seed`` names; what it shows goes to the agent."""
        del row
        if seed is None:
            raise ConfigError(
                "train_dataset has no column seed, so members of a group would play different tasks; "
                "make it with tool_dataset"
            )
        self._episode = start_episode(self._env, int(seed), next(self._lucks))
        self._reward, self._taken, self._is_over = 0.0, 0, False
        return self._shown()

    def act(self, action: str) -> str:
        """Take one action in the environment.

        Args:
            action: The action, in the words of the rules.

        Returns:
            What the environment shows afterwards.
        """
        if self._episode is None or self._is_over:
            return OVER
        step = self._episode.step(str(action))
        self._taken += step.valid
        self._reward += step.reward
        self._is_over = step.done or self._taken >= self._env.max_actions
        known = "" if step.valid else f"Unknown action {str(action)[:40]!r}.\n"
        return f"{known}{self._shown()}" + (f"\n{OVER}" if self._is_over else "")

    def get_reward(self) -> float:
        """The return of the episode so far."""
        return self._reward

    def _shown(self) -> str:
        assert self._episode is not None  # noqa: S101 - reset and act checked it
        left = self._env.max_actions - self._taken
        return f"{self._episode.observation}\nYou may take {left} more actions."


def env_tools(env: Env) -> Callable[[], ToolEnvironment]:
    """An ``environment_factory`` for ``env``; each instance has luck of its own, on every process."""
    from accelerate import PartialState

    refuse_images(env, "a row of TRL")
    state = PartialState()
    numbers = count(state.process_index, state.num_processes)
    return lambda: ToolEnvironment(env, next(numbers))


def tool_dataset(env: Env, seeds: Iterable[int]) -> Any:
    """One row for each task: the rules as a prompt, and the task in ``seed``, which ``reset`` reads."""
    from datasets import Dataset

    tasks = list(seeds)
    listed = f"\nActions: {', '.join(env.action_forms)}." if env.action_forms else ""
    rules = [{"role": "system", "content": f"{env.rules}{listed}"}, {"role": "user", "content": ""}]
    return Dataset.from_dict({"prompt": [rules] * len(tasks), "seed": tasks})
