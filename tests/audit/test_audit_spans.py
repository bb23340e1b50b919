"""Reasoning is found by the rule the user gives."""

from __future__ import annotations

import pytest

from ragen2.audit.readers import READERS
from ragen2.audit.rollouts import LoggedTurn, ReasoningRule
from ragen2.errors import ConfigError

CHAT = (("user", "task"),)


@pytest.mark.parametrize(
    ("rule", "text", "lead", "reasoning", "answer"),
    [
        ("think", "<think>why</think><answer>Up</answer>", "<think>", "why", "Up"),
        ("think", "why</think><answer>Up</answer>", "<think>", "why", "Up"),
        ("think", "Sure. <think>\nwhy\n</think>Up", "<think>", "\nwhy\n", "Up"),
        ("think", "<think>cut off", "<think>", "cut off", ""),
        ("think", "a</think>b<think>c</think>", "<think>", "a", "b<think>c</think>"),
        ("tag:plan", "<plan>why</plan> Up", "<plan>", "why", "Up"),
        ("all", "why then Up", "", "why then Up", ""),
        ("regex:Reason: (.*?)\\.", "Reason: why. Up", "", "why", ". Up"),
        ("regex:(?P<x>R): (?P<reasoning>\\w+)", "R: why Up", "", "why", "Up"),
        ("regex:w\\w+", "so why Up", "", "why", "Up"),
    ],
)
def test_a_reply_is_taken_apart(rule, text, lead, reasoning, answer):
    split = ReasoningRule(rule).split(CHAT, text)
    assert (split.lead, split.reasoning, split.answer) == (lead, reasoning, answer)


@pytest.mark.parametrize(
    "text", ["no tags at all", "<think></think>Up", "<think>  \n</think>Up", ""]
)
def test_a_reply_without_reasoning_has_none(text):
    assert ReasoningRule().split(CHAT, text) is None


def test_a_tag_that_the_prompt_ends_with_is_not_added_again():
    split = ReasoningRule().split("task\nassistant\n<think>\n", "why</think>Up")
    assert (split.lead, split.reasoning) == ("", "why")
    assert ReasoningRule().split("task <think>", "cut off").reasoning == "cut off"


@pytest.mark.parametrize("rule", ["thinks", "tag:", "tag:a b", "regex:", ""])
def test_an_unknown_rule_is_refused(rule):
    with pytest.raises(ConfigError, match="--reasoning must be recorded, think, tag:NAME"):
        ReasoningRule(rule)


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="not a regular expression: missing"):
        ReasoningRule("regex:(open")


@pytest.mark.parametrize(
    ("text", "reasoning", "problem", "lead", "found"),
    [
        ("why</think>Up", "why", "", "<think>", "why"),
        ("\nwhy\n</think>Up", "why", "", "<think>", "\nwhy\n"),
        ("cut off", "cut off", "no </think>", "<think>", "cut off"),
        ("<think>why</think>Up", "why", "", "<think>", "why"),
        ("all of it", "all of it", "", "", "all of it"),
        ("<think>why</think>Up", "<think>why</think>Up", "", "", "<think>why</think>Up"),
        ("so|why|Up", "why", "", "", "why"),
    ],
)
def test_of_our_own_rows_the_reasoning_is_what_the_run_recorded(
    text, reasoning, problem, lead, found
):
    """After a pre-filled tag, the model's own, without one (TRL's reasoning="all"), between other tags."""
    turn = {"text": text, "reasoning": reasoning, "problem": problem}
    row = {"env": "E", "seed": 1, "luck": 0, "messages": [{"role": "user", "content": "task"}]}
    (rollout,) = READERS["ragen2"].read({**row, "turns": [turn]})
    split = ReasoningRule().split_turn(rollout.turns[0])
    assert (split.lead, split.reasoning) == (lead, found)
    assert text[split.start :].startswith(found)


def test_a_rule_that_is_asked_for_goes_before_what_the_run_recorded():
    turn = LoggedTurn(CHAT, "<think>why</think>Up", reasoning="<think>why</think>Up")
    assert ReasoningRule("think").split_turn(turn).reasoning == "why"
    assert ReasoningRule("all").split_turn(turn).reasoning == "<think>why</think>Up"


def test_a_run_that_recorded_no_reasoning_has_none():
    assert ReasoningRule().split_turn(LoggedTurn(CHAT, "why</think>Up", reasoning="")) is None


def test_a_reply_that_the_template_opened_may_be_cut_off():
    turn = LoggedTurn(CHAT, "cut off")
    assert ReasoningRule().split_turn(turn) is None
    assert ReasoningRule().split_turn(turn, template_opens=True).reasoning == "cut off"
    assert ReasoningRule("tag:plan").split_turn(turn, template_opens=True) is None
