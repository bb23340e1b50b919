"""The filter contract: a signal for each prompt, then a rule that says which prompts to keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from ragen2.component import Component
from ragen2.errors import EnvError
from ragen2.spread import Signal, spread
from ragen2.types import BoolArray, FloatArray, Group, Selection


class Filter(Component, ABC):
    """Chooses the prompts that are worth an update. It describes; it never edits."""

    family: ClassVar[str] = "filter"

    kind: str
    signal: Signal = Field("reward_variance", description="within-group spread that ranks prompts")
    ddof: int = Field(1, ge=0, le=1, description="0: spread of these rewards; 1: unbiased estimate")

    @abstractmethod
    def keep(self, scores_P: FloatArray) -> BoolArray:
        """Which prompts to keep, given their scores."""

    def select(self, groups: Sequence[Group]) -> Selection:
        """Score each group by its rewards and keep what the rule keeps."""
        for group in groups:
            bad = np.flatnonzero(~np.isfinite(group.rewards_G))
            if len(bad):
                raise EnvError(
                    f"{group.prompt.env} seed {group.prompt.seed} returned a reward of "
                    f"{group.rewards_G[bad[0]]}; an environment must pay finite rewards"
                )
        return self.select_rewards([group.rewards_G for group in groups])

    def select_rewards(self, rewards_PG: Sequence[FloatArray]) -> Selection:
        """The same for bare rewards; groups may differ in size."""
        scores_P = np.array([spread(rewards_G, self.signal, self.ddof) for rewards_G in rewards_PG])
        kept_P = self.keep(scores_P)
        reason = "" if kept_P.any() else self._why_nothing(scores_P)
        return Selection(kept_P, scores_P, reason)

    def _why_nothing(self, scores_P: FloatArray) -> str:
        if not scores_P.any():
            return f"all {len(scores_P)} prompts have zero {self.signal}"
        return f"no prompt passed {self.kind}; greatest {self.signal} {scores_P.max():.3g}"
