"""The values that flow: what they refuse, and what they derive."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ragen2.types import (
    Completion,
    Finish,
    Group,
    Image,
    Message,
    Prompt,
    Reply,
    Sample,
    ScoreMatrix,
    Selection,
    StopReason,
    Trajectory,
    context_key,
)

PROMPT = Prompt("FrozenLake", 3, (Message("system", "rules"), Message("user", "go")))


def test_prompts_with_equal_content_are_equal_values():
    twin = Prompt("FrozenLake", 3, (Message("system", "rules"), Message("user", "go")))
    assert twin == PROMPT
    assert len({twin, PROMPT}) == 1


def test_prompts_of_different_seeds_are_different_values():
    assert dataclasses.replace(PROMPT, seed=4) != PROMPT


def test_a_value_cannot_be_edited():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PROMPT.seed = 4


def test_a_completion_without_one_log_prob_a_token_is_refused():
    with pytest.raises(ValueError, match="one log-prob per token, got 3 ids and 2 log-probs"):
        Completion(np.arange(3), np.zeros(2), "abc", Finish.STOP)


def test_a_reply_is_valid_exactly_when_nothing_is_wrong_with_it():
    assert Reply("why", ("Up",)).valid
    assert not Reply("why", ("Up",), "no </answer>").valid


def test_reasoning_ids_are_the_span_of_the_sampled_ids(turn_of):
    turn = turn_of(ids=[10, 11, 12, 13], reasoning_span=(1, 3))
    assert turn.reasoning_ids_T.tolist() == [11, 12]


def test_a_return_is_the_sum_of_rewards_and_penalties(turn_of):
    turns = (turn_of(reward=1.0, penalty=-0.1), turn_of(reward=0.5), turn_of(penalty=-0.1))
    trajectory = Trajectory(PROMPT, 0, turns, StopReason.DONE, solved=True)
    assert trajectory.reward == pytest.approx(1.3)


def test_num_tokens_counts_sampled_tokens_of_all_turns(turn_of):
    turns = (turn_of(ids=[1, 2, 3]), turn_of(ids=[4, 5], prompt_ids=range(50)))
    assert Trajectory(PROMPT, 0, turns, StopReason.DONE, solved=True).num_tokens == 5


def test_a_trajectory_without_turns_has_return_zero():
    trajectory = Trajectory(PROMPT, 0, (), StopReason.CONTEXT_FULL, solved=False)
    assert (trajectory.reward, trajectory.num_tokens) == (0.0, 0)


def test_rewards_of_a_group_are_the_returns_of_its_members_in_order(group_of):
    assert group_of([0.0, 1.0, 0.25]).rewards_G.tolist() == [0.0, 1.0, 0.25]


def test_a_group_without_trajectories_is_refused():
    with pytest.raises(ValueError, match="group FrozenLake/3 has no trajectories"):
        Group(PROMPT, ())


def test_a_group_whose_members_have_different_prompts_is_refused():
    other = dataclasses.replace(PROMPT, seed=4)
    members = tuple(
        Trajectory(prompt, 0, (), StopReason.DONE, solved=False) for prompt in (PROMPT, other)
    )
    with pytest.raises(ValueError, match="members of group FrozenLake/3 have different prompts"):
        Group(PROMPT, members)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logp_NP": np.zeros((0, 2))}, r"must be N x P and not empty, got \(0, 2\)"),
        ({"logp_NP": np.zeros(3)}, r"must be N x P and not empty, got \(3,\)"),
        ({"length_N": np.ones(2, int)}, r"one entry for each of 3 traces, got \(2,\) and \(3,\)"),
        ({"owner_N": np.zeros(4, int)}, r"one entry for each of 3 traces, got \(3,\) and \(4,\)"),
        ({"logp_NP": np.full((3, 2), -np.inf)}, "logp_NP holds infinite scores"),
        ({"logp_NP": np.full((3, 2), np.nan)}, "trace 0 is not scored under its own prompt"),
        (
            {"logp_NP": np.array([[0.0, 0.0], [np.nan, 0.0], [0.0, 0.0]])},
            "trace 1 is scored under its own prompt alone",
        ),
        ({"length_N": np.array([1, 0, 1])}, "length_N must be at least 1"),
        ({"owner_N": np.array([0, 2, 1])}, r"owner_N must name columns 0\.\.1"),
        ({"owner_N": np.array([0, -1, 1])}, r"owner_N must name columns 0\.\.1"),
    ],
)
def test_a_score_matrix_says_what_is_wrong_with_it(change, message):
    good = {
        "logp_NP": np.zeros((3, 2)),
        "length_N": np.ones(3, int),
        "owner_N": np.array([0, 1, 1]),
    }
    with pytest.raises(ValueError, match=message):
        ScoreMatrix(**(good | change))


def test_a_selection_applies_in_the_old_order(group_of):
    groups = [group_of([0.0, 1.0], seed=seed) for seed in range(4)]
    selection = Selection(np.array([True, False, False, True]), np.zeros(4))
    assert selection.apply(groups) == [groups[0], groups[3]]
    assert selection.kept_ratio == 0.5


def test_a_selection_for_another_number_of_groups_does_not_apply(group_of):
    with pytest.raises(ValueError, match=r"shorter|longer"):
        Selection(np.array([True, False]), np.zeros(2)).apply([group_of([0.0, 1.0])])


def test_arrays_of_a_sample_must_have_one_length():
    with pytest.raises(ValueError, match="arrays must have one length"):
        Sample(np.arange(3), np.zeros(3, bool), np.zeros(2), np.zeros(3))


def test_the_first_token_of_a_sample_cannot_carry_loss():
    with pytest.raises(ValueError, match="first token of a sample has nothing before it"):
        Sample(np.arange(2), np.array([True, False]), np.zeros(2), np.zeros(2))


def test_images_with_equal_pixels_are_equal_values():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    one, twin = Image(pixels), Image(pixels.copy())
    assert one == twin
    assert len({one, twin}) == 1
    assert one.size == (2, 4)


def test_images_of_another_shape_or_pixel_are_others():
    pixels = np.zeros((2, 4, 3), np.uint8)
    other = pixels.copy()
    other[0, 0, 0] = 1
    assert len({Image(pixels), Image(pixels.reshape(4, 2, 3)), Image(other)}) == 3


def test_an_image_keeps_its_pixels_whatever_happens_to_the_array():
    pixels = np.zeros((2, 2, 3), np.uint8)
    image = Image(pixels)
    pixels[:] = 9
    assert image.pixels.max() == 0
    with pytest.raises(ValueError, match="read-only"):
        image.pixels[:] = 1


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((0, 2, 3), np.uint8)],
)
def test_what_is_no_rgb_picture_is_refused(pixels):
    with pytest.raises(ValueError, match="an image must be height x width x 3 bytes"):
        Image(pixels)


def test_prompts_with_other_images_are_others():
    images = [Image(np.full((2, 2, 3), shade, np.uint8)) for shade in (0, 1)]
    prompts = {Prompt("FrozenLake", 3, (Message("user", "go", (image,)),)) for image in images}
    assert len(prompts) == 2


def test_what_is_read_differs_by_ids_and_by_images():
    black, white = (Image(np.full((2, 2, 3), shade, np.uint8)) for shade in (0, 255))
    ids = np.array([1, 2], dtype=np.int64)
    assert context_key(ids) == ids.tobytes()
    assert context_key(ids, [black]) == context_key(ids, [black])
    keys = [context_key(ids), context_key(ids, [black]), context_key(ids, [white])]
    assert len({*keys, context_key(ids, [black, white]), context_key(ids, [white, black])}) == 5
