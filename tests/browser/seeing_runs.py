"""A run of an agent that is shown images: a script that reads the boards stands in for a model."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ragen2.backends.scripted import ScriptedPolicy
from ragen2.config import RunConfig, dump_config
from ragen2.diagnostics import (
    Actions,
    Collapse,
    Evidence,
    Flow,
    Reward,
    Surface,
    Vision,
    measure_all,
    regime,
)
from ragen2.envs import FrozenLake
from ragen2.rollout import Rollout, Task, play
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.types import Image

PLACES = re.compile(r"You \((\d),(\d)\) Goal \((\d),(\d)\)")
SHOWN = re.compile(r"\[image ([0-9a-f]{32})\]")
FIRST = 100_000
PROMPTS = 6
GONE_BLIND = 3
"""Step from which on the agent no longer looks."""


class Reader:
    """Knows what is on every board that can come up: reads the pixels off by heart."""

    def __init__(self, observation: str) -> None:
        shared = {"slip": 0.0, "max_turns": 4}
        self.env = FrozenLake(observation=observation, **shared)
        plain = FrozenLake(**shared)
        self.told: dict[str, str] = {}
        for seed in range(FIRST, FIRST + PROMPTS):
            self._explore(seed, plain)

    def policy(self, *, looks: bool) -> ScriptedPolicy:
        """An agent that talks about what it is shown, or about any board at all."""

        def reply(prompt: str, rng: np.random.Generator) -> str:
            told = self.told[SHOWN.findall(prompt)[-1]]
            told = told if looks else list(self.told.values())[rng.integers(len(self.told))]
            return f"{told}</think><answer>{told.rpartition(' ')[2]}</answer>"

        def logp(prompt: str, text: str) -> float:
            own = self.told[SHOWN.findall(prompt)[-1]]
            return -0.3 - 0.2 * sum(a != b for a, b in zip(own, text, strict=False)) * looks

        return ScriptedPolicy(reply, logp)

    def _explore(self, seed: int, plain: FrozenLake) -> None:
        left: list[tuple[str, ...]] = [()]
        while left:
            path = left.pop()
            seen, read = self.env.start(seed, 0), plain.start(seed, 0)
            is_over = any(seen.step(action).done | read.step(action).done for action in path)
            name = Image(seen.shown_image).digest
            if is_over or name in self.told:
                continue
            self.told[name] = _words(read.observation)
            if len(path) < 8:
                left += [(*path, action) for action in ("Up", "Down", "Left", "Right")]


def seeing_run(path: Path, observation: str = "image", steps: int = 5) -> Path:
    """A run directory; the agent goes blind at step ``GONE_BLIND``."""
    reader = Reader(observation)
    rollout = Rollout(prompts=PROMPTS, group_size=4)
    run = RunDirectory.create(path, dump_config(RunConfig(env=reader.env, rollout=rollout)))
    diagnostics = [Surface(), Actions(), Reward(), Collapse(), Flow(), Vision()]
    for step in range(1, steps + 1):
        policy = reader.policy(looks=step < GONE_BLIND)
        tasks = [[Task(FIRST + p, luck) for luck in range(4)] for p in range(PROMPTS)]
        groups = play(reader.env, policy, tasks, rollout, key=("seen", step))
        metrics = measure_all(diagnostics, Evidence(step, groups, policy))
        stem = "collapse/first_turn/"
        plain = {n.removeprefix(stem): v for n, v in metrics.items() if n.startswith(stem)}
        run.save_rollouts(step, groups)
        run.save_scores(step, metrics.scores)
        run.append(StepRecord(step=step, metrics=metrics, regime=regime(plain).value))
    return path


def _words(observation: str) -> str:
    row, column, goal_row, goal_column = map(int, PLACES.search(observation).groups())
    down, right = goal_row - row, goal_column - column
    move = (
        ("Down" if down > 0 else "Up")
        if abs(down) >= abs(right)
        else "Right"
        if right > 0
        else "Left"
    )
    goal = f"the goal in row {goal_row}, column {goal_column}"
    return f"I stand in row {row}, column {column}, {goal}. So {move}"
