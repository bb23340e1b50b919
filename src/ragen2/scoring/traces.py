"""Which (prompt, reasoning) pairs to score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.types import Group, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One reasoning with the prompt it was written for, both as the tokens that were really used."""

    prompt_ids_T: IntArray
    reasoning_ids_T: IntArray


def first_turn_traces(groups: Sequence[Group], limit: int, rng: np.random.Generator) -> list[Trace]:
    """First-turn reasonings of all trajectories; at most ``limit``, drawn evenly over the groups.

    Empty reasonings are left out: there is nothing to score. The draw takes the same number from each
    group (up to one), so that no prompt dominates the marginal.
    """
    by_group = [
        [
            Trace(trajectory.turns[0].prompt_ids_T, trajectory.turns[0].reasoning_ids_T)
            for trajectory in group.trajectories
            if trajectory.turns and len(trajectory.turns[0].reasoning_ids_T)
        ]
        for group in groups
    ]
    for members in by_group:
        rng.shuffle(members)
    chosen: list[Trace] = []
    for rank in range(max((len(members) for members in by_group), default=0)):
        chosen.extend(members[rank] for members in by_group if rank < len(members))
    return chosen[:limit]
