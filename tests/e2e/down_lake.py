"""An environment that looks like a lake, where the one thing that pays is Down."""

from __future__ import annotations

from typing import Literal

from ragen2.envs import FrozenLake, Step
from ragen2.envs.base import normalise
from ragen2.envs.frozen_lake import LakeEpisode


class DownEpisode(LakeEpisode):
    """Ends with its first action."""

    def step(self, action: str) -> Step:
        is_down = normalise(action) == "down"
        return Step(reward=float(is_down), done=True, solved=is_down)


def define() -> str:
    """Register the kind and return its name."""

    class OnlyDown(FrozenLake):
        kind: Literal["OnlyDown"] = "OnlyDown"

        def start(self, seed: int, luck: int) -> DownEpisode:
            episode = super().start(seed, luck)
            return DownEpisode(self, episode.lake, episode._slips)

    return OnlyDown().kind
