"""Reasoning is found by the rule the user gives."""

from __future__ import annotations

import pytest

from ragen2.audit.rollouts import ReasoningRule
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
    with pytest.raises(ConfigError, match="--reasoning must be think, tag:NAME, all or regex"):
        ReasoningRule(rule)


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="not a regular expression: missing"):
        ReasoningRule("regex:(open")
