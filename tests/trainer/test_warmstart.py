"""The warm start without a model: what it trains on, in which order, at which rate."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.backends.scripted import END, ByteTokenizer
from ragen2.config import load_config
from ragen2.envs import Bandit, FrozenLake
from ragen2.rollout import Rollout
from ragen2.rollout.prompts import PromptSettings, PromptWriter
from ragen2.trainer.warmstart import (
    Script,
    Supervised,
    WarmstartConfig,
    default_recipe,
    lessons,
    script_episode,
    tokenizer_corpus,
    warmstart,
)
from ragen2.types import Update


class EndingTokenizer(ByteTokenizer):
    """Says which token ends a message, as templates do."""

    eos_ids = frozenset({END})


class NotingLearner:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.tokenizer = EndingTokenizer()
        self.scales: list[float] = []
        self.batches: list[list[str]] = []

    def set_lr_scale(self, scale: float) -> None:
        self.scales.append(scale)

    def update(self, samples, objective, *, scale: float) -> Update:
        assert isinstance(objective, Supervised)
        assert scale == 1.0
        self.batches.append([self.tokenizer.decode(sample.ids_T.tolist()) for sample in samples])
        return Update({"negative_logp": 1.0 / len(self.batches)}, 1, 1)


def trained(**settings) -> NotingLearner:
    learner = NotingLearner()
    warmstart(WarmstartConfig(**({"steps": 5, "batch": 3} | settings)), learner)
    return learner


def test_every_step_trains_on_fresh_episodes():
    batches = trained().batches
    assert [len(batch) for batch in batches] == [3] * 5
    assert len({text for batch in batches for text in batch}) == 15


def test_the_same_recipe_gives_the_same_episodes_and_another_seed_others():
    assert trained().batches == trained().batches
    assert trained(seed=1).batches != trained().batches


def test_the_rate_falls_evenly_to_its_end():
    assert trained(final_lr_ratio=0.2).scales == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_one_step_has_the_full_rate():
    assert trained(steps=1).scales == [1.0]


def test_the_loss_of_each_step_is_reported_and_the_last_returned():
    heard: list[tuple[int, float]] = []
    last = warmstart(
        WarmstartConfig(steps=3, batch=1),
        NotingLearner(),
        lambda step, loss: heard.append((step, loss)),
    )
    assert heard == [(1, 1.0), (2, 1 / 2), (3, 1 / 3)]
    assert last == 1 / 3


def test_the_environment_and_the_form_of_replies_are_those_of_the_recipe():
    rollout = {"thinking": False, "actions_per_turn": 1}
    for text in trained(env=Bandit(), rollout=rollout).batches[0]:
        assert "Arms: " in text
        assert "assistant: <answer>" in text
        assert "<think>why</think>" not in text


def test_a_new_tokenizer_reads_every_form_of_observation():
    corpus = tokenizer_corpus(load_config(WarmstartConfig, default_recipe()))
    text = "\n".join(corpus)
    for piece in ("<think>", "</think><answer>", "You (", "Goal (", "____", "system\n", "Holes"):
        assert piece in text
    assert len(corpus) > 1000
    assert np.mean([len(one) for one in corpus]) < 500


def test_where_a_prompt_holds_one_turn_each_turn_is_a_lesson_of_its_own():
    env = FrozenLake(slip=0.0, observation="image", min_distance=3)
    dialogue = script_episode(
        PromptWriter.of(env, Rollout(), PromptSettings(style="brief")),
        Script(1.0, 1.0),
        seed=0,
        index=0,
    )
    assert len(dialogue.users) > 1
    assert lessons(dialogue, Rollout()) == [dialogue]
    alone = lessons(dialogue, Rollout(history="current"))
    assert [one.users for one in alone] == [(user,) for user in dialogue.users]
    assert [one.replies for one in alone] == [(reply,) for reply in dialogue.replies]
    assert {one.opening for one in alone} == {dialogue.opening}


def test_lessons_of_one_turn_are_trained_on_as_they_will_be_seen():
    batches = trained(steps=1, rollout=Rollout(history="current")).batches[0]
    assert len(batches) > 3  # episodes
    assert all(text.count("user: ") == text.count("assistant: ") == 1 for text in batches)
