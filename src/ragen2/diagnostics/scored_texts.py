"""The texts behind a score matrix: which reasoning each row is, and what its prompt showed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ragen2.runs.scores import RowSource
from ragen2.scoring import Trace
from ragen2.types import Group, Trajectory


def row_sources(
    traces: Sequence[Trace], groups: Sequence[Group], *, is_saved: bool = True
) -> list[RowSource]:
    """One source a trace, for traces drawn from ``groups``.

    ``is_saved``: whether these groups are what the step's rollout file holds, so that its lines count.
    """
    firsts = [0, *accumulate(len(group.trajectories) for group in groups)]
    found = []
    for trace in traces:
        place = trace.place
        if place is None:
            raise ValueError("a trace without a place has no text; take traces of groups")
        trajectory = groups[place.group].trajectories[place.member]
        turn = trajectory.turns[place.turn - 1]
        task = f"seed {trajectory.prompt.seed}"
        play = f"{task}, play {trajectory.luck}"
        later = f"{play}, turn {place.turn}"
        found.append(
            RowSource(
                text=turn.reply.reasoning,
                label=play if place.turn == 1 else later,
                prompt=_shown(trajectory, place.turn),
                prompt_label=task if place.turn == 1 else later,
                action=" || ".join(turn.reply.actions),
                turn=place.turn,
                line=firsts[place.group] + place.member if is_saved else None,
                image=trace.images[-1].digest if trace.images else "",
            )
        )
    return found


def _shown(trajectory: Trajectory, turn: int) -> str:
    """What the environment showed last before ``turn`` (from 1)."""
    if turn > 1:
        return trajectory.turns[turn - 2].observation
    messages = trajectory.prompt.messages
    return messages[-1].content if messages else ""
