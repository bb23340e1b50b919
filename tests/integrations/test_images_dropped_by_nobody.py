"""Engines and rows that hold no images refuse an environment that shows them: none is dropped in silence."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.backends.remote.policy import ServerPolicy
from ragen2.backends.remote.scorer import ServerScorer
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.backends.scripted import ByteTokenizer, ScriptedPolicy
from ragen2.backends.vllm.policy import VllmPolicy, VllmServerPolicy
from ragen2.config import RunConfig
from ragen2.envs import make
from ragen2.errors import ConfigError, ModelError
from ragen2.integrations.datasets import groups_from_rows, prompt_rows, trajectory_rows
from ragen2.integrations.verl.refusals import refuse_untranslatable
from ragen2.policy import IdsOnly
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.context import refuse_blind, refuse_images

ENV = make("FrozenLake", observation="image")


def served() -> ServerPolicy:
    return ServerPolicy(ServerScorer("http://127.0.0.1:1", "x"), ByteTokenizer())


def test_a_server_is_sent_ids_alone():
    with pytest.raises(ModelError) as error:
        play(ENV, served(), [[Task(0, 0)]], Rollout(), key=())
    assert str(error.value) == (
        "FrozenLake shows images, but a server is sent token ids alone; let the model itself play, or "
        "take an env.observation without images"
    )
    refuse_blind(make("FrozenLake"), served())


@pytest.mark.parametrize(
    ("kind", "words"),
    [(VllmPolicy, 'model.engine = "vllm"'), (VllmServerPolicy, 'model.engine = "server"')],
)
def test_engines_that_follow_a_learner_are_sent_ids_alone(kind, words):
    engine = kind.__new__(kind)
    assert isinstance(engine, IdsOnly)
    with pytest.raises(ModelError, match=f"{words} is sent token ids alone"):
        refuse_blind(ENV, engine)


def test_our_own_policies_are_handed_images():
    assert not isinstance(HFPolicy.__new__(HFPolicy), IdsOnly)
    assert not isinstance(ScriptedPolicy(lambda prompt, rng: ""), IdsOnly)


def test_verl_says_so_before_it_starts():
    with pytest.raises(ConfigError) as error:
        refuse_untranslatable(RunConfig(env=ENV))
    assert "--engine verl: FrozenLake shows images, and a row of verl holds text only" in str(
        error.value
    )
    refuse_untranslatable(RunConfig(env=make("FrozenLake")))


def test_rows_of_messages_say_so():
    with pytest.raises(ConfigError, match="and a row of chat messages holds text only"):
        prompt_rows(ENV, [0])
    assert prompt_rows(make("FrozenLake"), [0])
    with pytest.raises(ConfigError, match="and a row of TRL holds text only; use ragen2 train, or"):
        refuse_images(ENV, "a row of TRL")


def test_rows_of_trajectories_name_their_images_and_find_them_again():
    policy = ScriptedPolicy(lambda prompt, rng: "x</think><answer>Up</answer>")
    groups = play(ENV, policy, [[Task(0, 0), Task(0, 1)]], Rollout(), key=())
    known = {
        image.digest: image
        for one in groups[0].trajectories
        for turn in one.turns
        for image in (*turn.images, turn.shown_image)
    }
    rows = trajectory_rows(groups)
    (found,) = groups_from_rows(rows, known.__getitem__)
    for mine, theirs in zip(found.trajectories, groups[0].trajectories, strict=True):
        assert [turn.images for turn in mine.turns] == [turn.images for turn in theirs.turns]
        assert np.array_equal(mine.turns[0].prompt_ids_T, theirs.turns[0].prompt_ids_T)
    (bare,) = groups_from_rows(rows)
    assert bare.trajectories[0].turns[0].images == ()
