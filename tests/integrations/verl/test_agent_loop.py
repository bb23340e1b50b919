"""Episodes as rows of verl: every token in its place."""

from __future__ import annotations

import numpy as np
import pytest
import verl  # noqa: F401 - it must be there before its parts

from ragen2.backends.agent import open_policy
from ragen2.config import load_run
from ragen2.integrations.verl.agent_loop import play_row
from ragen2.rollout import Task, play
from ragen2.trainer.update import conversation


@pytest.fixture(scope="module")
def policy():
    return open_policy("ragen2-tiny", "cpu")


@pytest.fixture(scope="module")
def config():
    return load_run(None, ["seed=5", "rollout.max_tokens=48"])


def test_a_row_is_the_conversation_token_for_token(config, policy):
    row = {"part": "train", "step": 2, "task": 100_003, "session_id": 1}
    episode = play_row(config, policy, row).trajectories[0]
    assert len(episode.turns) > 1
    found = conversation(episode)
    ids, logprobs, mask = found.ids, found.logprobs, found.mask
    whole = [*episode.turns[0].prompt_ids_T, *ids]
    last = episode.turns[-1]
    assert whole == [*last.prompt_ids_T, *last.completion.ids_T]
    written = np.concatenate([turn.completion.ids_T for turn in episode.turns])
    assert np.array_equal(np.array(ids)[np.array(mask) == 1], written)
    sampled = np.concatenate([turn.completion.logprobs_T for turn in episode.turns])
    assert np.array_equal(np.array(logprobs)[np.array(mask) == 1], sampled)
    assert not np.array(logprobs)[np.array(mask) == 0].any()
    for (start, end), turn in zip(found.reasoning, episode.turns, strict=True):
        assert ids[start:end] == turn.reasoning_ids_T.tolist()


@pytest.mark.parametrize(
    ("part", "key"), [("train", (5, "train", 2)), ("evaluate", (5, "evaluate"))]
)
def test_a_row_plays_what_our_own_loop_plays(config, policy, part, key):
    row = {"part": part, "step": 2, "task": 100_003, "session_id": 1}
    tasks = [[Task(100_003, 1)]]
    own = play(config.env, policy, tasks, config.rollout, prompt=config.prompt, key=key)[0]
    there = play_row(config, policy, row)
    texts = [[turn.completion.text for turn in one.trajectories[0].turns] for one in (own, there)]
    assert texts[0] == texts[1]


def test_a_probe_has_one_turn(config, policy):
    row = {"part": "probe", "step": 0, "task": 1, "session_id": 0}
    assert len(play_row(config, policy, row).trajectories[0].turns) == 1
