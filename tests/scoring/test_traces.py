"""Which reasonings are scored: of which turn, how evenly drawn, with the tokens really used."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.scoring import Trace, first_turn_traces, trajectory_traces, turn_traces
from ragen2.scoring.traces import (
    first_of_prompts,
    of_first_prompts,
    until_prompts,
    until_tokens,
)
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


def test_a_tag_that_models_write_themselves_counts_as_given(turn_of):
    """One member wrote words before it, and is read as if it had not."""
    prompt = Prompt("E", 4, (Message("user", "4"),))
    turns = [
        turn_of(prompt_ids=[4], ids=[7, 50, 51, 8], reasoning_span=(1, 3)),
        turn_of(prompt_ids=[4], ids=[90, 91, 7, 52, 8], reasoning_span=(3, 4)),
        turn_of(prompt_ids=[4], ids=[53], reasoning_span=(0, 0)),
    ]
    members = tuple(
        Trajectory(prompt, luck, (turn,), StopReason.DONE, solved=False)
        for luck, turn in enumerate(turns)
    )
    for draw in (first_turn_traces, trajectory_traces):
        traces = draw([Group(prompt, members)], None, stream(0))
        assert [trace.prompt_ids_T.tolist() for trace in traces] == [[4, 7]] * 2
        assert sorted(trace.reasoning_ids_T.tolist() for trace in traces) == [[50, 51], [52]]


def test_empty_reasonings_are_left_out(turn_of):
    traces = first_turn_traces([group(turn_of, 4, [0, 2, 0])], 10, stream(0))
    assert [trace.reasoning_ids_T.tolist() for trace in traces] == [[4001, 4001]]


def test_reasoning_of_white_space_alone_is_left_out(turn_of):
    """As models write that were told not to think."""
    prompt = Prompt("E", 4, (Message("user", "4"),))
    blank = turn_of(ids=[7, 10, 8], reasoning="", reasoning_span=(1, 2))
    one = Trajectory(prompt, 0, (blank,), StopReason.DONE, solved=False)
    assert first_turn_traces([Group(prompt, (one,))], None, stream(0)) == []
    assert trajectory_traces([Group(prompt, (one,))], None, stream(0)) == []


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


# --- turn K ----------------------------------------------------------------------------------------


def long_group(turn_of, seed: int, turns: list[int], *, shared_prompts: bool = False) -> Group:
    """Members with these numbers of turns; ids are seed, luck and turn as digits."""
    prompt = Prompt("E", seed, (Message("user", str(seed)),))

    def turn(luck: int, k: int):
        own = 100 * seed + 10 * luck + k
        seen = seed if k == 1 or shared_prompts else own
        return turn_of(prompt_ids=[k, seen], ids=[own, 0], reasoning_span=(0, 1))

    members = [
        Trajectory(
            prompt, luck, tuple(turn(luck, k) for k in range(1, count + 1)), StopReason.DONE, False
        )
        for luck, count in enumerate(turns)
    ]
    return Group(prompt, tuple(members))


def written(traces) -> list[int]:
    return [int(trace.reasoning_ids_T[0]) for trace in traces]


def test_turn_k_counts_from_one_and_skips_trajectories_that_ended_before(turn_of):
    groups = [long_group(turn_of, 1, [3, 1, 2])]
    assert sorted(written(turn_traces(groups, 1, None, stream(0)))) == [101, 111, 121]
    assert sorted(written(turn_traces(groups, 2, None, stream(0)))) == [102, 122]
    assert written(turn_traces(groups, 3, None, stream(0))) == [103]
    assert turn_traces(groups, 4, None, stream(0)) == []
    with pytest.raises(ValueError, match="turns count from 1, got 0"):
        turn_traces(groups, 0, None, stream(0))


def test_the_first_turn_is_turn_one(turn_of):
    groups = [long_group(turn_of, seed, [2, 2, 2]) for seed in (1, 2)]
    first = written(first_turn_traces(groups, 4, stream(5)))
    assert first == written(turn_traces(groups, 1, 4, stream(5)))


def test_the_prompt_of_turn_k_is_what_the_model_saw_there(turn_of):
    (trace,) = turn_traces([long_group(turn_of, 1, [3])], 3, None, stream(0))
    assert trace.prompt_ids_T.tolist() == [3, 103]


# --- trajectories ----------------------------------------------------------------------------------


def test_all_turns_are_drawn_once_when_the_limit_allows(turn_of):
    groups = [long_group(turn_of, 1, [3, 1]), long_group(turn_of, 2, [2])]
    expected = [101, 102, 103, 111, 201, 202]
    for limit in (None, 6, 99):
        assert sorted(written(trajectory_traces(groups, limit, stream(3)))) == expected


def test_a_long_trajectory_is_drawn_no_more_often_than_a_short_one(turn_of):
    groups = [long_group(turn_of, 1, [9, 1])]
    draws = Counter(written(trajectory_traces(groups, 1, stream(seed)))[0] for seed in range(2000))
    # Half of the draws go to the one-turn trajectory; 4 standard errors are 0.045.
    assert draws[111] / 2000 == pytest.approx(0.5, abs=0.045)
    long_turns = [draws[100 + k] / 2000 for k in range(1, 10)]
    assert min(long_turns) > 0.5 / 9 - 0.022
    assert max(long_turns) < 0.5 / 9 + 0.022


def test_turns_without_reasoning_are_never_drawn(turn_of):
    prompt = Prompt("E", 1, ())
    turns = (turn_of(ids=[5], reasoning_span=(0, 0)), turn_of(ids=[6, 0], reasoning_span=(0, 1)))
    groups = [Group(prompt, (Trajectory(prompt, 0, turns, StopReason.DONE, False),))]
    assert written(trajectory_traces(groups, None, stream(0))) == [6]


# --- limits ----------------------------------------------------------------------------------------


def traces_of(*prompts: int) -> list[Trace]:
    return [
        Trace(np.array([prompt], dtype=np.int64), np.array([number], dtype=np.int64))
        for number, prompt in enumerate(prompts)
    ]


def test_traces_of_the_first_prompts_are_all_kept():
    assert written(of_first_prompts(traces_of(7, 8, 7, 9, 8, 7), 2)) == [0, 1, 2, 4, 5]
    assert written(of_first_prompts(traces_of(7, 8), 5)) == [0, 1]


def test_a_draw_is_cut_where_it_would_meet_one_prompt_too_many():
    assert written(until_prompts(traces_of(7, 8, 7, 9, 8, 7), 2)) == [0, 1, 2]
    assert written(until_prompts(traces_of(7, 8), 2)) == [0, 1]


def test_a_draw_is_cut_where_its_least_comparison_would_cost_too_much():
    traces = traces_of(7, 8, 7)  # a prompt token each but the third, and two reasoning tokens each
    assert [len(until_tokens(traces, budget)) for budget in (2, 3, 5, 6, 7, 8)] == [
        0,
        1,
        1,
        2,
        2,
        3,
    ]
    assert len(until_tokens(traces, None)) == 3


def test_distinct_prompts_are_in_order_of_appearance():
    firsts = first_of_prompts(traces_of(9, 7, 9, 8))
    assert [one.prompt_ids_T.tolist() for one in firsts] == [[9], [7], [8]]
    assert [one.reasoning_ids_T.tolist() for one in firsts] == [[0], [1], [3]]
