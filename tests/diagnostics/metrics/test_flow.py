"""Information flow on policies whose dependence is written down, so that each link is known exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from ragen2.diagnostics import Evidence, Flow, measure_flow
from ragen2.diagnostics.metrics.flow import EXCHANGES, mean_interval, sign_flip_p_value
from ragen2.policy import Pair
from ragen2.scoring.exchanges import ActionTrace, score_flow
from ragen2.types import FloatArray, Group, Prompt, StopReason, Trajectory

X, Z, A = 10, 20, 30
"""First token of the four prompts, the four reasonings and the four actions."""
TAG, END = 5, 6
FOLLOWS = np.full((4, 4), 1.0) + 8.0 * np.eye(4)
"""Nine times as likely to do what one is told: rows (9, 1, 1, 1) / 12."""
HALF = np.sqrt(FOLLOWS)
"""Two of these in agreement make one ``FOLLOWS``."""
NINE_TO_ONE = (2 / 3) * math.log(9)
"""Mean log-ratio when one told thing is exchanged for another: (9 - 1) / 12 of log 9."""


class Table:
    """A policy whose action depends on the number of its prompt, of its reasoning, or both.

    ``weight(x, z)`` are the odds of the four actions; z is None without reasoning. Every action ends
    with a token of log-prob -0.5, whatever came before.
    """

    def __init__(self, weight) -> None:
        self.weight = weight

    def probabilities(self, x: int, z: int | None) -> FloatArray:
        odds = self.weight(x, z)
        return odds / odds.sum()

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        return [self._score(pair) for pair in pairs]

    def _score(self, pair: Pair) -> FloatArray:
        context = pair.context_ids_T.tolist()
        assert context[-1] == TAG
        z = context[1] - Z if len(context) == 3 else None
        action = pair.continuation_ids_T[0] - A
        return np.array([math.log(self.probabilities(context[0] - X, z)[action]), -0.5])


def told(table: np.ndarray, what: int | None) -> FloatArray:
    return np.ones(4) if what is None else table[what]


POLICIES = {
    "reasoning": Table(lambda x, z: told(FOLLOWS, z)),
    "input": Table(lambda x, z: told(FOLLOWS, x)),
    "both": Table(lambda x, z: told(HALF, x) * told(HALF, z)),
    "neither": Table(lambda x, z: np.ones(4)),
}


def reply(x: int, z: int, a: int) -> ActionTrace:
    return ActionTrace(
        *(np.array(p, dtype=np.int64) for p in ([X + x], [Z + z], [TAG], [A + a, END]))
    )


def exact_replies() -> list[ActionTrace]:
    """Twelve replies a prompt whose action frequencies are exactly those of all three dependent policies."""
    return [reply(x, x, a) for x in range(4) for a in range(4) for _ in range(9 if a == x else 1)]


def measured(policy: Table, replies: list[ActionTrace], swaps: int = 36) -> dict[str, float]:
    """With 36 swaps every reply meets all replies of the other prompts: no chance is left."""
    rng = np.random.default_rng(0)
    scores = score_flow(replies, policy, 1.0, swaps=swaps, rng=rng)
    return measure_flow(scores, 400, rng)


BOTH_SWAPPED = (3 / 4) * math.log(2) + (1 / 12) * math.log(2 / 9) + (2 / 12) * math.log(2 / 3)
"""With one of two advisers exchanged the odds are (3, 3, 1, 1) / 8 instead of (9, 1, 1, 1) / 12."""
BOTH_BLANK = (3 / 4) * math.log((3 / 4) / (3 / 6)) + (3 / 12) * math.log((1 / 12) / (1 / 6))
"""With one adviser alone they are (3, 1, 1, 1) / 6."""
ALONE = (3 / 4) * math.log(3) - (1 / 4) * math.log(3)
"""Against no advice at all, (1, 1, 1, 1) / 4."""


@pytest.mark.parametrize(
    ("depends_on", "swap", "blank", "direct"),
    [
        ("reasoning", NINE_TO_ONE, ALONE, 0.0),
        ("input", 0.0, 0.0, NINE_TO_ONE),
        ("both", BOTH_SWAPPED, BOTH_BLANK, BOTH_SWAPPED),
    ],
)
def test_each_exchange_costs_the_action_exactly_what_the_policy_says(
    depends_on, swap, blank, direct
):
    found = measured(POLICIES[depends_on], exact_replies())
    for name, expected in zip(EXCHANGES, (swap, blank, direct), strict=True):
        assert found[f"{name}_seq"] == pytest.approx(expected, abs=1e-12), name
        assert found[name] == pytest.approx(expected / 2, abs=1e-12), name


@pytest.mark.parametrize("depends_on", ["reasoning", "input", "both"])
def test_a_link_is_significant_exactly_where_there_is_one(depends_on):
    found = measured(POLICIES[depends_on], exact_replies())
    assert (found["reasoning_action_swap_p_value"] <= 0.01) == (depends_on != "input")
    assert (found["reasoning_action_blank_p_value"] <= 0.05) == (depends_on != "input")
    assert (found["input_action_direct_p_value"] <= 0.01) == (depends_on != "reasoning")


def test_a_policy_that_ignores_everything_has_effects_of_exactly_nothing():
    found = measured(POLICIES["neither"], exact_replies())
    for name in EXCHANGES:
        assert found[name] == found[f"{name}_seq_low"] == found[f"{name}_seq_high"] == 0.0
        assert found[f"{name}_p_value"] == 1.0


def test_reasoning_that_is_one_template_is_said_to_have_nothing_to_swap():
    replies = [reply(x, 0, 0) for x in range(4) for _ in range(3)]
    found = measured(POLICIES["reasoning"], replies)
    assert found["reasoning_action_swap"] == 0.0
    assert found["swap_differs_ratio"] == 0.0
    assert found["reasoning_action_blank_seq"] == pytest.approx(math.log(3))


def test_counts_of_replies_and_prompts_are_told():
    found = measured(POLICIES["both"], exact_replies())
    assert (found["num_traces"], found["num_prompts"]) == (48.0, 4.0)
    assert found["swap_differs_ratio"] == 1.0


def sampled_replies(policy: Table, rng: np.random.Generator) -> list[ActionTrace]:
    return [
        reply(x, x, rng.choice(4, p=policy.probabilities(x, x))) for x in range(4) for _ in range(8)
    ]


@pytest.mark.parametrize(
    ("depends_on", "name", "truth"),
    [
        ("reasoning", "reasoning_action_swap_seq", NINE_TO_ONE),
        ("both", "reasoning_action_blank_seq", BOTH_BLANK),
        ("input", "input_action_direct", NINE_TO_ONE / 2),
    ],
)
def test_intervals_cover_the_truth_about_as_often_as_they_say(depends_on, name, truth):
    policy, covered = POLICIES[depends_on], 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        scores = score_flow(sampled_replies(policy, rng), policy, 1.0, swaps=2, rng=rng)
        found = measure_flow(scores, 100, rng)
        covered += found[f"{name}_low"] <= truth <= found[f"{name}_high"]
    assert covered >= 180


def test_sign_flips_are_uniform_for_values_without_a_sign():
    rng = np.random.default_rng(0)
    p_values = np.sort([sign_flip_p_value(rng.standard_t(3, 16), 200, rng) for _ in range(400)])
    distance = np.abs(p_values - (np.arange(400) + 0.5) / 400).max()
    assert distance < 1.63 / math.sqrt(400)  # Kolmogorov-Smirnov at 1%


def test_sign_flips_are_one_sided():
    rng = np.random.default_rng(0)
    up = np.linspace(0.1, 1.0, 12)
    assert sign_flip_p_value(up, 200, rng) <= 0.01
    assert sign_flip_p_value(-up, 200, rng) >= 0.99


def test_an_interval_of_single_replies_takes_them_as_one_sample():
    rng = np.random.default_rng(0)
    value_N = rng.normal(size=40)
    low, high = mean_interval(value_N, np.arange(40), 400, rng)
    error = value_N.std(ddof=1) / math.sqrt(40)
    assert low == pytest.approx(value_N.mean() - 2.02 * error, abs=0.4 * error)
    assert high == pytest.approx(value_N.mean() + 2.02 * error, abs=0.4 * error)


# --- the diagnostic --------------------------------------------------------------------------------


def batch(turn_of, policy: Table, *, turns: int = 1, members: int = 8) -> list[Group]:
    """Groups whose actions are drawn from the policy."""
    groups = []
    rng = np.random.default_rng(1)
    for x in range(4):
        prompt = Prompt("E", x, ())
        trajectories = []
        for luck in range(members):
            played = []
            for _ in range(turns):
                a = int(rng.choice(4, p=policy.probabilities(x, x)))
                played.append(
                    turn_of(
                        prompt_ids=[X + x],
                        ids=[Z + x, TAG, A + a, END],
                        reasoning_span=(0, 1),
                        action_span=(2, 4),
                        executed=[f"action {a}"],
                    )
                )
            trajectories.append(
                Trajectory(prompt, luck, tuple(played), StopReason.DONE, solved=False)
            )
        groups.append(Group(prompt, tuple(trajectories)))
    return groups


def test_the_diagnostic_reads_the_links_off_a_batch(turn_of):
    policy = POLICIES["reasoning"]
    found = Flow().measure(Evidence(1, batch(turn_of, policy), policy))
    assert found["flow/first_turn/reasoning_action_swap_p_value"] <= 0.01
    assert found["flow/first_turn/input_action_direct"] == 0.0
    assert found["flow/first_turn/input_action_p_value"] <= 0.01
    assert found["flow/first_turn/num_traces"] == 32.0


def test_the_exact_batch_has_the_exact_information(turn_of):
    """Nine of twelve actions of each of four prompts are its own."""
    groups = []
    for x in range(4):
        prompt = Prompt("E", x, ())
        chosen = [a for a in range(4) for _ in range(9 if a == x else 1)]
        turns = [turn_of(prompt_ids=[X + x], executed=[f"{a}"], action_span=(0, 0)) for a in chosen]
        members = [
            Trajectory(prompt, n, (turn,), StopReason.DONE, solved=False)
            for n, turn in enumerate(turns)
        ]
        groups.append(Group(prompt, tuple(members)))
    found = Flow().measure(Evidence(1, groups, POLICIES["neither"]))
    entropy = -(3 / 4) * math.log(3 / 4) - (1 / 4) * math.log(1 / 12)
    assert found["flow/first_turn/input_action_raw"] == pytest.approx(math.log(4) - entropy)
    assert found["flow/first_turn/input_action_bound"] == pytest.approx(math.log(4))
    assert found["flow/first_turn/action_entropy"] == pytest.approx(math.log(4))


def test_later_turns_are_measured_when_asked_for(turn_of):
    policy = POLICIES["both"]
    evidence = Evidence(1, batch(turn_of, policy, turns=3), policy)
    scopes = {name.split("/")[1] for name in Flow(scopes=("first_turn", "turns")).measure(evidence)}
    assert scopes == {"first_turn", "turn_2", "turn_3"}
    assert {n.split("/")[1] for n in Flow(scopes=("turns",)).measure(evidence)} == {
        "turn_2",
        "turn_3",
    }


def test_too_few_replies_leave_a_reason_and_no_number(turn_of):
    policy = POLICIES["both"]
    evidence = Evidence(1, batch(turn_of, policy, members=1), policy)
    assert Flow().measure(evidence) == {}
    reasons = Flow().measure(evidence).absent
    assert reasons["flow/first_turn/reasoning_action_swap"] == (
        "4 replies with reasoning and action, 8 are needed"
    )
    assert reasons["flow/first_turn/input_action"] == "fewer than two prompts had two actions each"
    assert Flow(scopes=("turns",)).measure(evidence).absent["flow/turns/reasoning_action_swap"] == (
        "no trajectory has a second turn"
    )


def test_one_prompt_alone_leaves_a_reason(turn_of):
    policy = POLICIES["both"]
    evidence = Evidence(1, batch(turn_of, policy)[:1], policy)
    assert Flow().measure(evidence).absent["flow/first_turn/reasoning_action_swap"] == (
        "1 distinct prompt among 8 replies, 2 are needed"
    )


def test_without_a_scorer_it_refuses_to_make_numbers_up():
    with pytest.raises(ValueError, match="called without a scorer"):
        Flow().measure(Evidence(1, []))
