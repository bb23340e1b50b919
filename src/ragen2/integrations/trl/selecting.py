"""Which rows a filter keeps. Letters: N rows of all processes, P groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.filtering import Filter
from ragen2.types import BoolArray, FloatArray, Selection


@dataclass(frozen=True, slots=True, eq=False)
class RowSelection:
    """A filter's verdict spread over the rows of its groups."""

    selection: Selection
    kept_N: BoolArray
    weights_N: FloatArray
    """What each row's advantage is multiplied by."""

    def of_groups(self, has_reward_P: Sequence[bool]) -> Selection:
        """The verdict on the groups that have any reward."""
        rows = np.array(has_reward_P, dtype=np.bool_)
        one = self.selection
        return Selection(one.kept_P[rows], one.scores_P[rows], one.reason)


def select_rows(rule: Filter, rewards_N: FloatArray, size: int) -> RowSelection:
    """Apply ``rule`` to groups of ``size`` rows; rows without a reward (NaN) count for nothing.

    A group without a single reward has nothing to be ranked by and is dropped.
    """
    rewards_PG = rewards_N.reshape(-1, size)
    has_reward_PG = np.isfinite(rewards_PG)
    paid_P = np.flatnonzero(has_reward_PG.any(axis=1))
    kept_PG = np.zeros(rewards_PG.shape, dtype=np.bool_)
    weights_PG = np.ones(rewards_PG.shape)
    kept_P, scores_P = np.zeros(len(rewards_PG), dtype=np.bool_), np.zeros(len(rewards_PG))
    reason = "no completion has a reward"
    if len(paid_P):
        groups = [rewards_PG[p][has_reward_PG[p]] for p in paid_P]
        found = rule.select_rewards(groups)
        kept_P[paid_P], scores_P[paid_P], reason = found.kept_P, found.scores_P, found.reason
        kept_PG[kept_P] = True
        for place, p in enumerate(paid_P):
            if found.weights_P is not None:
                weights_PG[p] = found.weights_P[place]
            if found.members is not None:
                kept_PG[p, has_reward_PG[p]] &= found.members[place]
    selection = Selection(kept_P, scores_P, reason)
    return RowSelection(selection, kept_PG.ravel(), weights_PG.ravel())
