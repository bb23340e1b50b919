"""What a completion says: its reasoning, its actions, and what is wrong with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.backends.scripted import END, ByteTokenizer
from ragen2.envs import (
    Bandit,
    Countdown,
    DeepCoder,
    FrozenLake,
    MetaMathQA,
    RubiksCube,
    Sudoku,
)
from ragen2.rollout.reply import (
    ReplyFormat,
    action_span,
    parse_reply,
    read_actions,
    reasoning_span,
    render_reply,
)
from ragen2.rollout.settings import Rollout
from ragen2.types import Completion, Finish

FORM = ReplyFormat(thinking=True, max_actions=2)
PLAIN = ReplyFormat(thinking=False, max_actions=2)
TOKENIZER = ByteTokenizer()

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>|"), max_size=20)
actions = st.lists(st.sampled_from(["Up", "Down", "go to (1,2)", "β"]), min_size=1, max_size=2)


def written(text: str, finish: Finish = Finish.STOP) -> Completion:
    ids = TOKENIZER.encode(text) + ([END] if finish is Finish.EOS else [])
    return Completion(np.array(ids, dtype=np.int64), np.full(len(ids), -1.0), text, finish)


def test_a_well_formed_reply_gives_reasoning_and_actions():
    reply = parse_reply(
        written(" the goal is below </think> <answer> Down || Right </answer>"), FORM
    )
    assert reply.reasoning == "the goal is below"
    assert reply.actions == ("Down", "Right")
    assert reply.valid


def test_reasoning_may_be_empty():
    reply = parse_reply(written("</think><answer>Up</answer>"), FORM)
    assert (reply.reasoning, reply.actions, reply.valid) == ("", ("Up",), True)


def test_reasoning_may_have_several_lines():
    reply = parse_reply(written("first\nsecond</think>\n<answer>Up</answer>"), FORM)
    assert (reply.reasoning, reply.valid) == ("first\nsecond", True)


def test_empty_pieces_between_separators_are_not_actions():
    reply = parse_reply(written("x</think><answer>|| Up || </answer>"), FORM)
    assert (reply.actions, reply.valid) == (("Up",), True)


@pytest.mark.parametrize(
    ("text", "finish", "reasoning", "problem"),
    [
        ("thinking on and", Finish.LENGTH, "thinking on and", "cut at the token limit"),
        ("x</think><answer>U", Finish.LENGTH, "x", "cut at the token limit"),
        ("never closed", Finish.EOS, "never closed", "no </think>"),
        ("a <answer>Up</answer>", Finish.STOP, "a <answer>Up</answer>", "no </think>"),
        ("a</think> Up", Finish.EOS, "a", "no <answer>"),
        ("a</think><answer>Up", Finish.EOS, "a", "no </answer>"),
        (
            "<answer>Up</answer> a</think>",
            Finish.EOS,
            "<answer>Up</answer> a",
            "<answer> in the wrong place",
        ),
        ("a</think></answer><answer>Up", Finish.EOS, "a", "</answer> in the wrong place"),
    ],
)
def test_a_malformed_reply_keeps_its_reasoning_takes_no_action_and_says_why(
    text, finish, reasoning, problem
):
    reply = parse_reply(written(text, finish), FORM)
    assert (reply.reasoning, reply.actions, reply.problem) == (reasoning, (), problem)
    assert not reply.valid


@pytest.mark.parametrize(
    "text",
    [
        "a</think> so <answer>Up</answer>",
        "a</think> b</think>\n<answer>Up</answer> and that is all",
        "a</think></answer> <answer>Up</answer>",
    ],
)
def test_text_around_the_two_parts_is_passed_over(text):
    reply = parse_reply(written(text), FORM)
    assert (reply.reasoning, reply.actions, reply.problem) == ("a", ("Up",), "")


def test_an_answer_without_action_is_not_valid():
    reply = parse_reply(written("a</think><answer> || </answer>"), FORM)
    assert (reply.actions, reply.problem) == ((), "no action in the answer")


def test_too_many_actions_are_cut():
    reply = parse_reply(written("a</think><answer>Up||Down||Left</answer>"), FORM)
    assert (reply.actions, reply.problem) == (("Up", "Down"), "")


def test_too_many_actions_make_a_reply_invalid_where_that_is_asked_for():
    strict = Rollout(surplus_actions="invalid").form(FrozenLake())
    reply = parse_reply(written("a</think><answer>Up||Down||Left</answer>"), strict)
    assert (reply.actions, reply.problem) == (("Up", "Down"), "3 actions, only 2 are taken")


@pytest.mark.parametrize(
    "answer",
    [
        "Up || Down",
        "up||DOWN",
        "Up | Down",
        "Up, Down",
        "Up Down",
        "Up; Down.",
        "Up\nDown",
        "'Up', \"Down\"",
        "[Up] || [Down]",
        "1. Up\n2. Down",
        "1) Up, 2) Down",
        "- Up\n- Down",
        "**Up** || **Down**",
        "Up then Down",
        "go up, then move down",
        "↑ || ↓",
        "north, south",
        "U || D",
    ],
)
def test_fixed_actions_are_read_however_they_are_written(answer):
    form = Rollout().form(FrozenLake())
    assert read_actions(answer, form) == ("Up", "Down")


def test_what_is_no_action_stays_as_it_was_written():
    form = Rollout().form(FrozenLake())
    assert read_actions("You cannot pull || Up", form) == ("You cannot pull", "Up")
    assert read_actions("Up the hill", form) == ("Up the hill",)


def test_marks_that_belong_to_a_name_are_not_taken_for_quotes():
    form = Rollout().form(RubiksCube())
    assert read_actions("R', 'U' || f'", form) == ("R'", "U", "F'")


def test_free_text_is_parted_at_double_bars_alone():
    form = Rollout().form(Sudoku())
    assert read_actions("place 2 at (1,3) || clear (1,2)", form) == (
        "place 2 at (1,3)",
        "clear (1,2)",
    )


def test_without_thinking_only_the_answer_is_read():
    reply = parse_reply(written("Up</answer>"), PLAIN)
    assert (reply.reasoning, reply.actions, reply.valid) == ("", ("Up",), True)


def test_without_thinking_a_missing_end_is_said():
    reply = parse_reply(written("Up", Finish.EOS), PLAIN)
    assert (reply.reasoning, reply.actions, reply.problem) == ("", (), "no </answer>")


@given(words, actions)
def test_what_is_rendered_is_read_back(reasoning, chosen):
    reply = parse_reply(written(render_reply(reasoning, chosen, FORM)), FORM)
    assert (reply.reasoning, reply.actions, reply.problem) == (reasoning.strip(), tuple(chosen), "")


@given(actions)
def test_what_is_rendered_without_thinking_is_read_back(chosen):
    reply = parse_reply(written(render_reply("ignored", chosen, PLAIN)), PLAIN)
    assert (reply.actions, reply.problem) == (tuple(chosen), "")


@given(st.text(st.sampled_from("ab <>/thinkanswer|"), max_size=60), st.sampled_from(Finish))
def test_any_text_is_either_valid_with_an_action_or_has_a_problem(text, finish):
    reply = parse_reply(written(text, finish), FORM)
    assert reply.valid == (reply.problem == "")
    assert not reply.valid or 1 <= len(reply.actions) <= FORM.max_actions


@given(words, actions)
def test_the_reasoning_span_is_exactly_the_tokens_before_the_closing_tag(reasoning, chosen):
    completion = written(render_reply(reasoning, chosen, FORM))
    start, end = reasoning_span(completion, FORM, TOKENIZER)
    assert start == 0
    assert completion.ids_T[:end].tolist() == TOKENIZER.encode(reasoning)


def test_a_token_that_straddles_the_tag_belongs_to_the_tag():
    class Pairs(ByteTokenizer):
        """Two bytes a token."""

        def decode(self, ids_T):
            return "".join(chr(i // 1000) + chr(i % 1000) for i in ids_T)

    text = "abc</think><answer>U</answer>"
    ids = [ord(a) * 1000 + ord(b) for a, b in zip(text[::2], text[1::2], strict=False)]
    completion = Completion(np.array(ids), np.zeros(len(ids)), text, Finish.STOP)
    assert reasoning_span(completion, FORM, Pairs()) == (0, 1)


def test_an_unclosed_reasoning_spans_all_but_the_end_token():
    assert reasoning_span(written("abc", Finish.EOS), FORM, TOKENIZER) == (0, 3)
    assert reasoning_span(written("abc", Finish.LENGTH), FORM, TOKENIZER) == (0, 3)


def test_without_thinking_the_reasoning_span_is_empty():
    assert reasoning_span(written("Up</answer>"), PLAIN, TOKENIZER) == (0, 0)


@pytest.mark.parametrize("form", [FORM, PLAIN])
def test_the_prefill_opens_what_the_reply_closes(form):
    text = form.prefill + render_reply("why", ["Up"], form)
    assert text in {"<think>why</think><answer>Up</answer>", "<answer>Up</answer>"}


@given(words, actions)
def test_the_action_span_is_exactly_the_tokens_between_the_answer_tags(reasoning, chosen):
    completion = written(render_reply(reasoning, chosen, FORM))
    start, end = action_span(completion, FORM, TOKENIZER)
    assert completion.ids_T[start:end].tolist() == TOKENIZER.encode(" || ".join(chosen))


@given(actions)
def test_without_thinking_the_action_span_starts_at_the_first_token(chosen):
    completion = written(render_reply("ignored", chosen, PLAIN))
    text = " || ".join(chosen)
    assert action_span(completion, PLAIN, TOKENIZER) == (0, len(TOKENIZER.encode(text)))


def test_the_spans_of_reasoning_and_action_leave_exactly_the_tags_between_them():
    completion = written("go</think> <answer>Up</answer>")
    between = completion.ids_T[
        reasoning_span(completion, FORM, TOKENIZER)[1] : action_span(completion, FORM, TOKENIZER)[0]
    ]
    assert TOKENIZER.decode(between.tolist()) == "</think> <answer>"


@pytest.mark.parametrize(
    "text",
    ["a</think><answer>Up", "a</think> Up", "a</think><answer> || </answer>", "a", "a</think>"],
)
def test_a_reply_without_a_read_action_has_no_action_span(text):
    assert action_span(written(text, Finish.LENGTH), FORM, TOKENIZER) == (0, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ab</think><answer>Up</answer>", "Up"),
        ("abc</think><answer>Up</answer>", ""),
        ("abc</think><answer>Down</answer>", "ow"),
    ],
)
def test_a_token_that_straddles_the_answer_tag_belongs_to_the_tag(text, expected):
    class Pairs(ByteTokenizer):
        """Two characters a token."""

        def decode(self, ids_T):
            return "".join(chr(i // 1000) + chr(i % 1000) for i in ids_T)

    padded = text + " " * (len(text) % 2)
    ids = [ord(a) * 1000 + ord(b) for a, b in zip(padded[::2], padded[1::2], strict=True)]
    completion = Completion(np.array(ids), np.zeros(len(ids)), padded, Finish.STOP)
    start, end = action_span(completion, FORM, Pairs())
    assert Pairs().decode(completion.ids_T[start:end].tolist()) == expected


SELF_OPENED = ReplyFormat(thinking=True, max_actions=2, prefilled=False)


@pytest.mark.parametrize("before", ["", " ", "\n\n", "Well. "])
def test_a_reply_that_nobody_opened_for_the_model_has_its_own_first_tag(before):
    text = f"{before}<think>down</think>\n<answer>Down</answer> and more"
    reply = parse_reply(written(text, Finish.EOS), SELF_OPENED)
    assert (reply.reasoning, reply.actions, reply.problem) == ("down", ("Down",), "")
    plain = ReplyFormat(thinking=False, prefilled=False)
    assert parse_reply(written(f"{before}<answer>Up</answer>"), plain).actions == ("Up",)


@pytest.mark.parametrize(
    ("text", "reasoning", "problem"),
    [
        ("down</think><answer>Down</answer>", "", "no <think>"),
        ("<answer>Down</answer>", "", "no <think>"),
        ("", "", "no <think>"),
        ("\n<think>down", "down", "no </think>"),
    ],
)
def test_without_its_first_tag_such_a_reply_is_not_valid(text, reasoning, problem):
    reply = parse_reply(written(text, Finish.EOS), SELF_OPENED)
    assert (reply.reasoning, reply.actions, reply.problem) == (reasoning, (), problem)


@pytest.mark.parametrize("env", [DeepCoder(), MetaMathQA(), Countdown()], ids=lambda env: env.kind)
def test_an_answer_that_is_one_action_is_never_parted(env):
    form = Rollout(actions_per_turn=3).form(env)
    reply = parse_reply(written("a or b</think><answer>a || b</answer>"), form)
    assert (reply.actions, reply.problem) == (("a || b",), "")
    assert form.max_actions == 1


def test_no_more_actions_are_asked_for_than_are_taken():
    assert Rollout(actions_per_turn=3).form(Bandit()).max_actions == 1
    assert Rollout(actions_per_turn=3).form(FrozenLake(max_actions=2)).max_actions == 2
    assert Rollout(actions_per_turn=3).form(FrozenLake()).max_actions == 3


@given(words, actions)
def test_the_spans_of_a_reply_that_the_model_opens_itself_are_its_two_parts(reasoning, chosen):
    completion = written(render_reply(reasoning, chosen, SELF_OPENED))
    start, end = reasoning_span(completion, SELF_OPENED, TOKENIZER)
    assert TOKENIZER.decode(completion.ids_T[start:end].tolist()) == reasoning
    start, end = action_span(completion, SELF_OPENED, TOKENIZER)
    assert TOKENIZER.decode(completion.ids_T[start:end].tolist()) == " || ".join(chosen)


def test_a_reply_without_the_tag_that_opens_it_has_no_reasoning():
    assert reasoning_span(written("so</think>"), SELF_OPENED, TOKENIZER) == (0, 0)


def test_the_tags_of_the_reasoning_can_be_others():
    form = ReplyFormat(think_tags=("[THINK]", "[/THINK]"))
    completion = written("why[/THINK]<answer>Up</answer>")
    reply = parse_reply(completion, form)
    assert (form.prefill, reply.reasoning, reply.actions) == ("[THINK]", "why", ("Up",))
    assert reasoning_span(completion, form, TOKENIZER) == (0, 3)
