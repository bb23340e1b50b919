"""Episodes of anyone's environment, held to the contract.

What they return is checked, and a call that raises, takes too long or ends the program is an ``EnvError``
that names the environment, the task and the call. Whoever plays an environment starts it here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from ragen2.component import is_ours, shortened
from ragen2.envs.base import HELD_OUT_SEEDS, Env, Episode, Step
from ragen2.errors import EnvError, MissingMethod, RagenError, told
from ragen2.time_limit import within

LONGEST_TEXT = 1_000_000
"""Characters of an observation at most: far more than any model reads."""
LARGEST_REWARD = 1e15
"""Either way: returns of such steps, and their squares, are still numbers of 32 bits."""
OPTIONAL = ("expert", "random_action", "explain")
"""What an episode need not have."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def start_episode(env: Env, seed: int, luck: int) -> GuardedEpisode:
    """What ``env.start`` gives, guarded."""
    episode = _call(env, f"start of task {seed}", env.start, seed, luck)
    if not isinstance(episode, Episode):
        raise EnvError(
            f"{env.kind}: start of task {seed} returned {_kind_of(episode)}; it must be an Episode"
        )
    return GuardedEpisode(env, seed, episode)


def missing_methods(env: Env) -> tuple[str, ...]:
    """Which of ``OPTIONAL`` the environment's episodes lack; fixed actions can be drawn without a method."""
    own = type(start_episode(env, HELD_OUT_SEEDS, 0).unguarded)
    missing = [name for name in OPTIONAL if getattr(own, name) is getattr(Episode, name)]
    if env.has_fixed_actions and action_forms_of(env):
        missing = [name for name in missing if name != "random_action"]
    return tuple(missing)


def random_action(env: Env, episode: Episode, rng: np.random.Generator) -> str:
    """The episode's own choice, or one of the fixed actions where it makes none."""
    try:
        return episode.random_action(rng)
    except MissingMethod:
        forms = action_forms_of(env) if env.has_fixed_actions else ()
        if not forms:
            raise
        return forms[int(rng.integers(len(forms)))]


def text_of(env: Env, name: str) -> str:
    """A property of an environment that prompts show, such as its rules: it must be text."""
    return _text(env, name, _call(env, name, lambda: getattr(env, name)))


def action_forms_of(env: Env) -> tuple[str, ...]:
    """The actions as prompts list them, which must be texts."""
    found = _call(env, "action_forms", lambda: env.action_forms)
    if not isinstance(found, tuple | list):
        raise EnvError(
            f"{env.kind}: action_forms is {_kind_of(found)}; it must be a tuple of texts"
        )
    return tuple(_text(env, "action_forms", one) for one in found)


class GuardedEpisode(Episode):
    """An episode whose every call is guarded; what is not part of the contract is the episode's own."""

    def __init__(self, env: Env, seed: int, episode: Episode) -> None:
        self._env = env
        self._seed = seed
        self._episode = episode

    @property
    def observation(self) -> str:
        """What the agent is shown now."""
        return self._text("observation", lambda: self._episode.observation)

    def step(self, action: str) -> Step:
        """Take one action."""
        found = self._call("step", self._episode.step, action)
        problem = _problem(found)
        if problem:
            raise EnvError(f"{self._named('step')} for {shortened(action)} {problem}")
        return _plain(found)

    def expert(self) -> tuple[str, ...]:
        """A best plan from here."""
        plan = self._call("expert", self._episode.expert)
        if not isinstance(plan, tuple | list) or not all(isinstance(one, str) for one in plan):
            raise EnvError(
                f"{self._named('expert')} returned {shortened(plan)}; it must be actions as text"
            )
        return tuple(plan)

    def random_action(self, rng: np.random.Generator) -> str:
        """A legal action at random."""
        return self._text("random_action", lambda: random_action(self._env, self._episode, rng))

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """Scripted reasoning that leads to ``actions``."""
        return self._text("explain", lambda: self._episode.explain(actions, rng))

    def image(self, cell_pixels: int = 28) -> npt.NDArray[np.uint8] | None:
        """The state as pixels."""
        return self._pixels("image", lambda: self._episode.image(cell_pixels))

    @property
    def shown_image(self) -> npt.NDArray[np.uint8] | None:
        """The image that the agent is shown beside ``observation``."""
        return self._pixels("shown_image", lambda: self._episode.shown_image)

    @property
    def unguarded(self) -> Episode:
        """The episode as its environment made it."""
        return self._episode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._episode, name)

    def _call(
        self,
        name: str,
        call: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        try:
            return _call(self._env, f"{name} of task {self._seed}", call, *args, **kwargs)
        except MissingMethod as error:
            raise MissingMethod(f"{self._env.kind} has no {name}") from error

    def _text(self, name: str, call: Callable[[], str]) -> str:
        return _text(self._env, f"{name} of task {self._seed}", self._call(name, call))

    def _pixels(
        self, name: str, call: Callable[[], npt.NDArray[np.uint8] | None]
    ) -> npt.NDArray[np.uint8] | None:
        found = self._call(name, call)
        if found is not None and not isinstance(found, np.ndarray):
            raise EnvError(f"{self._named(name)} is {_kind_of(found)}; it must be an array or None")
        if found is not None and (
            found.ndim != 3 or found.shape[2] != 3 or found.dtype != np.uint8 or not found.size
        ):
            raise EnvError(
                f"{self._named(name)} is {found.shape} of {found.dtype}; it must be height x width x 3 bytes"
            )
        return found

    def _named(self, name: str) -> str:
        return f"{self._env.kind}: {name} of task {self._seed}"


def _call(
    env: Env,
    doing: str,
    call: Callable[Parameters, Result],
    *args: Parameters.args,
    **kwargs: Parameters.kwargs,
) -> Result:
    try:
        return within(env.step_timeout, call, *args, **kwargs)
    except (RagenError, KeyboardInterrupt):
        raise
    except TimeoutError as error:
        raise EnvError(
            f"{env.kind}: {doing} raised {told(error)}; mend it, or raise env.step_timeout"
        ) from error
    except BaseException as error:
        if is_ours(type(env)) and isinstance(error, Exception):
            raise
        raise EnvError(f"{env.kind}: {doing} raised {told(error)}") from error


def _text(env: Env, what: str, found: object) -> str:
    if not isinstance(found, str):
        raise EnvError(f"{env.kind}: {what} is {_kind_of(found)}; it must be text")
    if len(found) > LONGEST_TEXT:
        raise EnvError(
            f"{env.kind}: {what} has {len(found):,} characters; it may have {LONGEST_TEXT:,}"
        )
    if not found.isascii() and any("\ud800" <= one <= "\udfff" for one in found):
        raise EnvError(f"{env.kind}: {what} holds half a character, which no file can; replace it")
    return found


def _problem(step: object) -> str:
    """What keeps a value from being a step; empty for one that is."""
    if not isinstance(step, Step):
        return f"returned {_kind_of(step)}; it must be a Step"
    if isinstance(step.reward, str | bytes) or not _is_finite(step.reward):
        return f"gave the reward {shortened(step.reward)}; it must be a finite number"
    if abs(step.reward) > LARGEST_REWARD:
        return f"gave the reward {step.reward:g}; it may be {LARGEST_REWARD:g} at most"
    for name in ("done", "solved", "valid", "effective"):
        if not isinstance(getattr(step, name), bool | np.bool_):
            return f"gave {name} {shortened(getattr(step, name))}; it must be True or False"
    return ""


def _plain(step: Step) -> Step:
    """The same step with Python's own number and truth values, which every file can hold."""
    values = (step.reward, step.done, step.solved, step.valid, step.effective)
    if tuple(map(type, values)) == (float, bool, bool, bool, bool):
        return step
    reward, *flags = values
    done, solved, valid, effective = map(bool, flags)
    return replace(
        step, reward=float(reward), done=done, solved=solved, valid=valid, effective=effective
    )


def _is_finite(reward: Any) -> bool:
    try:
        return math.isfinite(reward)
    except (TypeError, ValueError, OverflowError):
        return False


def _kind_of(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
