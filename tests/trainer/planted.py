"""Environments with planted prompts: the seed says which are live, blind, trivial, hard or impossible."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

import numpy as np

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.diagnostics import Label
from ragen2.envs.base import Env, Episode, Step
from ragen2.envs.frozen_lake import FrozenLake, Lake, LakeEpisode
from ragen2.envs.math import expressions
from ragen2.envs.math.countdown import Countdown, CountdownEpisode, CountdownTask
from ragen2.rollout import Rollout, Task, play
from ragen2.seeding import stream
from ragen2.types import Group

PLANTS = ("live", "blind", "silent", "trivial", "impossible", "hard")
TRUTH = {
    "blind": Label.REWARD_BLIND,
    "silent": Label.REWARD_BLIND,
    "trivial": Label.TOO_EASY,
    "impossible": Label.TOO_HARD,
    "hard": Label.TOO_HARD,
}


def plant(seed: int) -> str:
    return PLANTS[seed % len(PLANTS)]


class Constant(Episode):
    """Plays like ``inner`` and pays the same for everything, once, at the first action."""

    def __init__(self, inner: Episode, pay: float, *, silent: bool) -> None:
        self.inner = inner
        self.pay = pay
        self.silent = silent

    @property
    def observation(self) -> str:
        return self.inner.observation

    def step(self, action: str) -> Step:
        step = self.inner.step(action)
        paid, self.pay = self.pay, 0.0
        return replace(step, reward=paid, solved=step.solved and not self.silent)

    def expert(self) -> tuple[str, ...]:
        return self.inner.expert()

    def random_action(self, rng: np.random.Generator) -> str:
        return self.inner.random_action(rng)

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        return self.inner.explain(actions, rng)


class PlantedLake(FrozenLake):
    """FrozenLake with planted prompts. ``blind`` keeps its solved flag, ``silent`` never sets it."""

    kind: Literal["PlantedLake"] = "PlantedLake"

    def start(self, seed: int, luck: int) -> Episode:
        kind = plant(seed)
        pays = stream("plant", seed).choice([0.0, 0.5, 1.0])
        if kind == "blind":
            return Constant(super().start(seed, luck), float(pays), silent=False)
        if kind == "silent":
            return Constant(super().start(seed, luck), float(max(pays, 0.5)), silent=True)
        lakes = {
            "trivial": Lake(4, frozenset(), (1, 1), (1, 2)),
            "impossible": Lake(4, frozenset({(2, 3), (3, 2)}), (0, seed % 3), (3, 3)),
            "hard": Lake(4, frozenset(), (3, seed % 4), (0, seed % 4)),
        }
        if kind not in lakes:
            return super().start(seed, luck)
        return LakeEpisode(self, lakes[kind], stream("FrozenLake", "slip", seed, luck))


class PlantedCountdown(Countdown):
    """Countdown with planted prompts: one turn, no luck, partial credit of 0.1."""

    kind: Literal["PlantedCountdown"] = "PlantedCountdown"

    def start(self, seed: int, luck: int) -> Episode:
        kind = plant(seed)
        inner = super().start(seed, luck)
        pays = stream("plant", seed).choice([0.0, 0.5, 1.0])
        if kind == "blind":
            return Constant(inner, float(pays), silent=False)
        if kind == "silent":
            return Constant(inner, float(max(pays, 0.5)), silent=True)
        tasks = {
            "trivial": CountdownTask((2, 3 + seed % 7), 5 + seed % 7, f"2 + {3 + seed % 7}"),
            "impossible": CountdownTask((2, 2), 97, "2 + 2"),
            "hard": CountdownTask((7, 9 + seed % 7), 7 * (9 + seed % 7), f"7 * {9 + seed % 7}"),
        }
        return CountdownEpisode(self, tasks[kind]) if kind in tasks else inner


def walk(prompt: str, rng: np.random.Generator) -> str:
    """Towards the goal half of the time, at random else; always right beside it, never up."""
    spot = re.findall(r"You \((\d+),(\d+)\) Goal \((\d+),(\d+)\)", prompt)[-1]
    row, column, goal_row, goal_column = map(int, spot)
    down, right = goal_row - row, goal_column - column
    wanted = "Down" if down > 0 else "Right" if right > 0 else "Left" if right < 0 else "Down"
    is_beside = abs(down) + abs(right) == 1
    move = wanted if is_beside or rng.random() < 0.5 else str(rng.choice(["Left", "Down", "Right"]))
    return f"so {move}</think><answer>{move}</answer>"


def add_up(prompt: str, rng: np.random.Generator) -> str:
    """Half of the time the answer, except where only a product of two gives it; else any sum."""
    numbers, target = re.findall(r"Numbers: ([\d ]+) Target: (\d+)", prompt)[-1]
    given = tuple(map(int, numbers.split()))
    found = expressions.find(given, int(target), "+-*/" if len(given) > 2 else "+-")
    if found is not None and (len(given) == 2 or rng.random() < 0.5):
        answer = expressions.write(found)
    else:
        answer = " + ".join(map(str, rng.permutation(given)))
    return f"so {answer}</think><answer>{answer}</answer>"


def play_planted(env: Env, *, prompts: int, group_size: int) -> list[Group]:
    policy = ScriptedPolicy(walk if isinstance(env, PlantedLake) else add_up)
    tasks = [[Task(100_000 + p, luck) for luck in range(group_size)] for p in range(prompts)]
    rollout = Rollout(prompts=prompts, group_size=group_size, actions_per_turn=1)
    return play(env, policy, tasks, rollout, key=("planted",))


for _kind in ("PlantedLake", "PlantedCountdown"):
    del Env.registry[_kind]  # known here alone: tests that go through all kinds must not meet them
