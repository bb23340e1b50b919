"""The chain in words: each combination of links has its sentence."""

from __future__ import annotations

import pytest

from ragen2.diagnostics import read_chain
from ragen2.diagnostics.metrics.flow import Link


def metrics(first: bool, second: bool, whole: bool, scope: str = "first_turn") -> dict[str, float]:
    def p(holds: bool) -> float:
        return 0.01 if holds else 0.011

    return {
        f"collapse/{scope}/retrieval_above_chance": 0.5,
        f"collapse/{scope}/retrieval_p_value": p(first),
        f"flow/{scope}/reasoning_action_swap_seq": 1.25,
        f"flow/{scope}/reasoning_action_swap_p_value": p(second),
        f"flow/{scope}/input_action": 0.75,
        f"flow/{scope}/input_action_p_value": p(whole),
    }


@pytest.mark.parametrize(
    ("links", "sentence"),
    [
        ((True, True, True), "The chain is whole"),
        ((True, False, True), "Reasoning is about the input, but actions do not follow it"),
        (
            (False, True, True),
            "Actions follow the reasoning, but get what they know of the input past it",
        ),
        ((False, False, True), "Actions depend on the input, past the reasoning"),
        ((True, True, False), "No dependence of actions on the input is seen"),
        ((False, False, False), "No dependence of actions on the input is seen"),
    ],
)
def test_each_combination_has_its_sentence(links, sentence):
    chain = read_chain(metrics(*links))
    assert chain.text.startswith(f"{sentence}: input -> reasoning ")
    found = [chain.input_reasoning, chain.reasoning_action, chain.input_action]
    assert found == [Link.HOLDS if holds else Link.NOT_SEEN for holds in links]


def test_the_numbers_are_told():
    text = read_chain(metrics(True, True, True)).text
    assert "(retrieval above chance: 0.500)" in text
    assert "(nats lost with another's reasoning: 1.250)" in text
    assert "(I(X;A) in nats: 0.750)" in text


def test_a_significant_effect_below_zero_is_no_link():
    changed = metrics(True, True, True) | {"flow/first_turn/reasoning_action_swap_seq": -0.1}
    assert read_chain(changed).reasoning_action is Link.NOT_SEEN


def test_what_was_not_measured_is_said():
    chain = read_chain({})
    assert chain.input_action is Link.NOT_MEASURED
    assert chain.text.startswith("The chain was not measured whole: ")


def test_later_turns_are_read_by_their_scope():
    assert read_chain(metrics(True, True, True, "turn_2"), "turn_2").text.startswith(
        "The chain is whole"
    )
