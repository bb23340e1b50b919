"""Sokoban whose held-out tasks begin at another number: each seed of a run is judged on tasks of its own.

Training tasks, rooms, rewards and prompts are those of Sokoban.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.envs.sokoban.env import Sokoban, SokobanEpisode


class SokobanFrom(Sokoban):
    """Sokoban with held-out tasks from ``first_task`` on."""

    kind: Literal["SokobanFrom"] = "SokobanFrom"  # type: ignore[assignment]
    first_task: int = Field(
        0, ge=0, lt=HELD_OUT_SEEDS // 2, description="held-out task that stands for the first one"
    )

    def start(self, seed: int, luck: int) -> SokobanEpisode:
        """A held-out seed is counted from ``first_task``; a training seed is what it is."""
        return super().start(seed + self.first_task if seed < HELD_OUT_SEEDS else seed, luck)
