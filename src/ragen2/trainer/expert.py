"""Scripted expert episodes: dialogues to warm-start a model on, of chosen quality and groundedness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ragen2.envs.base import HELD_OUT_SEEDS, Env, Episode
from ragen2.rollout.context import shown_image, system_message, turn_message
from ragen2.rollout.reply import ReplyFormat, render_reply
from ragen2.seeding import stream
from ragen2.types import Message


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One scripted episode: ``replies[i]`` answers ``users[i]``."""

    system: Message
    users: tuple[Message, ...]
    replies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """How the scripted player behaves."""

    quality: float
    """Chance that a turn follows the expert; other turns act at random."""
    groundedness: float
    """Chance that a reasoning describes its own state; others are what the same script would have
    said at the start of another task, so that wording and length do not give them away."""


def script_episode(env: Env, script: Script, form: ReplyFormat, seed: int, index: int) -> Dialogue:
    """Episode ``index`` of the script named ``seed``, on a task that is never evaluated on.

    The game, and every true reasoning, is the same at every groundedness: reasoning about other tasks
    draws from a stream of its own.
    """
    rng = stream("script", seed, index)
    elsewhere = stream("script elsewhere", seed, index)
    task = HELD_OUT_SEEDS + int(rng.integers(2**40))
    episode = env.start(task, index)
    users: list[Message] = []
    replies: list[str] = []
    taken, is_done = 0, False
    while not is_done and len(users) < env.max_turns and taken < env.max_actions:
        users.append(
            turn_message(
                episode.observation,
                actions_left=env.max_actions - taken,
                problem="",
                image=shown_image(episode),
            )
        )
        most = min(form.max_actions, env.max_actions - taken)
        actions = _choose(episode, script, rng, most)
        is_grounded = rng.random() < script.groundedness
        reasoning = episode.explain(actions, rng)
        if not is_grounded:
            reasoning = _reason_elsewhere(env, script, elsewhere, most)
        replies.append(render_reply(reasoning, actions, form))
        for action in actions:
            step = episode.step(action)
            taken, is_done = taken + 1, step.done
            if is_done:
                break
    return Dialogue(system_message(env, form), tuple(users), tuple(replies))


def _choose(
    episode: Episode, script: Script, rng: np.random.Generator, most: int
) -> tuple[str, ...]:
    plan = episode.expert()
    count = int(rng.integers(1, most + 1))
    if plan and rng.random() < script.quality:
        return plan[:count]
    return tuple(episode.random_action(rng) for _ in range(count))


def _reason_elsewhere(env: Env, script: Script, rng: np.random.Generator, most: int) -> str:
    other = env.start(HELD_OUT_SEEDS + int(rng.integers(2**40)), 0)
    return other.explain(_choose(other, script, rng, most), rng)
