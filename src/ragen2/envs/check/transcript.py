"""Plays of an environment, random, expert and odd, written down to be compared and measured.

Odd actions are what a model may write instead of an action: wrong, empty, huge, binary and hostile text.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ragen2.envs.base import Env, Episode, Step, image_name
from ragen2.envs.guard import random_action
from ragen2.errors import MissingMethod
from ragen2.seeding import stream
from ragen2.time_limit import within

ODD_ACTIONS_PER_SEED = 3
HANG_SECONDS = 60.0
"""After which a step is no longer waited for."""


@dataclass(frozen=True, slots=True)
class PlayedAction:
    """One action, what it did and how long that took; equal lines may differ in time."""

    action: str
    step: Step
    observation: str
    seconds: float = field(compare=False)
    image: str = ""
    """Name of the pixels shown beside it; empty where there are none."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """One play: what was shown first, then one line per action."""

    first_observation: str
    lines: tuple[PlayedAction, ...]
    first_image: str = ""

    @property
    def total_reward(self) -> float:
        """The return of the play."""
        return sum(line.step.reward for line in self.lines)

    @property
    def done(self) -> bool:
        """Whether the play came to its end."""
        return bool(self.lines) and self.lines[-1].step.done

    @property
    def solved(self) -> bool:
        """Whether it ended solved."""
        return bool(self.lines) and self.lines[-1].step.solved

    def rows(self) -> list[list[object]]:
        """All that must be the same in another process, as plain values."""
        rows: list[list[object]] = [[self.first_observation, self.first_image]]
        for line in self.lines:
            step = line.step
            flags = [step.done, step.solved, step.valid, step.effective]
            shown = [line.observation, line.image]
            rows.append([line.action, *shown, float(step.reward), *map(bool, flags)])
        return rows


def take(episode: Episode, action: str) -> PlayedAction:
    """Take one action and write it down."""
    began = time.monotonic()
    step = within(HANG_SECONDS, episode.step, action)
    observation = episode.observation
    return PlayedAction(action, step, observation, time.monotonic() - began, image_name(episode))


def random_play(env: Env, seed: int, luck: int) -> Transcript:
    """Legal actions at random until the end or ``max_actions``."""
    rng = stream("check", seed)
    episode = env.start(seed, luck)
    shown, image = episode.observation, image_name(episode)
    lines: list[PlayedAction] = []
    while len(lines) < env.max_actions and not (lines and lines[-1].step.done):
        lines.append(take(episode, random_action(env, episode, rng)))
    return Transcript(shown, tuple(lines), image)


def expert_play(env: Env, seed: int, luck: int) -> Transcript:
    """The expert's actions until the end or ``max_actions``.

    Without luck in the game its plan is followed to the end; else it is asked before every action.
    """
    episode = env.start(seed, luck)
    shown, image = episode.observation, image_name(episode)
    lines: list[PlayedAction] = []
    while len(lines) < env.max_actions and not (lines and lines[-1].step.done):
        plan = episode.expert()[: 1 if env.stochastic else env.max_actions - len(lines)]
        if not plan:
            break
        for action in plan:
            lines.append(take(episode, action))
            if lines[-1].step.done:
                break
    return Transcript(shown, tuple(lines), image)


def replay(episode: Episode, transcript: Transcript) -> Transcript:
    """The actions of ``transcript`` taken again in a fresh episode."""
    shown, image = episode.observation, image_name(episode)
    lines = tuple(take(episode, line.action) for line in transcript.lines)
    return Transcript(shown, lines, image)


def odd_play(env: Env, seed: int) -> Transcript:
    """A few odd actions in a row, others for each seed."""
    episode = env.start(seed, 0)
    actions = odd_actions(legal_action(env, seed))
    first = seed * ODD_ACTIONS_PER_SEED
    chosen = (actions[(first + turn) % len(actions)] for turn in range(ODD_ACTIONS_PER_SEED))
    shown, image = episode.observation, image_name(episode)
    lines = tuple(take(episode, action) for action in chosen)
    return Transcript(shown, lines, image)


def legal_action(env: Env, seed: int) -> str:
    """A legal first action of task ``seed``, the same every time; empty where the environment names none."""
    episode = env.start(seed, 0)
    try:
        return random_action(env, episode, stream("check", "legal", seed))
    except MissingMethod:
        pass
    try:
        return next(iter(episode.expert()), "")
    except MissingMethod:
        return ""


def odd_actions(legal: str) -> tuple[str, ...]:
    """``ODD_ACTIONS`` and spoilt forms of a legal action, which reach deeper into a parser."""
    spoilt = (
        legal * 1000,
        legal[: len(legal) // 2],
        legal[::-1],
        legal + "\x00",
        f"{legal} || {legal}",
        f'"{legal}"',
        legal.swapcase(),
        f"  {legal}\n",
        " ".join(legal),
        legal.replace("1", "10000000000000000000000"),
    )
    return (*ODD_ACTIONS, *spoilt)


_EMPTY = ("", " ", "\n\t\r", "\u200b", "||")
_BINARY = (
    "\x00",
    "\x00\x01\x02\xff",
    "\x1b[2J\x1b[31m",
    "\ud800",
    "\udcff\udcfe",
    "\ufeff",
    "\x7f" * 9,
)
_HUGE = (
    "x" * 100_000,
    "9" * 10_000,
    "(" * 5_000,
    "()" * 500,
    "[" * 2_000 + "]" * 2_000,
    "1+" * 20_000 + "1",
    "a " * 50_000,
    "\n" * 100_000,
    "😀" * 20_000,
    "1" + "0" * 400 + "/3",
)
_NUMBERS = (
    "-1",
    "nan",
    "inf",
    "1e999",
    "1/0",
    "9**9**9",
    "²",
    "٣",
    "0x10",
    "1_000",
    "None",
    "True",
)
_TAGS = ("<think>", "</answer>", "<answer></answer>", "<|im_end|>", "</s>", "```", "```python\n```")
_HOSTILE = (
    "__import__('os').system('exit 1')",
    "import os; os._exit(3)",
    "raise SystemExit",
    "while True: pass",
    "{0.__class__.__mro__}",
    "%s%s%s%n",
    "'; DROP TABLE tasks; --",
    "../../../../etc/passwd",
    "${jndi:ldap://localhost/x}",
    "$(sleep 100)",
    "a" * 40 + "!",
    "(a+)+$",
    "search[" + "*" * 500,
    "search[\x00]",
    "click[",
    "click[]]]]",
    "\\frac{1}{0}",
    "\\boxed{" * 200,
)
ODD_ACTIONS = (*_EMPTY, *_BINARY, *_HUGE, *_NUMBERS, *_TAGS, *_HOSTILE)
"""The same for every environment."""
