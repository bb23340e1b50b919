"""Logs whose prompts hold images: told apart by them, audited by wording, never scored without the pixels."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ragen2.audit.likelihoods import PolicyLikelihood, ServerLikelihood
from ragen2.audit.readers import READERS
from ragen2.audit.reservoir import TextTrace
from ragen2.audit.rollouts import chat_of, digest, holds_images, image_mark
from ragen2.backends.scripted import ScriptedPolicy
from ragen2.envs import make
from ragen2.rollout import Rollout, Task, play
from ragen2.runs.trajectories import group_lines

NAME = "ab" * 16
PARTS = {
    "openai": {"type": "image_url", "image_url": {"url": "https://example.org/lake.png"}},
    "responses": {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
    "transformers": {"type": "image", "path": "lake.png"},
}


def chat(*parts):
    return chat_of([{"role": "user", "content": [*parts, {"type": "text", "text": "go"}]}])


@pytest.mark.parametrize("name", sorted(PARTS))
def test_an_image_among_the_parts_of_a_message_is_a_mark_of_its_own(name):
    shown, text = chat(PARTS[name]), chat()
    assert text == (("user", "go"),)
    assert holds_images(shown)
    assert not holds_images(text)
    assert shown == chat(dict(PARTS[name]))
    others = [chat(part) for other, part in PARTS.items() if other != name]
    assert len({digest(one) for one in (shown, text, *others)}) == 2 + len(others)


def test_our_own_images_keep_their_names():
    (message,) = chat_of([{"role": "user", "content": "go", "images": [NAME]}])
    assert message == ("user", f"[image {NAME}]go")
    assert image_mark("lake.png") != image_mark("hole.png")


def test_parts_that_are_no_images_are_left_out_as_ever():
    assert chat({"type": "audio", "data": "AAAA"}, {"type": "text"}) == (("user", "go"),)


def test_rollouts_of_our_own_are_told_apart_by_what_was_shown():
    env = make("FrozenLake", observation="image")
    policy = ScriptedPolicy(lambda prompt, rng: "x</think><answer>Right</answer>")
    groups = play(env, policy, [[Task(seed, 0)] for seed in range(3)], Rollout(), key=())
    logged = [
        READERS["ragen2"].read(json.loads(line))[0]
        for group in groups
        for line in group_lines(group, 1)
    ]
    assert len({digest(one.turns[0].prompt) for one in logged}) == 3
    for one, group in zip(logged, groups, strict=True):
        played = group.trajectories[0].turns
        for number, turn in enumerate(one.turns):
            marks = [f"[image {image.digest}]" for image in played[number].images]
            users = [content for role, content in turn.prompt if role == "user"]
            assert [text[:40] for text in users] == marks


class NeverAsked:
    """A model and a server that must not be asked for anything."""

    max_context = 100

    @property
    def tokenizer(self):
        return ScriptedPolicy(lambda prompt, rng: "").tokenizer

    def score(self, pairs, temperature=1.0):
        pytest.fail("scored without the pixels")

    score_texts = score


@pytest.mark.parametrize("kind", [PolicyLikelihood, ServerLikelihood])
def test_no_model_is_asked_about_a_prompt_without_its_pixels(kind):
    prompts = [[TextTrace(chat(part), "", "why")] for part in PARTS.values()]
    scored = kind(NeverAsked(), "x").score(prompts)
    assert scored.matrix is None
    assert scored.reason == (
        "prompts hold images, which a model cannot be shown here; leave --model out"
    )
    assert scored.unused == {"prompts hold images": 3}


class Uniform(NeverAsked):
    """Gives every token the same."""

    def score(self, pairs, temperature=1.0):
        return [np.full(len(pair.continuation_ids_T), -1.0) for pair in pairs]


def test_the_text_prompts_of_a_mixed_log_are_scored():
    prompts = [
        [TextTrace(chat(PARTS["openai"]), "", "why")],
        [TextTrace("left", "", "so")],
        [TextTrace("right", "", "then")],
    ]
    scored = PolicyLikelihood(Uniform(), "x").score(prompts)
    assert scored.matrix.logp_NP.shape == (2, 2)
    assert scored.unused == {"prompts hold images": 1}
    assert [one.reasoning for one in scored.traces] == ["so", "then"]
