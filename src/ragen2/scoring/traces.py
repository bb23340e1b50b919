"""Which reasoning traces to score: of a first turn, of turn K, or of whole trajectories.

The prompt of a turn is always what the model really saw there, whatever history it is shown. A tag that opens
the reasoning counts as part of it, also where the model writes it itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ragen2.types import Group, Image, IntArray, Trajectory, Turn, context_key


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a batch a reasoning trace is."""

    group: int
    member: int
    turn: int
    """From 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A reasoning trace with the prompt it was written for, both as the tokens that were really used."""

    prompt_ids_T: IntArray
    reasoning_ids_T: IntArray
    place: Place | None = None
    """None for a trace that is not of a batch of groups."""
    images: tuple[Image, ...] = ()
    """Those in the prompt, in the order of their tokens."""

    @property
    def prompt_key(self) -> bytes:
        """Equal for prompts that are the same to a model."""
        return context_key(self.prompt_ids_T, self.images)


def first_turn_traces(
    groups: Sequence[Group], limit: int | None, rng: np.random.Generator
) -> list[Trace]:
    """Reasoning traces of first turns; see ``turn_traces``."""
    return turn_traces(groups, 1, limit, rng)


def turn_traces(
    groups: Sequence[Group], k: int, limit: int | None, rng: np.random.Generator
) -> list[Trace]:
    """Reasoning traces of turn ``k`` (from 1); at most ``limit`` (None: all), drawn evenly over groups.

    Empty ones are left out: there is nothing to score. The draw takes the same number from each
    group (up to one), so that no prompt dominates the marginal.
    """
    if k < 1:
        raise ValueError(f"turns count from 1, got {k}")
    opening_T = _opening(
        one.turns[k - 1] for group in groups for one in group.trajectories if len(one.turns) >= k
    )
    by_group = [
        [
            _trace(trajectory, Place(g, member, k), opening_T)
            for member, trajectory in enumerate(group.trajectories)
            if len(trajectory.turns) >= k and _has_reasoning(trajectory.turns[k - 1])
        ]
        for g, group in enumerate(groups)
    ]
    for members in by_group:
        rng.shuffle(members)
    chosen: list[Trace] = []
    for rank in range(max((len(members) for members in by_group), default=0)):
        chosen.extend(members[rank] for members in by_group if rank < len(members))
    return chosen[:limit]


def trajectory_traces(
    groups: Sequence[Group], limit: int | None, rng: np.random.Generator
) -> list[Trace]:
    """Reasoning traces of any turn: each draw takes a trajectory at random, then one of its turns.

    So a long trajectory counts no more than a short one. No turn is drawn twice: trajectories whose
    turns are all drawn leave the draw. At most ``limit`` are drawn; None draws all.
    """
    opening_T = _opening(
        turn for group in groups for one in group.trajectories for turn in one.turns
    )
    left = [
        traces
        for g, group in enumerate(groups)
        for member, one in enumerate(group.trajectories)
        if (traces := _reasoned_turns(one, g, member, opening_T))
    ]
    for traces in left:
        rng.shuffle(traces)
    chosen: list[Trace] = []
    while left and (limit is None or len(chosen) < limit):
        index = int(rng.integers(len(left)))
        chosen.append(left[index].pop())
        if not left[index]:
            left.pop(index)
    return chosen


def of_first_prompts(traces: Sequence[Trace], max_prompts: int) -> list[Trace]:
    """All traces of the first ``max_prompts`` different prompts, in their old order."""
    allowed = set(list(dict.fromkeys(trace.prompt_key for trace in traces))[:max_prompts])
    return [trace for trace in traces if trace.prompt_key in allowed]


def until_prompts(traces: Sequence[Trace], max_prompts: int) -> list[Trace]:
    """The longest beginning that has at most ``max_prompts`` different prompts.

    Unlike ``of_first_prompts`` it keeps the odds of the draw: no later trace gets in because its
    prompt was already there.
    """
    seen: set[bytes] = set()
    for count, trace in enumerate(traces):
        seen.add(trace.prompt_key)
        if len(seen) > max_prompts:
            return list(traces[:count])
    return list(traces)


def until_tokens(traces: Sequence[Trace], max_tokens: int | None) -> list[Trace]:
    """The longest beginning whose traces can all be compared within ``max_tokens``; None is no limit.

    The least a comparison scores is each prompt once, and each trace under its own and one other.
    """
    if max_tokens is None:
        return list(traces)
    seen: set[bytes] = set()
    tokens = 0
    for count, trace in enumerate(traces):
        tokens += 0 if trace.prompt_key in seen else len(trace.prompt_ids_T)
        tokens += 2 * len(trace.reasoning_ids_T)
        seen.add(trace.prompt_key)
        if tokens > max_tokens:
            return list(traces[:count])
    return list(traces)


def first_of_prompts(traces: Sequence[Trace]) -> list[Trace]:
    """The first trace of each different prompt, in order of appearance."""
    firsts: dict[bytes, Trace] = {}
    for trace in traces:
        firsts.setdefault(trace.prompt_key, trace)
    return list(firsts.values())


def shared_opening(written: Iterable[IntArray]) -> IntArray:
    """The shortest of what replies write before their reasoning: the tag alone, or nothing.

    Words that some write before the tag are left out: they would give every trace a prompt of its own.
    """
    return min(written, key=len, default=np.zeros(0, dtype=np.int64))


def _has_reasoning(turn: Turn) -> bool:
    """Whether there is anything to score; white space says nothing."""
    return len(turn.reasoning_ids_T) > 0 and bool(turn.reply.reasoning)


def _opening(turns: Iterable[Turn]) -> IntArray:
    return shared_opening(
        turn.completion.ids_T[: turn.reasoning_span[0]] for turn in turns if _has_reasoning(turn)
    )


def _trace(trajectory: Trajectory, place: Place, opening_T: IntArray) -> Trace:
    turn = trajectory.turns[place.turn - 1]
    prompt_ids_T = np.concatenate([turn.prompt_ids_T, opening_T])
    return Trace(prompt_ids_T, turn.reasoning_ids_T, place, turn.images)


def _reasoned_turns(
    trajectory: Trajectory, group: int, member: int, opening_T: IntArray
) -> list[Trace]:
    return [
        _trace(trajectory, Place(group, member, number), opening_T)
        for number, turn in enumerate(trajectory.turns, 1)
        if _has_reasoning(turn)
    ]
