"""Images through a rollout: shown each turn, carried with the tokens, kept or dropped with old turns."""

import numpy as np
import pytest

from ragen2.backends.scripted import IMAGE, ByteTokenizer, ScriptedPolicy
from ragen2.envs import make
from ragen2.errors import ModelError
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.context import require_vision, with_images_of
from ragen2.rollout.prompts import PromptSettings, PromptWriter, TurnState
from ragen2.trainer.update import contiguous_turns, samples_of
from ragen2.types import Image, Message


class Blind(ByteTokenizer):
    blind_because = "this model reads text only"


def _image(shade):
    return Image(np.full((4, 4, 3), shade, np.uint8))


def _walk(prompt, rng):
    return "on</think><answer>Right || Left</answer>"


def _played(env, **settings):
    policy = ScriptedPolicy(_walk)
    rollout = Rollout(**settings)
    (group,) = play(env, policy, [[Task(100_000, 0), Task(100_000, 1)]], rollout, key=("t",))
    return group


BRIEF = PromptSettings(style="brief")
ENV = make("FrozenLake", observation="image", slip=0.5, hole_ratio=0.0, size=6, min_distance=8)


def test_the_first_image_is_part_of_the_prompt():
    group = _played(ENV)
    first = Image(ENV.start(100_000, 0).shown_image)
    assert group.prompt.messages[1].images == (first,)
    assert group.prompt.messages[1].content == "Turn 1 of 5.\nYou may take 10 more actions."
    for one in group.trajectories:
        assert one.turns[0].images == (first,)


def test_each_turn_sees_every_image_so_far_in_order():
    for one in _played(ENV).trajectories:
        shown = [*one.turns[0].images]
        assert len(one.turns) > 2
        for turn in one.turns:
            assert turn.images == tuple(shown)
            assert (turn.prompt_ids_T == IMAGE).sum() == len(shown)
            shown.append(turn.shown_image)
        assert len({image.digest for image in shown}) > 1


def test_the_image_after_a_turn_is_that_of_the_new_state():
    trajectory = _played(ENV).trajectories[1]
    episode = ENV.start(100_000, 1)
    for turn in trajectory.turns:
        for action in turn.executed:
            episode.step(action)
        assert turn.shown_image == Image(episode.shown_image)
        assert turn.observation == ""


def test_a_window_of_images_keeps_the_words_of_older_turns():
    wide = _played(ENV).trajectories[0].turns
    narrow = _played(ENV, image_window=1).trajectories[0].turns
    assert [len(turn.images) for turn in wide] == [1, 2, 3, 4, 5]
    assert [len(turn.images) for turn in narrow] == [1, 1, 1, 1, 1]
    assert [turn.images[-1] for turn in narrow] == [turn.images[-1] for turn in wide]
    for one, other in zip(narrow, wide, strict=True):
        words = [token for token in one.prompt_ids_T.tolist() if token != IMAGE]
        assert words == [token for token in other.prompt_ids_T.tolist() if token != IMAGE]


def test_a_window_of_turns_drops_their_images_too():
    turns = _played(ENV, history="current").trajectories[0].turns
    assert [len(turn.images) for turn in turns] == [1] * len(turns)
    assert [turn.images[0] for turn in turns[1:]] == [turn.shown_image for turn in turns[:-1]]


def test_images_that_are_dropped_cut_a_trajectory_into_samples_of_what_was_seen():
    whole, cut = _played(ENV), _played(ENV, image_window=1)
    assert [len(contiguous_turns(one)) for one in whole.trajectories] == [1, 1]
    for one in cut.trajectories:
        assert len(contiguous_turns(one)) == len(one.turns)
    (samples, _), *_ = samples_of([cut], 1.0)
    for sample, turn in zip(samples, cut.trajectories[0].turns, strict=True):
        assert sample.images == turn.images
        assert (sample.ids_T == IMAGE).sum() == len(sample.images)


def test_a_sample_carries_its_images_and_no_loss_on_them():
    group = _played(ENV)
    for trajectory, (sample,) in zip(group.trajectories, samples_of([group], 1.0)[0], strict=True):
        assert sample.images == trajectory.turns[-1].images
        assert not sample.loss_mask_T[sample.ids_T == IMAGE].any()
        assert sample.loss_mask_T.sum() == trajectory.num_tokens


def test_turns_with_equal_tokens_and_another_image_do_not_continue_each_other():
    import dataclasses

    trajectory = _played(ENV).trajectories[0]
    first, second, *_rest = trajectory.turns
    swapped = dataclasses.replace(second, images=(_image(9), *second.images[1:]))
    forged = dataclasses.replace(trajectory, turns=(first, swapped))
    assert len(contiguous_turns(dataclasses.replace(trajectory, turns=(first, second)))) == 1
    assert len(contiguous_turns(forged)) == 2


def test_the_policy_is_handed_the_images_of_the_prompt():
    seen = []

    def reply(prompt, rng):
        seen.append(prompt)
        return "x</think><answer>Up</answer>"

    env = make("FrozenLake", observation="image", max_turns=1)
    play(env, ScriptedPolicy(reply), [[Task(100_000, 0)], [Task(100_001, 0)]], Rollout(), key=())
    names = [Image(env.start(seed, 0).shown_image).digest for seed in (100_000, 100_001)]
    assert [f"[image {name}]" in prompt for name, prompt in zip(names, seen, strict=True)] == [
        True,
        True,
    ]


def test_a_message_holds_its_image():
    writer = PromptWriter.of(ENV, Rollout(), PromptSettings(style="brief"))
    with_image = writer.turn(TurnState("You", 3, problem="late", image=_image(1)))
    assert with_image.content == "Your last reply was not valid: late.\nYou\nActions left 3"
    assert with_image.images == (_image(1),)
    assert writer.turn(TurnState("", 3, image=_image(1))).content == "Actions left 3"


def test_old_images_are_dropped_from_messages_not_their_words():
    users = [Message("user", str(turn), (_image(turn),)) for turn in range(4)]
    kept = with_images_of(users, 2)
    assert [one.content for one in kept] == ["0", "1", "2", "3"]
    assert [len(one.images) for one in kept] == [0, 0, 1, 1]
    assert with_images_of(users, 0) == users


def test_a_model_that_reads_text_only_is_refused_before_anything_is_played():
    policy = ScriptedPolicy(_walk)
    policy.tokenizer = Blind()
    with pytest.raises(ModelError) as error:
        play(ENV, policy, [[Task(100_000, 0)]], Rollout(), key=())
    assert str(error.value) == (
        "FrozenLake shows images, but this model reads text only; choose a vision-language model such "
        "as ragen2-tiny-vl, or take an env.observation without images"
    )
    play(make("FrozenLake"), policy, [[Task(100_000, 0)]], Rollout(), key=())


def test_an_image_that_leaves_no_room_for_a_reply_is_refused():
    policy = ScriptedPolicy(_walk)
    policy.max_context = 500
    require_vision(make("FrozenLake"), policy, Rollout(), BRIEF)
    with pytest.raises(ModelError) as error:
        require_vision(ENV, policy, Rollout(max_tokens=200), BRIEF)
    assert str(error.value).startswith(
        "a first prompt with an image of 168 x 168 pixels and a reply of 200 tokens (rollout.max_tokens) "
        "are more than the 500 tokens this model reads; show smaller images"
    )
    policy.max_context = 5000
    require_vision(ENV, policy, Rollout(max_tokens=200), BRIEF)
