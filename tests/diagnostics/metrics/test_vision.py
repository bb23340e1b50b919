"""Vision on policies whose dependence on picture and words is written down, so that each part is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ragen2.diagnostics import Actions, Evidence, Vision
from ragen2.diagnostics.metrics.vision import measure_grounding, measure_split
from ragen2.policy import Pair
from ragen2.scoring import Trace
from ragen2.scoring.exchanges import ImageExchange, exchange_last_image, swap_matrices
from ragen2.types import FloatArray, Group, Image, Message, Prompt, StopReason, Trajectory, Turn

T, Z, END = 10, 20, 6
"""First token of the three wordings and of the three reasonings, and the token that ends a reasoning."""
FOLLOWS = np.ones((3, 3)) + 9.0 * np.eye(3)
"""Ten times as likely to say what one is told: rows (10, 1, 1) / 12."""
LOG_TEN = math.log(10)


def image(number: int) -> Image:
    return Image(np.full((2, 2, 3), number, np.uint8))


class Table:
    """A policy whose reasoning depends on the number of its last image, of its words, or both.

    Every reasoning ends with a token of log-prob -0.5, whatever came before.
    """

    def __init__(self, odds: Callable[[int, int], FloatArray]) -> None:
        self.odds = odds

    def probabilities(self, i: int, t: int) -> FloatArray:
        odds = self.odds(i, t)
        return odds / odds.sum()

    def score(self, pairs: Sequence[Pair], temperature: float = 1.0) -> list[FloatArray]:
        return [self._score(pair) for pair in pairs]

    def _score(self, pair: Pair) -> FloatArray:
        i, t = int(pair.images[-1].pixels[0, 0, 0]), int(pair.context_ids_T[0]) - T
        z = pair.continuation_ids_T[0] - Z
        return np.array([math.log(self.probabilities(i, t)[z]), -0.5])


POLICIES = {
    "image": Table(lambda i, t: FOLLOWS[i]),
    "text": Table(lambda i, t: FOLLOWS[t]),
    "either": Table(lambda i, t: FOLLOWS[i] + FOLLOWS[t]),
    "both": Table(lambda i, t: FOLLOWS[2 * (i + t) % 3]),
    "neither": Table(lambda i, t: np.ones(3)),
}
"""Where image and words have one number, all but the last say that number with odds of 10 to 1 and 1."""


def trace(x: int, z: int) -> Trace:
    return Trace(np.array([T + x]), np.array([Z + z, END]), images=(image(x),))


EXACT = [trace(x, z) for x in range(3) for z in range(3) for _ in range(10 if z == x else 1)]
"""Twelve reasonings a prompt whose frequencies are exactly those of the dependent policies."""


def mean_log_ratio(policy: Table, others: Callable[[int], list[tuple[int, int]]]) -> float:
    """By hand: information a token over the exact batch, when the prompt is exchanged for ``others``."""
    values = []
    for one in EXACT:
        x, z = int(one.prompt_ids_T[0]) - T, int(one.reasoning_ids_T[0]) - Z
        own = policy.probabilities(x, x)[z]
        tokens = [math.sqrt(policy.probabilities(i, t)[z]) for i, t in others(x)]
        values.append(math.log(math.sqrt(own)) - math.log(sum(tokens) / len(tokens)))
    return sum(values) / len(values)


def split(policy: Table, traces: Sequence[Trace] = EXACT) -> dict[str, float]:
    return measure_split(swap_matrices(traces, policy), 200, 0)


def grounding(policy: Table, traces: Sequence[Trace] = EXACT, swaps: int = 2) -> dict[str, float]:
    rng = np.random.default_rng(0)
    return measure_grounding(exchange_last_image(traces, policy, swaps=swaps, rng=rng), 200, rng)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_parts_are_what_a_count_by_hand_gives(name):
    found = split(POLICIES[name])
    numbers = range(3)
    expected = {
        "whole_mi": mean_log_ratio(POLICIES[name], lambda x: [(o, o) for o in numbers]),
        "image_mi": mean_log_ratio(POLICIES[name], lambda x: [(o, x) for o in numbers]),
        "text_mi": mean_log_ratio(POLICIES[name], lambda x: [(x, o) for o in numbers]),
    }
    for part, value in expected.items():
        assert found[part] == pytest.approx(value, abs=1e-12), part
        assert found[f"{part}_low"] <= found[part] <= found[f"{part}_high"]
    rest = expected["whole_mi"] - expected["image_mi"] - expected["text_mi"]
    assert found["shared_mi"] == pytest.approx(rest, abs=1e-12)
    assert found["num_prompts"] == 3.0


def test_the_part_that_is_not_looked_at_is_nothing():
    seen, read, blind = (split(POLICIES[name]) for name in ("image", "text", "neither"))
    assert seen["image_mi"] == seen["whole_mi"] > 0.1
    assert read["text_mi"] == read["whole_mi"] > 0.1
    nothing = pytest.approx(0.0, abs=1e-12)
    assert seen["text_mi"] == read["image_mi"] == nothing
    assert seen["shared_mi"] == read["shared_mi"] == nothing
    assert [blind[f"{part}_mi"] for part in ("whole", "image", "text", "shared")] == [nothing] * 4


def test_what_both_say_is_shared_and_what_needs_both_is_below_nothing():
    either, both = split(POLICIES["either"]), split(POLICIES["both"])
    assert either["shared_mi"] > 0.05
    assert both["shared_mi"] == pytest.approx(-both["whole_mi"])


@pytest.mark.parametrize(
    ("name", "accuracy"), [("image", 10 / 12), ("text", 1 / 3), ("both", 10 / 12)]
)
def test_retrieval_asks_for_the_image_alone(name, accuracy):
    found = split(POLICIES[name])
    assert found["retrieval_accuracy"] == pytest.approx(accuracy)
    assert found["retrieval_accuracy_low"] < accuracy < found["retrieval_accuracy_high"]
    assert found["retrieval_chance"] == pytest.approx(1 / 3)


def test_the_drop_is_what_the_policy_says():
    """Ten in twelve lose log 10 with each other image; two lose it with their own, against one of two."""
    found = grounding(POLICIES["image"])
    assert found["drop"] == pytest.approx((10 / 12 - 2 / 12 / 2) * LOG_TEN / 2)
    assert found["grounding"] == pytest.approx(10 / 12 + 2 / 12 / 4)
    assert found["num_traces"] == 36.0
    assert found["grounding_low"] > 0.5
    assert found["drop_low"] > 0.0


@pytest.mark.parametrize("name", ["text", "neither"])
def test_a_policy_that_does_not_look_is_at_one_half(name):
    found = grounding(POLICIES[name])
    assert (found["grounding"], found["drop"]) == (0.5, 0.0)
    assert found["grounding_low"] < 0.5 < found["grounding_high"]
    assert found["drop_low"] == found["drop_high"] == 0.0


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    policy = POLICIES["image"]
    truth = {"drop": (10 / 12 - 1 / 12) * LOG_TEN / 2, "grounding": 10 / 12 + 1 / 12 / 2}
    covered = dict.fromkeys(truth, 0)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        traces = [trace(x, rng.choice(3, p=FOLLOWS[x] / 12)) for x in range(3) for _ in range(8)]
        found = measure_grounding(exchange_last_image(traces, policy, swaps=1, rng=rng), 100, rng)
        for name, value in truth.items():
            covered[name] += found[f"{name}_low"] <= value <= found[f"{name}_high"]
    assert min(covered.values()) >= 184, covered


def test_hardly_any_influence_of_the_image_is_not_taken_for_some():
    """Each image makes each of a thousand reasonings a little likelier or less likely, at random."""
    covered = {"drop": 0, "grounding": 0}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        odds_PZ = np.exp(0.01 * rng.normal(size=(4, 1000)))
        logp_PZ = np.log(odds_PZ / odds_PZ.sum(1, keepdims=True))
        owner_N = np.repeat(np.arange(4), 4)
        said_N = [rng.choice(1000, p=np.exp(logp_PZ[x])) for x in owner_N]
        other_NS = [rng.permutation(np.delete(np.arange(4), x))[:2] for x in owner_N]
        swapped_NS = np.array(
            [logp_PZ[other, z] for other, z in zip(other_NS, said_N, strict=True)]
        )
        length_N = np.ones(16, dtype=np.int64)
        scores = ImageExchange(logp_PZ[owner_N, said_N], swapped_NS, length_N, owner_N)
        found = measure_grounding(scores, 100, rng)
        covered["drop"] += found["drop_low"] <= 0.0 <= found["drop_high"]
        covered["grounding"] += found["grounding_low"] <= 0.5 <= found["grounding_high"]
    assert min(covered.values()) >= 184, covered


# --- the diagnostic --------------------------------------------------------------------------------


def batch(
    turn_of: Callable[..., Turn], policy: Table, *, members: int = 8, turns: int = 1
) -> list[Group]:
    """Groups whose reasonings are drawn from the policy; the image of a later turn is its own."""
    rng = np.random.default_rng(1)
    groups = []
    for x in range(3):
        prompt = Prompt("E", x, (Message("user", str(x), (image(x),)),))
        played = []
        for luck in range(members):
            shown = [x, *rng.integers(0, 3, turns)]
            done = [
                turn_of(
                    prompt_ids=[T + x, *[0] * turn],
                    ids=[Z + rng.choice(3, p=policy.probabilities(shown[turn], x)), END, 1],
                    reasoning_span=(0, 2),
                    images=tuple(image(number) for number in shown[: turn + 1]),
                )
                for turn in range(turns)
            ]
            played.append(Trajectory(prompt, luck, tuple(done), StopReason.DONE, solved=False))
        groups.append(Group(prompt, tuple(played)))
    return groups


def test_each_turn_has_its_grounding_and_the_first_one_the_split(turn_of):
    policy = POLICIES["image"]
    found = Vision().measure(Evidence(1, batch(turn_of, policy, turns=3), policy))
    scopes = {"first_turn", "turn_2", "turn_3"}
    assert {name.split("/")[1] for name in found} == scopes
    for scope in scopes:
        assert found[f"vision/{scope}/grounding_low"] > 0.5
        assert found[f"vision/{scope}/drop_low"] > 0.0
        assert found[f"vision/{scope}/num_traces"] == 24.0
    assert found["vision/first_turn/image_mi"] == found["vision/first_turn/whole_mi"]
    assert not [name for name in found if name.startswith("vision/turn_") and "mi" in name]


def test_talk_that_no_longer_looks_is_told_from_talk_that_does(turn_of):
    policy = POLICIES["text"]
    found = Vision().measure(Evidence(1, batch(turn_of, policy), policy))
    assert found["vision/first_turn/grounding"] == 0.5
    assert found["vision/first_turn/image_mi"] == pytest.approx(0.0, abs=1e-12)
    assert found["vision/first_turn/text_mi_low"] > 0.0


def test_no_more_prompts_and_traces_are_taken_than_allowed(turn_of):
    policy = POLICIES["image"]
    evidence = Evidence(1, batch(turn_of, policy, turns=2), policy)
    found = Vision(max_prompts=2, max_traces=9).measure(evidence)
    assert found["vision/first_turn/num_prompts"] == 2.0
    assert found["vision/first_turn/num_traces"] == found["vision/turn_2/num_traces"] == 9.0


def test_it_is_silent_where_no_image_is_shown(turn_of, group_of):
    evidence = Evidence(1, [group_of([0.0, 1.0])], POLICIES["image"])
    assert Vision().measure(evidence) == {}
    assert Vision().measure(evidence).absent == {}


def test_too_little_to_compare_leaves_a_reason(turn_of):
    policy = POLICIES["image"]
    few = Evidence(1, batch(turn_of, policy, members=2), policy)
    assert Vision().measure(few) == {}
    assert Vision().measure(few).absent == {
        "vision/first_turn": "6 reasoning traces with images of one size, 8 are needed"
    }
    alone = Evidence(1, batch(turn_of, policy)[:1], policy)
    assert Vision().measure(alone).absent == {
        "vision/first_turn": "all reasoning traces are about one image, 2 are needed"
    }


def test_without_a_scorer_it_refuses_to_make_numbers_up():
    with pytest.raises(ValueError, match="called without a scorer"):
        Vision().measure(Evidence(1, []))


# --- actions of an agent that is shown images alone ------------------------------------------------


def walk(turn_of: Callable[..., Turn], seen: Sequence[int]) -> Group:
    prompt = Prompt("E", 0, ())
    turns = [
        turn_of(executed=["Left" if n % 2 else "Right"], observation="", shown_image=image(one))
        for n, one in enumerate(seen)
    ]
    return Group(prompt, (Trajectory(prompt, 0, tuple(turns), StopReason.DONE, solved=False),))


def test_oscillation_goes_by_the_image_where_there_are_no_words(turn_of):
    back, on = walk(turn_of, [1, 2, 1, 2, 1, 2]), walk(turn_of, [1, 2, 3, 4, 5, 6])
    assert Actions().measure(Evidence(1, [back]))["rollout/oscillation"] == 1.0
    assert Actions().measure(Evidence(1, [on]))["rollout/oscillation"] == 0.0


def test_an_action_without_effect_leaves_the_image_as_it_was(turn_of):
    found = Actions().measure(Evidence(1, [walk(turn_of, [1, 1, 2, 2, 3])]))
    assert found["rollout/no_effect"] == 0.5
    assert found["rollout/stuck"] == 0.0
