"""Every environment as a Gymnasium environment: ``gymnasium.make("ragen2/FrozenLake-v0", size=6)``.

Importing this module registers all that are known. One action is one ``step``; the agent's text
goes in, the observation's text comes out, and ``info`` says whether the action was valid, had an
effect, and solved the task. Where the settings show images, an observation is text and image.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen2.component import suggest
from ragen2.envs import Env, Episode, make
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.guard import start_episode
from ragen2.errors import ConfigError, DependencyError, EnvError

try:
    import gymnasium
    from gymnasium.error import CustomSpaceError
    from gymnasium.spaces import Box, Dict, Text
    from gymnasium.vector.utils import create_shared_memory
except ImportError as error:
    raise DependencyError(
        "gymnasium is not installed; pip install 'ragen2[gymnasium]' brings it"
    ) from error

NAMESPACE = "ragen2"
MAX_OBSERVATION = 32_768
"""Longer observations are cut at their end."""
MAX_ACTION = 16_384
TEXT, IMAGE = "text", "image"
"""Parts of an observation where images are shown."""
UNKNOWN_CHARACTER = "\ufffd"
_LAST_SEED = 2**31

Observation = str | dict[str, str | npt.NDArray[np.uint8]]


class UnicodeText(Text):  # type: ignore[misc]  # gymnasium is checked as untyped
    """Text of any printable characters of the first Unicode plane, line breaks and tabs."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=_characters())

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    def fit(self, text: str) -> str:
        """The text as a member: cut, and with characters from other planes replaced."""
        known = self.character_set
        return "".join(
            char if char in known else UNKNOWN_CHARACTER for char in text[: self.max_length]
        )


@create_shared_memory.register(UnicodeText)  # type: ignore[untyped-decorator]  # as above
def _refuse_shared_memory(space: UnicodeText, n: int = 1, ctx: object = None) -> None:
    """Refuse: Gymnasium 1.4 reads text from shared memory once, while empty, and never again."""
    raise CustomSpaceError(
        f"{space} cannot be shared; pass vector_kwargs={{'shared_memory': False}}"
    )


class TextEnv(gymnasium.Env):  # type: ignore[misc]  # gymnasium is checked as untyped
    """One of our environments behind Gymnasium's interface.

    ``reset(seed=s)`` plays task ``s`` under luck 0, or under ``options={"luck": n}``; without a
    seed both are drawn, the task from those that are not held out. An episode is truncated after
    ``max_actions`` steps; where a task is one action long, that action is its end.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012  # as in gymnasium: a class default, set per object
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
    }

    def __init__(self, kind: str, render_mode: str | None = None, **settings: Any) -> None:
        self.env: Env = make(kind, **settings)
        self._text_space = UnicodeText(MAX_OBSERVATION)
        self.observation_space = _observation_space(self.env, self._text_space)
        self.action_space = UnicodeText(MAX_ACTION)
        self.metadata = {**type(self).metadata, "render_modes": _render_modes(self.env)}
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            modes = ", ".join(self.metadata["render_modes"])
            raise ConfigError(f"{kind} has no render_mode {render_mode!r}; it has: {modes}")
        self.render_mode = render_mode
        self._episode: Episode | None = None
        self._actions_taken = 0

    @property
    def episode(self) -> Episode:
        """The play under way."""
        if self._episode is None:
            raise EnvError(f"{self.env.kind} has not been started; call reset first")
        return self._episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a task; ``info`` holds its seed and luck and the instruction to show an agent."""
        super().reset(seed=seed)
        luck = _luck(options or {})
        task = int(self.np_random.integers(HELD_OUT_SEEDS, _LAST_SEED)) if seed is None else seed
        if luck is None:
            luck = int(self.np_random.integers(_LAST_SEED)) if seed is None else 0
        self._episode = start_episode(self.env, task, luck)
        self._actions_taken = 0
        return self._shown(), {"seed": task, "luck": luck, "instruction": self.env.instruction}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one action, given as the agent wrote it."""
        if not isinstance(action, str):
            raise EnvError(f"{self.env.kind} takes text, got {action!r}; pass the action as a str")
        step = self.episode.step(str(action))
        self._actions_taken += 1
        is_spent = self._actions_taken >= self.env.max_actions
        terminated = step.done or (is_spent and self.env.max_actions == 1)
        info = {"solved": step.solved, "valid": step.valid, "effective": step.effective}
        return self._shown(), float(step.reward), terminated, is_spent and not terminated, info

    def render(self) -> str | npt.NDArray[np.uint8] | None:
        """The observation as text, or the picture; where the agent is shown one, the same."""
        if self.render_mode == "rgb_array":
            shown = self.episode.shown_image
            return self.episode.image() if shown is None else shown
        return self.episode.observation if self.render_mode == "ansi" else None

    def _shown(self) -> Observation:
        text: str = self._text_space.fit(self.episode.observation)
        pixels = self.episode.shown_image
        if pixels is None:
            return text
        space = self.observation_space[IMAGE]
        if pixels.shape != space.shape:
            raise EnvError(
                f"{self.env.kind} shows an image of {pixels.shape[:2]} pixels, but this space is for "
                f"{space.shape[:2]}; make one environment for each size"
            )
        return {TEXT: text, IMAGE: pixels}


def register_all() -> list[str]:
    """Register every known environment that is not registered yet; return all their ids."""
    ids = []
    for kind in Env.kinds():
        ids.append(f"{NAMESPACE}/{kind}-v0")
        if ids[-1] not in gymnasium.registry:
            entry_point = f"{__name__}:{TextEnv.__name__}"
            gymnasium.register(ids[-1], entry_point=entry_point, kwargs={"kind": kind})
    return ids


@lru_cache(maxsize=1)
def _characters() -> str:
    return "\n\t" + "".join(char for char in map(chr, range(32, 2**16)) if char.isprintable())


def _observation_space(env: Env, text: UnicodeText) -> UnicodeText | Dict:
    """Text, or text and an image of the size that a first episode shows."""
    pixels = start_episode(env, HELD_OUT_SEEDS, 0).shown_image
    if pixels is None:
        return text
    return Dict({TEXT: text, IMAGE: Box(0, 255, pixels.shape, np.uint8)})


def _render_modes(env: Env) -> list[str]:
    """``rgb_array`` only where a picture exists; asked of an episode, as settings may decide it."""
    has_picture = start_episode(env, HELD_OUT_SEEDS, 0).image() is not None
    return ["ansi", "rgb_array"] if has_picture else ["ansi"]


def _luck(options: Mapping[str, Any]) -> int | None:
    for name in options:
        if name != "luck":
            raise ConfigError(f"unknown reset option {name!r}; {suggest(name, ['luck'])}")
    luck = options.get("luck")
    if luck is not None and (not isinstance(luck, int | np.integer) or isinstance(luck, bool)):
        raise ConfigError(f"reset option luck must be a whole number, got {luck!r}")
    return None if luck is None else int(luck)


register_all()
