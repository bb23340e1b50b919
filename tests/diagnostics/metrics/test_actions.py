"""What actions alone tell: information about the prompt, oscillation, no effect."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.diagnostics import Actions, Evidence, action_information
from ragen2.diagnostics.metrics.surface import (
    actions_by_prompt,
    back_and_forth,
    no_effect,
    oscillation,
    shuffled_back_and_forth,
    symbols,
)
from ragen2.types import Group, Prompt, StopReason, Trajectory

# --- I(X;A) ----------------------------------------------------------------------------------------


def test_actions_that_are_a_function_of_the_prompt_tell_all_of_it():
    found = action_information([["Up"] * 4, ["Down"] * 4, ["Left"] * 4])
    assert found.raw == found.adjusted == pytest.approx(math.log(3))
    assert found.bound == found.entropy == pytest.approx(math.log(3))
    assert found.p_value <= 0.01


def test_the_raw_estimate_is_the_plug_in_formula():
    """Joint shares 3/8, 1/8, 1/8, 3/8 with even margins."""
    found = action_information([["a", "a", "a", "b"], ["b", "b", "b", "a"]])
    expected = 2 * (3 / 8) * math.log((3 / 8) / (1 / 4)) + 2 * (1 / 8) * math.log((1 / 8) / (1 / 4))
    assert found.raw == pytest.approx(expected)


def test_equal_actions_everywhere_carry_nothing():
    found = action_information([["Up"] * 4, ["Up"] * 4])
    assert (found.raw, found.adjusted, found.bound, found.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_the_null_is_the_mean_over_all_ways_to_deal_the_actions_out():
    pool = ["a", "a", "b", "b", "c", "d"]
    every = [
        action_information([list(order[:3]), list(order[3:])], resamples=1).raw
        for order in set(itertools.permutations(pool))
    ]
    found = action_information([pool[:3], pool[3:]], resamples=4000)
    assert found.null == pytest.approx(np.mean(every), abs=0.01)


def random_actions(rng: np.random.Generator, dependence: float) -> list[list[str]]:
    """Eight prompts of eight actions out of four, each the prompt's own with this chance."""
    own = rng.integers(4, size=8)
    return [
        [str(own[x] if rng.random() < dependence else rng.integers(4)) for _ in range(8)]
        for x in range(8)
    ]


def test_actions_that_ignore_the_prompt_have_no_adjusted_information_in_the_mean():
    rng = np.random.default_rng(0)
    found = [action_information(random_actions(rng, 0.0), resamples=100) for _ in range(100)]
    assert abs(np.mean([one.adjusted for one in found])) < 0.02
    assert np.mean([one.raw for one in found]) > 0.1


def test_p_values_are_rarely_small_without_and_always_small_with_dependence():
    rng = np.random.default_rng(1)
    none = [action_information(random_actions(rng, 0.0)).p_value for _ in range(100)]
    some = [action_information(random_actions(rng, 0.7)).p_value for _ in range(20)]
    assert np.mean(np.array(none) <= 0.05) <= 0.12
    assert max(some) <= 0.01


def test_the_bound_is_the_smaller_of_the_two_entropies():
    few_actions = [["a", "b"], ["a", "b"], ["b", "a"], ["a", "a"]]
    found = action_information(few_actions)
    assert found.bound == found.entropy < math.log(4)
    few_prompts = [list("abcd"), list("efgh")]
    assert action_information(few_prompts).bound == pytest.approx(math.log(2))


def test_prompts_may_have_different_numbers_of_actions():
    found = action_information([["a"] * 6, ["b"] * 2])
    assert found.raw == pytest.approx(-(3 / 4) * math.log(3 / 4) - (1 / 4) * math.log(1 / 4))


@pytest.mark.parametrize("actions", [[], [["a", "b"]], [["a", "b"], ["a"]], [["a"], ["b"]]])
def test_too_little_to_compare_gives_nothing(actions):
    assert action_information(actions) is None


def test_a_prompt_with_one_action_is_left_out():
    with_lonely = action_information([["a", "a"], ["b", "b"], ["c"]])
    assert with_lonely == action_information([["a", "a"], ["b", "b"]])


# --- oscillation -----------------------------------------------------------------------------------


def codes(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text])


@pytest.mark.parametrize(
    ("text", "share"),
    [("ABABAB", 1.0), ("AAAA", 0.0), ("ABCABC", 0.0), ("ABA", 1.0), ("ABAC", 0.5), ("AABB", 0.0)],
)
def test_back_and_forth_counts_returns_to_the_last_but_one(text, share):
    assert back_and_forth(codes(text)[None])[0] == share


@given(st.text("ABC", min_size=3, max_size=6))
def test_the_null_of_back_and_forth_is_its_mean_over_all_orders(text):
    every = [
        back_and_forth(np.array(order)[None])[0] for order in itertools.permutations(codes(text))
    ]
    assert shuffled_back_and_forth(codes(text)) == pytest.approx(np.mean(every))


def test_batches_that_go_back_and_forth_stand_out():
    found = oscillation(["ABABAB"] * 8, 200, np.random.default_rng(0))
    assert found["oscillation"] == 1.0
    assert found["oscillation_null"] == pytest.approx(0.3)
    assert found["oscillation_p_value"] <= 0.01


def test_turns_in_random_order_do_not_stand_out():
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(100):
        batch = [rng.permutation(list("AABBCD")).tolist() for _ in range(16)]
        p_values.append(oscillation(batch, 100, rng)["oscillation_p_value"])
    assert np.mean(np.array(p_values) <= 0.05) <= 0.12


def test_sequences_of_two_say_nothing():
    assert oscillation(["AB", "A"], 100, np.random.default_rng(0)) == {}


@pytest.fixture
def walk(turn_of):
    """A trajectory: ``walk("L:1", "R:2")`` does L and sees 1, then does R and sees 2."""

    def make(*turns: str) -> Trajectory:
        played = []
        for turn in turns:
            done, seen = turn.split(":")
            played.append(turn_of(executed=done.split("+") if done else [], observation=seen))
        return Trajectory(Prompt("E", 0, ()), 0, tuple(played), StopReason.DONE, solved=False)

    return make


def test_undoing_oscillates_and_a_staircase_does_not(walk):
    undoing = walk("L:1", "R:2", "L:1", "R:2")
    stairs = walk("R:1", "D:2", "R:3", "D:4")
    rng = np.random.default_rng(0)
    assert oscillation([symbols(undoing)], 100, rng)["oscillation"] == 1.0
    assert oscillation([symbols(stairs)], 100, rng)["oscillation"] == 0.0


def test_no_effect_counts_acting_turns_that_show_the_old_observation(walk):
    found = no_effect([walk("L:1", "L:1", "R:1", "R:2"), walk("U:5", ":5", "U:6")])
    assert found == {"no_effect": 2 / 4, "stuck": 1 / 4}


def test_first_turns_alone_say_nothing_about_effect(walk):
    assert no_effect([walk("L:1")]) == {}


def test_the_diagnostic_names_them_all(walk):
    group = Group(Prompt("E", 0, ()), (walk("L:1", "R:2", "L:1"), walk("L:1", "R:2", "L:1")))
    found = Actions().measure(Evidence(1, [group]))
    assert found["rollout/oscillation"] == 1.0
    assert found["rollout/no_effect"] == found["rollout/stuck"] == 0.0
    assert found["rollout/oscillation_null"] == pytest.approx(1 / 3)
    assert 0.0 < found["rollout/oscillation_p_value"] <= 1.0
    assert Actions().measure(Evidence(1, [group])).absent == {}


def test_short_episodes_leave_reasons(walk):
    evidence = Evidence(1, [Group(Prompt("E", 0, ()), (walk("L:1"),))])
    assert Actions().measure(evidence) == {}
    assert Actions().measure(evidence).absent == {
        "rollout/oscillation": "no episode had three turns",
        "rollout/no_effect": "no action was taken after a first turn",
    }


def test_answers_are_gathered_by_the_prompt_the_model_saw(turn_of):
    def member(luck: int, prompt: list[int], *actions: str) -> Trajectory:
        turn = turn_of(prompt_ids=prompt, executed=actions)
        return Trajectory(Prompt("E", 0, ()), luck, (turn,), StopReason.DONE, solved=False)

    group = Group(
        Prompt("E", 0, ()),
        (
            member(0, [1], "Up", "Down"),
            member(1, [2], "Up"),
            member(2, [1], "Left"),
            member(3, [1]),
        ),
    )
    assert actions_by_prompt([group], 1) == [["Up || Down", "Left"], ["Up"]]
    assert actions_by_prompt([group], 2) == []
