"""TRL's rows read as episodes, and a filter's verdict spread over rows."""

from __future__ import annotations

from typing import Any

import jobs
import numpy as np
import pytest

from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.filtering import Soft, TopP, TrajectoryControl
from ragen2.integrations.trl.masks import select_rows
from ragen2.integrations.trl.rows import Row, RowReader, messages_of, prompt_number, written_rewards
from ragen2.types import Finish, Message

EOS = 2


@pytest.fixture(scope="module")
def words() -> TemplateTokenizer:
    return TemplateTokenizer(jobs.tokenizer(), [EOS])


@pytest.fixture
def reader(words) -> RowReader:
    return RowReader(words, frozenset({EOS}))


def row(words: Any, written: str, prompt: str = "Go.", **more: Any) -> Row:
    ids = [*words.encode(written), EOS]
    return Row((Message("user", prompt),), words.encode(prompt), ids, **more)


def only_turn(reader: RowReader, one: Row) -> Any:
    (turn,) = reader.trajectory(one, 1.0, luck=0).turns
    return turn


@pytest.mark.parametrize(
    ("prompt", "written"),
    [
        ("Go.", "<think>a hole</think>left"),
        ("Go.", "Well. <think>a hole</think>left"),
        ("Go.", "a hole</think>left"),
        ("Go.<think>", "a hole</think>left"),
        ("Go.<think>\n", "a hole</think>left"),
    ],
)
def test_reasoning_stands_between_the_tags_wherever_the_opening_one_is(
    words, reader, prompt, written
):
    turn = only_turn(reader, row(words, written, prompt))
    assert words.decode(turn.reasoning_ids_T.tolist()) == "a hole"
    assert turn.reply.reasoning == "a hole"
    assert turn.reply.actions == ("left",)
    assert turn.reply.valid
    assert turn.completion.finish is Finish.EOS
    shown = words.decode(turn.prompt_ids_T.tolist())
    assert shown.rstrip().endswith("<think>")
    assert shown.count("<think>") == 1
    assert "Well" not in shown


def test_equal_prompts_stay_equal_whatever_is_written_before_the_tag(words, reader):
    turns = [
        only_turn(reader, row(words, f"{lead}<think>a hole</think>left")) for lead in ("", "So: ")
    ]
    assert np.array_equal(turns[0].prompt_ids_T, turns[1].prompt_ids_T)


def test_reasoning_that_was_cut_is_still_reasoning(words, reader):
    cut = Row((Message("user", "Go."),), words.encode("Go."), words.encode("<think>a hole is"))
    turn = only_turn(reader, cut)
    assert words.decode(turn.reasoning_ids_T.tolist()) == "a hole is"
    assert turn.completion.finish is Finish.LENGTH
    assert turn.reply.problem == "no </think>"


def test_without_tags_there_is_no_reasoning_and_with_the_rule_all_it_is_everything(words):
    one = row(words, "just left")
    assert only_turn(RowReader(words, frozenset({EOS})), one).reasoning_span == (0, 0)
    turn = only_turn(RowReader(words, frozenset({EOS}), "all"), one)
    assert words.decode(turn.reasoning_ids_T.tolist()) == "just left"
    assert EOS not in turn.reasoning_ids_T


def test_what_a_tool_said_separates_turns_and_the_last_one_is_paid(words, reader):
    first, told, second = (
        words.encode(text) for text in ("<think>one</think>a", "seen: b", "<think>two</think>c")
    )
    mask = [1] * len(first) + [0] * len(told) + [1] * len(second)
    logprobs = [-0.5] * len(mask)
    both = Row(
        (Message("user", "Go."),), words.encode("Go."), [*first, *told, *second], mask, logprobs
    )
    one, two = reader.trajectory(both, 0.75, luck=3).turns
    assert one.observation == "seen: b"
    assert two.observation == ""
    assert (one.reward, two.reward) == (0.0, 0.75)
    assert one.completion.finish is Finish.STOP
    assert words.decode(two.prompt_ids_T.tolist()) == "Go.<think>one</think>aseen: b<think>"
    assert (one.completion.logprobs_T == -0.5).all()
    assert len(two.completion.ids_T) == len(words.encode("two</think>c"))


def test_log_probs_that_trl_does_not_give_are_unknown(words, reader):
    assert np.isnan(only_turn(reader, row(words, "<think>x</think>y")).completion.logprobs_T).all()


def test_groups_leave_out_rows_without_a_reward(words, reader):
    rows = [row(words, f"<think>{i}</think>x", prompt=f"P{i // 2}") for i in range(6)]
    rewards = np.array([1.0, np.nan, np.nan, np.nan, 0.0, 1.0])
    first, second, third = reader.groups(rows, rewards, 2)
    assert [len(first.trajectories), second, len(third.trajectories)] == [1, None, 2]
    assert third.rewards_G.tolist() == [0.0, 1.0]
    assert [one.luck for one in third.trajectories] == [0, 1]


def test_success_is_a_reward_that_is_enough(words):
    reader = RowReader(words, frozenset({EOS}), success_reward=0.5)
    one = row(words, "<think>x</think>y")
    assert reader.trajectory(one, 0.5, luck=0).solved
    assert not reader.trajectory(one, 0.49, luck=0).solved


def test_prompt_numbers_tell_prompts_apart_and_fit_a_tensor():
    numbers = {prompt_number(ids) for ids in ([1, 2], [2, 1], [1, 2, 0], [])}
    assert len(numbers) == 4
    assert all(0 <= number < 2**63 for number in numbers)
    assert prompt_number([1, 2]) == prompt_number((1, 2))


def test_messages_of_chat_text_and_parts():
    chat = [
        {"role": "system", "content": "S"},
        {"role": "tool", "content": [{"type": "text", "text": "T"}, {"type": "image"}]},
        {"role": "assistant", "content": None},
    ]
    found = [(one.role, one.content) for one in messages_of(chat)]
    assert found == [("system", "S"), ("user", "T"), ("assistant", "")]
    assert messages_of("plain") == (Message("user", "plain"),)


def test_rewards_are_the_decimals_that_were_written():
    given = np.array([[0.1, 0.2], [0.3, 0.0], [np.nan, 0.5], [np.nan, np.nan]], dtype=np.float32)
    total = written_rewards(given.astype(np.float64), np.array([1.0, 1.0], dtype=np.float32))
    assert total[:3] == pytest.approx([0.3, 0.3, 0.5], abs=1e-15)
    assert np.isnan(total[3])
    assert not select_rows(TopP(), total[:2], 2).kept_N.any()
    weighed = written_rewards(given.astype(np.float64), np.array([2.0, 0.1], dtype=np.float32))
    assert weighed[:3] == pytest.approx([0.22, 0.6, 0.05])


def test_a_verdict_is_spread_over_rows():
    found = select_rows(TopP(mass=1.0), np.array([0, 1, 1, 1, 5.0, 7.0]), 2)
    assert found.kept_N.tolist() == [True, True, False, False, True, True]
    assert found.selection.scores_P == pytest.approx([0.5, 0.0, 2.0])
    assert found.weights_N.tolist() == [1.0] * 6


def test_rows_without_a_reward_count_for_nothing_but_stay_with_their_group():
    rewards = np.array([0, np.nan, 1, np.nan, np.nan, np.nan, 1, 1, np.nan])
    found = select_rows(TopP(mass=1.0), rewards, 3)
    assert found.kept_N.tolist() == [True] * 3 + [False] * 6
    left = found.of_groups([True, False, True])
    assert left.kept_P.tolist() == [True, False]
    nothing = select_rows(TopP(), np.full(4, np.nan), 2)
    assert not nothing.kept_N.any()
    assert nothing.selection.reason == "no completion has a reward"


def test_weights_and_members_of_a_filter_reach_the_rows():
    soft = select_rows(Soft(), np.array([0, 2, 0, 1.0]), 2)
    assert soft.weights_N.tolist() == [1.0, 1.0, 0.25, 0.25]
    some = select_rows(TrajectoryControl(), np.array([3, 1, 2, 0.0]), 4)
    assert some.kept_N.tolist() == [True, False, False, True]
