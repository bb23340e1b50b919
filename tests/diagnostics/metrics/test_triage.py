"""Labels of flat prompts, rule by rule."""

from __future__ import annotations

import pytest

from ragen2.diagnostics import Attempts, Contrasts, Evidence, Label, Played, Triage, triage
from ragen2.diagnostics.base import attempts_of
from ragen2.types import Group, Prompt, StopReason, Trajectory

LIVE = Attempts("E", (Played(0.0, False, ("a",)), Played(1.0, True, ("b",))))


def flat(reward, solved, *, behaviours=4, size=4, **settings) -> Attempts:
    flags = solved if isinstance(solved, list) else [solved] * size
    members = tuple(
        Played(reward, flag, (f"act {index % behaviours}",)) for index, flag in enumerate(flags)
    )
    return Attempts("E", members, **settings)


def label(prompt, *others, contrasts=None, **settings):
    beside = None if contrasts is None else [contrasts, *(None for _ in others)]
    return triage([prompt, *others], beside, **settings)[0].label


@pytest.mark.parametrize("contrasts", [None, Contrasts(expert=(Played(1.0, True),))])
def test_prompts_whose_rewards_differ_are_live(contrasts):
    assert label(LIVE, contrasts=contrasts) is Label.LIVE


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (flat(1.0, True), Label.TOO_EASY),
        (flat(0.0, False), Label.TOO_HARD),
        (flat(0.0, [True, False, False, False]), Label.REWARD_BLIND),
        (flat(1.0, [True, False, True, True]), Label.REWARD_BLIND),
        (flat(0.0, True), Label.REWARD_BLIND),
        (flat(1.0, False), Label.REWARD_BLIND),
        (flat(0.5, False), Label.REWARD_BLIND),
        (flat(0.5, False, behaviours=1), Label.UNCLEAR),
        (flat(0.5, False, behaviours=2), Label.UNCLEAR),
        (flat(1.0, None), Label.TOO_EASY),
        (flat(0.0, None), Label.TOO_HARD),
        (flat(0.5, None), Label.REWARD_BLIND),
        (flat(0.0, False, size=1), Label.UNCLEAR),
        (flat(0.0, False, num_broken=1), Label.UNCLEAR),
    ],
)
def test_from_rollouts_beside_a_live_prompt(prompt, expected):
    assert label(prompt, LIVE) is expected


def test_a_partial_reward_that_failure_pays_elsewhere_is_no_blindness():
    partial = Attempts("E", (Played(0.1, False, ("a",)), Played(1.0, True, ("b",))))
    assert label(flat(0.1, False), partial) is Label.TOO_HARD


def test_other_flat_prompts_do_not_teach_what_failure_pays():
    assert label(flat(0.5, False), flat(0.5, False), LIVE) is Label.REWARD_BLIND


def test_other_environments_teach_nothing():
    other = Attempts("F", (Played(0.5, False), Played(1.0, True)))
    assert label(flat(0.5, False), other, LIVE) is Label.REWARD_BLIND
    assert label(flat(0.5, None), other) is Label.UNCLEAR


def test_without_any_live_prompt_the_range_decides():
    both = [flat(0.5, None), flat(0.5, None)]
    assert [one.label for one in triage(both)] == [Label.UNCLEAR, Label.UNCLEAR]
    assert label(flat(0.0, None), reward_range=(0.0, 1.0)) is Label.TOO_HARD
    assert label(flat(1.0, None), reward_range=(0.0, 1.0)) is Label.TOO_EASY
    assert label(flat(0.5, None), reward_range=(0.0, 1.0)) is Label.UNCLEAR


def test_a_batch_solved_or_failed_altogether():
    assert label(flat(1.0, True)) is Label.TOO_EASY
    assert label(flat(0.0, False)) is Label.TOO_HARD


def contrasts_of(expert, *randoms, own=(), one_turn=False):
    return Contrasts((expert,), tuple(randoms), tuple(own), one_turn)


@pytest.mark.parametrize(
    ("prompt", "contrasts", "expected"),
    [
        # The expert is paid more.
        (flat(0.0, False), contrasts_of(Played(1.0, True), Played(0.0, False)), Label.TOO_HARD),
        (flat(0.5, False), contrasts_of(Played(1.0, True), Played(0.5, False)), Label.TOO_HARD),
        # All members get the most, random play does not.
        (flat(1.0, True), contrasts_of(Played(1.0, True), Played(0.0, False)), Label.TOO_EASY),
        # Even random play gets it right.
        (flat(1.0, True), contrasts_of(Played(1.0, True), Played(1.0, True)), Label.TOO_EASY),
        # Solved or not, the same is paid.
        (flat(0.0, False), contrasts_of(Played(0.0, True), Played(0.0, False)), Label.REWARD_BLIND),
        (flat(1.0, True), contrasts_of(Played(1.0, True), Played(1.0, False)), Label.REWARD_BLIND),
        # Everything is paid the same, and it is no failure's reward.
        (
            flat(0.5, False),
            contrasts_of(Played(0.5, False), Played(0.5, False)),
            Label.REWARD_BLIND,
        ),
        # Nothing is paid to anyone: impossible.
        (flat(0.0, False), contrasts_of(Played(0.0, False), Played(0.0, False)), Label.TOO_HARD),
        # Members do as well as the expert, though nobody counts as having solved it.
        (flat(0.5, False), contrasts_of(Played(0.5, False), Played(0.1, False)), Label.TOO_EASY),
        # Members' own flags differ: no contrast is needed.
        (
            flat(0.0, [True, False]),
            contrasts_of(Played(1.0, True), Played(0.0, False)),
            Label.REWARD_BLIND,
        ),
    ],
)
def test_with_contrasts(prompt, contrasts, expected):
    assert label(prompt, contrasts=contrasts, reward_range=(0.0, 1.0)) is expected


@pytest.mark.parametrize(("one_turn", "expected"), [(True, Label.UNCLEAR), (False, Label.TOO_EASY)])
def test_rewards_that_are_equal_by_luck(one_turn, expected):
    lucky = [Played(float(index % 2), True) for index in range(16)]
    contrasts = Contrasts(tuple(lucky), tuple(lucky), tuple(lucky), one_turn)
    assert label(flat(0.0, True), contrasts=contrasts, reward_range=(0.0, 1.0)) is expected


def test_an_unlucky_expert_does_not_make_a_solved_prompt_hard():
    expert = tuple(Played(float(index != 3), index != 3) for index in range(8))
    contrasts = Contrasts(expert, (Played(0.0, False),) * 8)
    assert label(flat(1.0, True), contrasts=contrasts, reward_range=(0.0, 1.0)) is Label.TOO_EASY
    assert label(flat(0.0, False), contrasts=contrasts, reward_range=(0.0, 1.0)) is Label.TOO_HARD


def test_a_failed_replay_is_told_and_the_rollouts_decide():
    (found,) = triage([flat(1.0, True)], [Contrasts(problem="ValueError: broken")])
    assert found.label is Label.TOO_EASY
    assert found.reason == "all 4 solved it; no replay: ValueError: broken"
    assert found.replay_failed


def test_examples_of_a_blind_prompt_differ_in_behaviour_and_not_in_reward():
    (found,) = triage([flat(0.0, [False, False, True])])
    plays = [play for _, play in found.examples]
    assert {play.reward for play in plays} == {0.0}
    assert {play.solved for play in plays} == {True, False}
    assert len({play.behaviour for play in plays}) == len(plays)
    assert found.reason == "1 of 3 solved it, yet all were paid 0"


def test_an_example_of_a_hard_prompt_shows_member_and_expert():
    expert = Played(1.0, True, ("right",))
    (found,) = triage([flat(0.0, False)], [contrasts_of(expert, Played(0.0, False))])
    assert [who for who, _ in found.examples] == ["member 0", "expert"]
    assert found.reason == "the scripted expert is paid 1, every member 0"


def test_small_differences_can_count_as_flat():
    nearly = Attempts("E", (Played(0.99, True, ("a",)), Played(1.0, True, ("b",))))
    assert label(nearly) is Label.LIVE
    assert label(nearly, low_std=0.01) is Label.TOO_EASY


def test_rounding_is_no_difference():
    members = (Played(0.1 + 0.2, True), Played(0.3, True))
    assert label(Attempts("E", members), reward_range=(0.0, 0.3)) is Label.TOO_EASY


def test_case_and_spaces_of_actions_are_no_difference_in_behaviour():
    assert (
        Played(0.0, None, ("Up ", "left")).behaviour == Played(0.0, None, ("up", " Left")).behaviour
    )
    assert Played(0.0, None, ("up",), "x").behaviour != Played(0.0, None, ("up",), "y").behaviour


def test_a_prompt_without_plays_is_refused():
    with pytest.raises(ValueError, match="'x' has no plays"):
        Attempts("E", (), name="x")


def test_what_triage_knows_of_a_group(turn_of):
    prompt = Prompt("E", 3, ())
    turns = (turn_of(reward=1.0, penalty=-0.1, executed=("Up",)), turn_of(executed=("Left", "Up")))
    good = Trajectory(prompt, 0, turns, StopReason.DONE, solved=True)
    silent = Trajectory(prompt, 1, (), StopReason.CONTEXT_FULL, solved=False)
    broken = Trajectory(prompt, 2, (), StopReason.ENV_ERROR, solved=False)
    found = attempts_of(Group(prompt, (good, silent, broken)))
    assert found.members[0] == Played(1.0, True, ("Up", "Left", "Up"), "after")
    assert found.members[1] == Played(0.0, False, (), "")
    assert (found.name, found.num_broken, found.format_spread) == ("E seed 3", 1, True)
    assert found.variety == pytest.approx(2 / 3)


def test_shares_of_a_batch(group_of, turn_of):
    prompt = Prompt("FrozenLake", 9, ())
    members = tuple(
        Trajectory(prompt, luck, (turn_of(penalty=penalty),), StopReason.DONE, solved=False)
        for luck, penalty in enumerate((0.0, -0.1))
    )
    groups = [
        group_of([0.0, 1.0], seed=1),
        group_of([1.0, 1.0], seed=2),
        group_of([0.0, 0.0], seed=3),
        Group(prompt, members),
    ]
    assert Triage().measure(Evidence(1, groups)) == {
        "triage/live": 0.25,
        "triage/too_easy": 0.25,
        "triage/too_hard": 0.5,
        "triage/reward_blind": 0.0,
        "triage/unclear": 0.0,
        "triage/format_only": 0.25,
        "triage/replay_errors": 0.0,
    }


class Blinding:
    """A replayer that pays everyone what members were paid, solved or not."""

    reward_range = (0.0, 1.0)

    def __init__(self):
        self.asked = []

    def contrasts(self, group, replays):
        self.asked.append((group.prompt.seed, replays))
        return Contrasts((Played(1.0, True),), (Played(1.0, False),))


def test_only_flat_prompts_are_replayed_and_only_if_asked(group_of):
    groups = [group_of([0.0, 1.0], seed=1), group_of([1.0, 1.0], seed=2)]
    replayer = Blinding()
    evidence = Evidence(1, groups, replayer=replayer)
    assert Triage(replays=3).measure(evidence)["triage/reward_blind"] == 0.5
    assert replayer.asked == [(2, 3)]
    assert Triage(replays=0).measure(evidence)["triage/too_easy"] == 0.5
    assert replayer.asked == [(2, 3)]
