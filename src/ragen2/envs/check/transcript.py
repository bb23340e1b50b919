"""Plays of an environment written down, so that they can be compared and measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ragen2.envs.base import Env, Episode, Step
from ragen2.seeding import stream
from ragen2.types import Image


@dataclass(frozen=True, slots=True)
class Line:
    """One action, what it did and how long that took; equal lines may differ in time."""

    action: str
    step: Step
    observation: str
    seconds: float = field(compare=False)
    image: str = ""
    """Name of the pixels shown beside it; empty where there are none."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """One play: what was shown first, then a line an action."""

    first_observation: str
    lines: tuple[Line, ...]
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


def take(episode: Episode, action: str) -> Line:
    """Take one action and write it down."""
    began = time.monotonic()
    step = episode.step(action)
    observation = episode.observation
    return Line(action, step, observation, time.monotonic() - began, image_name(episode))


def image_name(episode: Episode) -> str:
    """Names the pixels that are shown now; empty where there are none."""
    pixels = episode.shown_image
    return "" if pixels is None else Image(pixels).digest


def random_play(env: Env, seed: int, luck: int) -> Transcript:
    """Legal actions at random until the end or ``max_actions``."""
    rng = stream("check", seed)
    episode = env.start(seed, luck)
    shown, image = episode.observation, image_name(episode)
    lines: list[Line] = []
    while len(lines) < env.max_actions and not (lines and lines[-1].step.done):
        lines.append(take(episode, episode.random_action(rng)))
    return Transcript(shown, tuple(lines), image)


def expert_play(env: Env, seed: int, luck: int) -> Transcript:
    """The expert's actions until the end or ``max_actions``.

    Without luck in the game its plan is followed to the end; else it is asked before every action.
    """
    episode = env.start(seed, luck)
    shown, image = episode.observation, image_name(episode)
    lines: list[Line] = []
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
