"""The environment contract: frozen settings that start single-use episodes.

``seed`` names the task (map, question); ``luck`` names the noise of one play of it. Members of a group
share the seed and differ in luck. An episode has no ``reset``, hence no stale state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ragen2.component import Component
from ragen2.errors import MissingMethod
from ragen2.seeding import stream_key
from ragen2.types import Image

HELD_OUT_SEEDS = 100_000
"""Seeds below this are held out: evaluation uses them, training never does. An environment with a
finite set of tasks maps held-out seeds to tasks that no training seed reaches."""
HELD_OUT_ONE_IN = 5
"""One generated task in this many is held out."""

MOST_EASIER = 8
"""Levels below a run's own at most, where a setting has many values: each costs a curriculum steps."""

Waits = Literal["nothing", "cores", "server"]
Easier = tuple[Mapping[str, int | float], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What one action did."""

    reward: float
    done: bool
    solved: bool = False
    valid: bool = True
    """The action is one the environment knows; an unknown one changes nothing."""
    effective: bool = True
    """The action changed the state."""


class Episode(ABC):
    """One play of one task. Read ``observation``, call ``step`` until it says done.

    ``expert``, ``random_action`` and ``explain`` are optional: who needs one that is missing says so.
    """

    @property
    @abstractmethod
    def observation(self) -> str:
        """What the agent is shown now; a pure function of the state."""

    @abstractmethod
    def step(self, action: str) -> Step:
        """Take one action, given as the agent wrote it. Never raises on what an agent may write."""

    def expert(self) -> tuple[str, ...]:
        """A best plan from here: actions that lead to the goal if luck allows; empty when done."""
        raise MissingMethod("expert")

    def random_action(self, rng: np.random.Generator) -> str:
        """A legal action at random. Where an environment has fixed actions, one of those is drawn."""
        del rng
        raise MissingMethod("random_action")

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """Scripted reasoning, in varied wording, that names the state and leads to ``actions``."""
        del actions, rng
        raise MissingMethod("explain")

    def image(self, cell_pixels: int = 28) -> npt.NDArray[np.uint8] | None:
        """The state as height x width x 3 bytes, or None where there is no picture."""
        del cell_pixels
        return None

    @property
    def shown_image(self) -> npt.NDArray[np.uint8] | None:
        """The image that the agent is shown beside ``observation``; like it, a function of the state.

        None where the settings show text alone. One that shows images shows one in every state.
        """
        return None


class Env(Component, ABC):
    """An environment's settings. Subclasses add their own and define ``start``."""

    family: ClassVar[str] = "env"

    reward_range: ClassVar[tuple[float, float]]
    """Least and greatest return of one episode, format penalties not counted."""
    stochastic: ClassVar[bool] = False
    """Whether luck can change what the same actions do."""
    one_action: ClassVar[bool] = False
    """Whether an answer is one action as a whole (a program, a number), never several in a row."""
    has_fixed_actions: ClassVar[bool] = False
    """Whether ``action_forms`` are the names of all actions there are; variants of them are then read."""
    synonyms: ClassVar[Mapping[str, str]] = {}
    """Other words that agents use for fixed actions, in lower case, with the action they stand for."""
    thoughts: ClassVar[str] = "two or three sentences about the state you see"
    """What a prompt asks the reasoning to be."""
    reply_tokens: ClassVar[int] = 200
    """Tokens that a reply needs at most, reasoning included, where ``rollout.max_tokens`` leaves it open."""
    state_kind: ClassVar[Literal["grid", "text"]] = "text"
    reward_kind: ClassVar[Literal["binary", "dense"]] = "binary"

    kind: str
    max_turns: int = Field(5, ge=1, description="replies the agent may write in one episode")
    max_actions: int = Field(10, ge=1, description="actions the environment takes in one episode")
    step_timeout: float = Field(
        600.0,
        ge=0.0,
        description="seconds that a step, or the start of a task, may take; one that takes longer ends "
        "its episode as an error; 0 is no limit",
    )

    @property
    @abstractmethod
    def instruction(self) -> str:
        """The rules in the words of the system message, true to these settings, with an example."""

    @property
    def rules(self) -> str:
        """What the task is and how it goes; no list of actions, and no example that could be copied."""
        return self.instruction

    @property
    def action_forms(self) -> tuple[str, ...]:
        """The actions as a prompt lists them: names, or forms such as ``search[words]``; or none."""
        return ()

    @property
    def answer_form(self) -> str:
        """What an answer is, in a few words, where there are no ``action_forms``."""
        return "your action"

    def dearest_reply(self, num_actions: int) -> float:
        """The least that so many known actions of one reply can earn; 0 where none costs anything."""
        del num_actions
        return 0.0

    @property
    def shows_images(self) -> bool:
        """Whether the agent is shown an image each turn: it then needs a model that reads them."""
        return False

    @property
    def waits_for(self) -> Waits:
        """What a step spends its time on: nothing (it is quick), programs on other cores, or a server.

        Unless it is nothing, different episodes are stepped in different threads at the same time.
        """
        return "nothing"

    @property
    def easier(self) -> Easier:
        """Settings that make tasks easier, easiest first: the levels of a curriculum below these settings.

        A held-out task must be held out at every level. None where no setting decides how hard a task is,
        as for tasks that are read from files.
        """
        return ()

    @abstractmethod
    def start(self, seed: int, luck: int) -> Episode:
        """Begin task ``seed`` under noise ``luck``; the same pair always gives the same episode."""


def belongs(seed: int, *task: int | str) -> bool:
    """Whether ``task`` may be given for ``seed``: held-out tasks for held-out seeds, others else.

    The side depends on the task alone, so an environment that redraws until this is true gives no
    training seed a task that a held-out seed can give, however few tasks there are.
    """
    return (seed < HELD_OUT_SEEDS) == (stream_key("held out", *task) % HELD_OUT_ONE_IN == 0)


def rising(low: int, high: int) -> range:
    """Values of a setting from ``low`` up, evenly spaced, at most ``MOST_EASIER`` and all below ``high``."""
    return range(low, high, max(1, -(-(high - low) // MOST_EASIER)))


def normalise(action: str) -> str:
    """Fold case and white space of an action as an agent may write it."""
    return " ".join(action.lower().split())


def image_name(episode: Episode) -> str:
    """Names the pixels that are shown now; empty where there are none."""
    pixels = episode.shown_image
    return "" if pixels is None else Image(pixels).digest
