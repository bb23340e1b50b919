"""Play a prompt again in its environment: other behaviour (contrasts), or the same under other luck.

Letters: G members, R replays.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.diagnostics.metrics.attempts import Contrasts, Played, executed_actions
from ragen2.envs.base import Env, Episode, image_name
from ragen2.seeding import stream
from ragen2.types import FloatArray, Group

REPLAY_LUCK = 1_000_000
"""Lucks from here on belong to replays, so that none repeats the luck of a member."""
OTHER_LUCK = 2_000_000
"""Lucks from here on belong to replays of members' own actions."""


@dataclass(frozen=True, slots=True)
class EnvReplayer:
    """Contrasts from one environment."""

    env: Env

    @property
    def reward_range(self) -> tuple[float, float]:
        """What the environment states."""
        return self.env.reward_range

    def contrasts(self, group: Group, replays: int) -> Contrasts:
        """The expert, random play, and the members' own actions under other luck.

        Where luck does nothing the expert plays once and members are not replayed. An environment that
        raises gives contrasts without plays and says why: a diagnostic must not end a run.
        """
        seed = group.prompt.seed
        lucks = range(REPLAY_LUCK, REPLAY_LUCK + replays)
        try:
            return Contrasts(
                expert=tuple(
                    play_expert(self.env, seed, luck)
                    for luck in lucks[: replays if self.env.stochastic else 1]
                ),
                random=tuple(play_random(self.env, seed, luck) for luck in lucks),
                own=self._own(group, replays) if self.env.stochastic else (),
                one_turn=self.env.max_turns == 1,
            )
        except Exception:  # noqa: BLE001 - a broken environment becomes data, as in a rollout
            return Contrasts(problem=traceback.format_exc().strip().splitlines()[-1])

    def _own(self, group: Group, replays: int) -> tuple[Played, ...]:
        """``replays`` plays in all, spread over members that did different things."""
        plans = list(dict.fromkeys(executed_actions(one) for one in group.trajectories))
        return tuple(
            replay_actions(
                self.env, group.prompt.seed, OTHER_LUCK + index, plans[index % len(plans)]
            )
            for index in range(replays)
        )


def replay_actions(env: Env, seed: int, luck: int, actions: Sequence[str]) -> Played:
    """These actions, in order, until the episode ends."""
    plan = iter(actions)
    return _play(env, env.start(seed, luck), lambda: next(plan, None))


def play_expert(env: Env, seed: int, luck: int) -> Played:
    """The scripted expert until it has no plan; where luck matters it is asked before each action."""
    episode = env.start(seed, luck)
    plan: list[str] = []

    def choose() -> str | None:
        if env.stochastic or not plan:
            plan[:] = episode.expert()
        return plan.pop(0) if plan else None

    return _play(env, episode, choose)


def play_random(env: Env, seed: int, luck: int) -> Played:
    """Legal actions at random, as many as the environment allows."""
    episode = env.start(seed, luck)
    rng = stream("replay", "random", seed, luck)
    return _play(env, episode, lambda: episode.random_action(rng))


def replayed_returns(env: Env, group: Group, replays: int) -> FloatArray:
    """Returns G x R of each member's actions under ``replays`` lucks of its own.

    No two plays share a luck, so that luck is independent noise. A member's format penalties are part
    of each of its returns: luck does not touch them.
    """
    returns_GR = np.empty((len(group.trajectories), replays))
    for member, trajectory in enumerate(group.trajectories):
        actions = executed_actions(trajectory)
        penalty = sum(turn.penalty for turn in trajectory.turns)
        for index in range(replays):
            luck = OTHER_LUCK + member * replays + index
            played = replay_actions(env, group.prompt.seed, luck, actions)
            returns_GR[member, index] = played.reward + penalty
    return returns_GR


def _play(env: Env, episode: Episode, choose: Callable[[], str | None]) -> Played:
    """Play what ``choose`` gives until the end, the last action allowed, or None."""
    taken: list[str] = []
    reward, solved = 0.0, False
    while len(taken) < env.max_actions and (action := choose()) is not None:
        step = episode.step(action)
        taken.append(action)
        reward += step.reward
        if step.done:
            solved = step.solved
            break
    return Played(reward, solved, tuple(taken), episode.observation, image_name(episode))
