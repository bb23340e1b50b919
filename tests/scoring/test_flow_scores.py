"""Actions under exchanged reasoning and prompts: which pairs are scored, token for token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ragen2.policy import Pair
from ragen2.scoring.exchanges import ActionTrace, action_traces, score_flow
from ragen2.types import FloatArray, Group, Prompt, StopReason, Trajectory


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def trace(x: int, z: int, a: int) -> ActionTrace:
    return ActionTrace(ids(x), ids(z, z), ids(5), ids(a))


class Recorder:
    """Scores -1 a token and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], list[int]]] = []

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        self.asked += [(p.context_ids_T.tolist(), p.continuation_ids_T.tolist()) for p in pairs]
        return [np.full(len(pair.continuation_ids_T), -temperature) for pair in pairs]


def score(traces, scorer, swaps=1):
    return score_flow(traces, scorer, 1.0, swaps=swaps, rng=np.random.default_rng(0))


def test_each_exchange_keeps_the_other_pieces_and_the_action():
    scorer = Recorder()
    score([trace(10, 20, 30), trace(11, 21, 31)], scorer)
    assert scorer.asked == [
        ([10, 20, 20, 5], [30]),
        ([11, 21, 21, 5], [31]),
        ([10, 21, 21, 5], [30]),
        ([11, 20, 20, 5], [31]),
        ([10, 5], [30]),
        ([11, 5], [31]),
        ([11, 20, 20, 5], [30]),
        ([10, 21, 21, 5], [31]),
    ]


def test_equal_pairs_are_scored_once():
    scorer = Recorder()
    found = score([trace(10, 20, 30)] * 3 + [trace(11, 20, 30)] * 3, scorer, swaps=3)
    assert len(scorer.asked) == len({str(pair) for pair in scorer.asked}) == 4
    assert found.swapped_NS.shape == (6, 3)


def test_partners_are_of_other_prompts_and_differ():
    class ByContext:
        def score(self, pairs, temperature=1.0):
            return [np.array([float(pair.context_ids_T[1])]) for pair in pairs]

    traces = [trace(10 + n % 3, 20 + n, 30) for n in range(9)]
    found = score(traces, ByContext(), swaps=4)
    for n, row in enumerate(found.swapped_NS):
        partners = [int(value) - 20 for value in row]
        assert len(set(partners)) == 4
        assert all(partner % 3 != n % 3 for partner in partners)


def test_fewer_partners_are_drawn_where_there_are_fewer():
    traces = [trace(10, 20, 30), trace(10, 21, 30), trace(11, 22, 30)]
    assert score(traces, Recorder(), swaps=5).swapped_NS.shape == (3, 1)


def test_one_prompt_alone_has_nothing_to_be_swapped_with():
    assert score([trace(10, 20, 30), trace(10, 21, 30)], Recorder()) is None


def test_whether_a_swap_changes_the_text_is_recorded():
    found = score([trace(10, 20, 30), trace(11, 20, 30)], Recorder())
    assert not found.differs_NS.any()
    found = score([trace(10, 20, 30), trace(11, 21, 30)], Recorder())
    assert found.differs_NS.all()


def test_a_longer_reasoning_is_cut_at_its_start_to_what_the_scorer_can_read():
    class Small(Recorder):
        max_context = 6

    long = ActionTrace(ids(11), ids(1, 2, 3, 4), ids(5), ids(31))
    scorer = Small()
    score([ActionTrace(ids(9, 10), ids(20), ids(5), ids(30)), long], scorer)
    assert ([9, 10, 3, 4, 5], [30]) in scorer.asked


def test_log_probs_are_summed_over_the_action_and_its_length_is_kept():
    traces = [ActionTrace(ids(x), ids(20), ids(5), ids(30, 31, 32)) for x in (10, 11)]
    found = score(traces, Recorder())
    assert found.own_N.tolist() == [-3.0, -3.0]
    assert found.length_N.tolist() == [3, 3]
    assert found.owner_N.tolist() == [0, 1]


# --- which replies ---------------------------------------------------------------------------------


@pytest.fixture
def groups(turn_of) -> list[Group]:
    """Two prompts; the second member of each has a second turn, the third no action."""

    def member(seed: int, luck: int) -> Trajectory:
        reply = [100 * seed + luck, 1, 2, 3, 4]
        turn = turn_of(
            prompt_ids=[seed],
            ids=reply,
            reasoning_span=(0, 2),
            action_span=(0, 0) if luck == 2 else (3, 5),
        )
        turns = (turn, turn) if luck == 1 else (turn,)
        return Trajectory(Prompt("E", seed, ()), luck, turns, StopReason.DONE, solved=False)

    return [
        Group(Prompt("E", seed, ()), tuple(member(seed, luck) for luck in range(3)))
        for seed in (1, 2)
    ]


def test_a_turn_is_cut_into_its_sampled_pieces(groups):
    (one,) = action_traces(groups[:1], 2, 9, np.random.default_rng(0))
    assert one.prompt_ids_T.tolist() == [1]
    assert one.reasoning_ids_T.tolist() == [101, 1]
    assert one.between_ids_T.tolist() == [2]
    assert one.action_ids_T.tolist() == [3, 4]


def test_replies_without_action_or_without_that_turn_are_left_out(groups):
    assert len(action_traces(groups, 1, 9, np.random.default_rng(0))) == 4
    assert len(action_traces(groups, 2, 9, np.random.default_rng(0))) == 2
    assert action_traces(groups, 3, 9, np.random.default_rng(0)) == []


def test_the_limit_is_spent_evenly_over_the_groups(groups):
    chosen = action_traces(groups, 1, 2, np.random.default_rng(0))
    assert [one.prompt_ids_T.tolist() for one in chosen] == [[1], [2]]
