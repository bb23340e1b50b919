"""Which reasonings are scored: first turns, evenly over prompts, with the tokens really used."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ragen2.scoring import first_turn_traces
from ragen2.seeding import stream
from ragen2.types import Group, Message, Prompt, StopReason, Trajectory


def group(turn_of, seed: int, spans: list[int], *, more_turns: int = 0) -> Group:
    """A group whose members' first reasonings have these lengths; ids say who wrote them."""
    prompt = Prompt("E", seed, (Message("user", str(seed)),))

    def turns(luck: int, length: int):
        first = turn_of(
            prompt_ids=[seed], ids=[1000 * seed + luck] * (length + 1), reasoning_span=(0, length)
        )
        return (first, *(turn_of(prompt_ids=[99], ids=[98]) for _ in range(more_turns)))

    return Group(
        prompt,
        tuple(
            Trajectory(prompt, luck, turns(luck, length), StopReason.DONE, solved=False)
            for luck, length in enumerate(spans)
        ),
    )


def test_a_trace_is_the_first_turn_as_it_was_sampled(turn_of):
    (trace,) = first_turn_traces([group(turn_of, 4, [3], more_turns=2)], 10, stream(0))
    assert trace.prompt_ids_T.tolist() == [4]
    assert trace.reasoning_ids_T.tolist() == [4000, 4000, 4000]


def test_empty_reasonings_are_left_out(turn_of):
    traces = first_turn_traces([group(turn_of, 4, [0, 2, 0])], 10, stream(0))
    assert [trace.reasoning_ids_T.tolist() for trace in traces] == [[4001, 4001]]


def test_trajectories_without_turns_are_left_out():
    prompt = Prompt("E", 1, ())
    empty = Group(prompt, (Trajectory(prompt, 0, (), StopReason.CONTEXT_FULL, solved=False),))
    assert first_turn_traces([empty], 10, stream(0)) == []


def test_no_groups_give_no_traces():
    assert first_turn_traces([], 10, stream(0)) == []


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    limit=st.integers(1, 20),
    seed=st.integers(0, 100),
)
def test_the_draw_is_even_and_takes_as_many_as_it_may(turn_of, sizes, limit, seed):
    groups = [group(turn_of, i, [2] * size) for i, size in enumerate(sizes)]
    traces = first_turn_traces(groups, limit, stream(seed))
    assert len(traces) == min(limit, sum(sizes))
    taken = Counter(int(trace.prompt_ids_T[0]) for trace in traces)
    unfilled = [taken[i] for i, size in enumerate(sizes) if taken[i] < size]
    assert not unfilled or max(taken.values()) - min(unfilled) <= 1
    written = [int(trace.reasoning_ids_T[0]) for trace in traces]
    assert len(set(written)) == len(written)


def test_which_members_are_drawn_depends_on_the_stream_alone(turn_of):
    groups = [group(turn_of, i, [2] * 10) for i in range(2)]

    def drawn(seed: int) -> list[int]:
        return [int(t.reasoning_ids_T[0]) for t in first_turn_traces(groups, 4, stream(seed))]

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(10)}) > 1


def test_every_member_can_be_drawn(turn_of):
    groups = [group(turn_of, 0, [2] * 5), group(turn_of, 1, [2] * 5)]
    seen = {
        int(trace.reasoning_ids_T[0])
        for seed in range(60)
        for trace in first_turn_traces(groups, 2, stream(seed))
    }
    assert seen == {*range(5), *range(1000, 1005)}


def test_drawing_does_not_change_the_groups(turn_of):
    groups = [group(turn_of, 0, [2] * 5)]
    before = groups[0].trajectories
    first_turn_traces(groups, 2, np.random.default_rng(0))
    assert groups[0].trajectories == before
