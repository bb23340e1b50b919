"""Bandit: two arms named after jobs, one steady, one risky; the names hint which is which.

The seed fixes the pair and the order they are named in, so all members of a group read the same
prompt; the luck fixes what the risky arm pays.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from ragen2.envs.base import Env, Episode, Step, belongs, normalise
from ragen2.seeding import stream

PAIRS: tuple[tuple[str, str], ...] = (
    ("Librarian", "Gambler"),
    ("Accountant", "Explorer"),
    ("Archivist", "Stuntman"),
    ("Postman", "Inventor"),
    ("Gardener", "Racer"),
    ("Notary", "Smuggler"),
    ("Baker", "Prospector"),
    ("Tailor", "Pilot"),
    ("Teacher", "Trader"),
    ("Surveyor", "Acrobat"),
    ("Pharmacist", "Pirate"),
    ("Miller", "Diver"),
)
"""(steady, risky) names."""


class Bandit(Env):
    """Choose one of two arms, once."""

    kind: Literal["Bandit"] = "Bandit"
    max_turns: int = Field(1, ge=1, description="replies the agent may write in one episode")
    max_actions: int = Field(1, ge=1, description="actions the environment takes in one episode")
    steady_reward: float = Field(0.1, ge=0.0, le=1.0, description="what the steady arm always pays")
    risky_reward: float = Field(1.0, ge=0.0, le=1.0, description="what the risky arm pays on a win")
    risky_chance: float = Field(0.25, ge=0.0, le=1.0, description="chance that the risky arm wins")

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    stochastic: ClassVar[bool] = True
    reward_kind: ClassVar[Literal["binary", "dense"]] = "dense"

    @property
    def instruction(self) -> str:
        """Rules and a worked reply."""
        return f"{self.rules} Example: <think>a Monk is steady</think><answer>Monk</answer>"

    @property
    def rules(self) -> str:
        """What the arms are."""
        return (
            "Two arms carry the names of jobs. One always pays a little, the other seldom pays "
            "a lot. Think about what the names stand for, then choose one."
        )

    @property
    def answer_form(self) -> str:
        """An arm."""
        return "the name of one arm"

    def start(self, seed: int, luck: int) -> BanditEpisode:
        """Pair and order from ``seed``; the payout from ``seed`` and ``luck``."""
        rng = stream("Bandit", "pair", seed)
        pairs = [pair for pair in PAIRS if belongs(seed, "Bandit", *pair)]
        steady, risky = pairs[int(rng.integers(len(pairs)))]
        names = (steady, risky) if rng.random() < 0.5 else (risky, steady)
        wins = stream("Bandit", "payout", seed, luck).random() < self.risky_chance
        return BanditEpisode(self, names, risky, wins)


class BanditEpisode(Episode):
    """One choice."""

    def __init__(self, env: Bandit, names: tuple[str, str], risky: str, wins: bool) -> None:
        self.env = env
        self.names = names
        self.risky = risky
        self._wins = wins
        self._chosen: str | None = None

    @property
    def observation(self) -> str:
        """The two names; after the choice, what was chosen."""
        if self._chosen is not None:
            return f"You chose {self._chosen}."
        return f"Arms: {self.names[0]}, {self.names[1]}"

    def step(self, action: str) -> Step:
        """Pull an arm; solved means the arm with the higher expected reward was pulled."""
        wanted = normalise(action)
        choice = next((name for name in self.names if name.lower() == wanted), None)
        if choice is None:
            done = self._chosen is not None
            return Step(reward=0.0, done=done, valid=False, effective=False)
        if self._chosen is not None:
            return Step(reward=0.0, done=True, solved=self._chosen == self._best, effective=False)
        self._chosen = choice
        risky_pays = self.env.risky_reward if self._wins else 0.0
        reward = risky_pays if choice == self.risky else self.env.steady_reward
        return Step(reward=reward, done=True, solved=choice == self._best)

    def expert(self) -> tuple[str, ...]:
        """The arm with the higher expected reward."""
        return () if self._chosen is not None else (self._best,)

    def random_action(self, rng: np.random.Generator) -> str:
        """Either arm."""
        return self.names[int(rng.integers(2))]

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """Which name sounds risky, and the choice that follows."""
        steady = next(name for name in self.names if name != self.risky)
        openings = (
            f"a {self.risky} takes risks, a {steady} does not.",
            f"{steady} sounds steady and {self.risky} bold.",
            f"the {self.risky} may win much, the {steady} little.",
        )
        closing = f"I take {actions[0]}" if actions else "I wait"
        return f"{openings[int(rng.integers(len(openings)))]} {closing}"

    @property
    def _best(self) -> str:
        steady = next(name for name in self.names if name != self.risky)
        risky_value = self.env.risky_chance * self.env.risky_reward
        return self.risky if risky_value > self.env.steady_reward else steady
