"""Samples: loss exactly on sampled tokens, each once, with its trajectory's advantage."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen2.algorithms import Credit
from ragen2.backends.scripted import END, ByteTokenizer, ScriptedPolicy
from ragen2.envs import FrozenLake
from ragen2.errors import EnvError
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.prompts import Opening, PromptSettings, PromptWriter
from ragen2.trainer.update import (
    contiguous_turns,
    conversation,
    flatten,
    outcome,
    samples_of,
    with_credit,
)
from ragen2.trainer.warmstart import Dialogue, Script, dialogue_sample, script_episode
from ragen2.types import Completion, Group, Message, Prompt, Sample, StopReason, Trajectory

HISTORIES = [
    {"history": "full"},
    {"history": "current"},
    {"history": "window", "window": 1},
    {"history": "window", "window": 2},
    {"history": "window", "window": 3},
]


class NoisyPolicy(ScriptedPolicy):
    """Log-probs that are all different, so that one in the wrong place shows."""

    def sample(self, requests, params):
        completions = super().sample(requests, params)
        return [
            Completion(
                c.ids_T,
                -np.random.default_rng([len(r.prompt_ids_T), r.key[-1]]).random(len(c.ids_T)),
                c.text,
                c.finish,
            )
            for r, c in zip(requests, completions, strict=True)
        ]


def chatter(prompt: str, rng: np.random.Generator) -> str:
    """Replies of all kinds: valid, cut, without tags, with unknown actions."""
    words = "".join(rng.choice(list("ab √<|"), size=int(rng.integers(0, 12))))
    move = rng.choice(["Up", "Down", "Left", "Right", "Fly"])
    return str(
        rng.choice(
            [f"{words}</think><answer>{move}</answer>", words, words * 20, f"{words}</think>"]
        )
    )


def played(history: dict, seed: int = 0, *, members: int = 4) -> Group:
    env = FrozenLake(slip=0.0)
    tasks = [[Task(seed, luck) for luck in range(members)]]
    rollout = Rollout(max_tokens=48, **history)
    return play(env, NoisyPolicy(chatter), tasks, rollout, key=("samples",))[0]


def written_ids(trajectory: Trajectory) -> list[int]:
    return [int(i) for turn in trajectory.turns for i in turn.completion.ids_T]


def make_samples(groups: list[Group], temperature: float = 1.0) -> list[Sample]:
    return list(flatten(samples_of(groups, temperature)))


def samples_of_one(trajectory: Trajectory) -> list[Sample]:
    return make_samples([Group(trajectory.prompt, (trajectory,))])


# --- played episodes -------------------------------------------------------------------------------


@pytest.mark.parametrize("history", HISTORIES)
@given(seed=st.integers(0, 10**6))
def test_every_sampled_token_carries_loss_once_and_nothing_else_does(history, seed):
    for trajectory in played(history, seed, members=1).trajectories:
        samples = samples_of_one(trajectory)
        trained = [int(i) for sample in samples for i in sample.ids_T[sample.loss_mask_T]]
        assert trained == written_ids(trajectory)


@pytest.mark.parametrize("history", HISTORIES)
@given(seed=st.integers(0, 10**6))
def test_what_comes_before_a_loss_token_is_what_the_model_saw(history, seed):
    for trajectory in played(history, seed, members=1).trajectories:
        samples = iter(samples_of_one(trajectory))
        for turns in contiguous_turns(trajectory):
            sample = next(samples)
            for turn in turns:
                start = len(turn.prompt_ids_T)
                end = start + len(turn.completion.ids_T)
                assert sample.ids_T[:start].tolist() == turn.prompt_ids_T.tolist()
                assert sample.ids_T[start:end].tolist() == turn.completion.ids_T.tolist()
                assert sample.loss_mask_T[start:end].all()
                assert (
                    sample.old_logprobs_T[start:end].tolist() == turn.completion.logprobs_T.tolist()
                )


@pytest.mark.parametrize("history", HISTORIES)
def test_outside_the_loss_mask_log_probs_and_advantages_are_zero(history):
    for sample in make_samples([played(history)]):
        assert not sample.old_logprobs_T[~sample.loss_mask_T].any()
        assert not sample.advantages_T[~sample.loss_mask_T].any()


def test_full_history_is_one_sample_a_trajectory():
    group = played({"history": "full"})
    assert len(make_samples([group])) == len(group.trajectories)


def test_current_history_is_one_sample_a_turn():
    group = played({"history": "current"})
    turns = sum(len(trajectory.turns) for trajectory in group.trajectories)
    assert len(make_samples([group])) == turns


def test_a_conversation_is_the_one_sample_of_a_trajectory_with_full_history():
    for trajectory in played({}).trajectories:
        row, (sample,) = conversation(trajectory), samples_of_one(trajectory)
        start = len(trajectory.turns[0].prompt_ids_T)
        assert row.ids == sample.ids_T[start:].tolist()
        assert row.mask == sample.loss_mask_T[start:].tolist()
        assert row.logprobs == sample.old_logprobs_T[start:].tolist()
        for (first, end), turn in zip(row.reasoning, trajectory.turns, strict=True):
            assert row.ids[first:end] == turn.reasoning_ids_T.tolist()


def test_a_conversation_needs_the_full_history_and_a_turn():
    cut = played({"history": "current"}).trajectories[0]
    assert len(cut.turns) > 1
    with pytest.raises(AssertionError, match="prompts only grow"):
        conversation(cut)
    with pytest.raises(EnvError, match=r"first prompt of FrozenLake seed .* does not fit"):
        conversation(dataclasses.replace(cut, turns=()))


def test_a_window_is_one_sample_per_run_of_contiguous_turns():
    trajectory = next(
        t for t in played({"history": "window", "window": 3}).trajectories if len(t.turns) == 5
    )
    assert [len(turns) for turns in contiguous_turns(trajectory)] == [3, 1, 1]


def test_credit_lands_on_the_tokens_it_is_for():
    for group in (played({"history": "current"}, seed) for seed in range(4)):
        for trajectory in group.trajectories:
            earned = outcome(trajectory, 48)
            tokens = int(earned.lengths_K.sum())
            credit = Credit(np.arange(tokens) + 1.0, -(np.arange(tokens) + 1.0))
            uncredited = samples_of([Group(group.prompt, (trajectory,))], 1.0)[0][0]
            samples = with_credit(uncredited, credit, 2.0)
            advantages = [x for s in samples for x in s.advantages_T[s.loss_mask_T]]
            returns = [x for s in samples for x in s.returns_T[s.loss_mask_T]]
            assert advantages == (2.0 * credit.advantages_T).tolist()
            assert returns == credit.returns_T.tolist()
            assert not any(s.advantages_T[~s.loss_mask_T].any() for s in samples)


def test_an_outcome_is_what_each_turn_paid():
    trajectory = played({}, 3).trajectories[0]
    earned = outcome(trajectory, 48)
    assert earned.total == pytest.approx(trajectory.reward)
    assert earned.lengths_K.tolist() == [len(t.completion.ids_T) for t in trajectory.turns]
    assert earned.rewards_K.tolist() == [t.reward + t.penalty for t in trajectory.turns]


def test_the_temperature_is_carried():
    assert {s.temperature for s in make_samples([played({})], 0.7)} == {0.7}


def test_a_trajectory_without_turns_gives_no_sample():
    prompt = Prompt("E", 0, ())
    silent = Trajectory(prompt, 0, (), StopReason.CONTEXT_FULL, solved=False)
    assert make_samples([Group(prompt, (silent,))]) == []


def test_no_groups_give_no_samples():
    assert make_samples([]) == []


# --- scripted dialogues ----------------------------------------------------------------------------


class EndingTokenizer(ByteTokenizer):
    """Says which token ends a message, as templates do."""

    eos_ids = frozenset({END})


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5), st.sampled_from(["", "<think>"]))
def test_a_dialogue_trains_on_its_replies_and_the_end_of_each(pairs, prefill):
    dialogue = Dialogue(
        Opening(Message("system", "rules")),
        tuple(Message("user", user) for user, _ in pairs),
        tuple(reply for _, reply in pairs),
    )
    tokenizer = EndingTokenizer()
    sample = dialogue_sample(dialogue, tokenizer, prefill)
    expected = [i for _, reply in pairs for i in (*tokenizer.encode(reply), END)]
    assert sample.ids_T[sample.loss_mask_T].tolist() == expected


def test_a_dialogue_reads_as_the_same_play_would():
    env = FrozenLake(slip=0.0)
    writer = PromptWriter.of(env, Rollout(), PromptSettings(style="brief"))
    form, script = writer.form, Script(quality=1.0, groundedness=1.0)
    dialogue = script_episode(writer, script, seed=0, index=1)
    sample = dialogue_sample(dialogue, EndingTokenizer(), form.prefill)
    text = "".join(
        f"{user.role}: {user.content}assistant: {form.prefill}{reply}"
        for user, reply in zip(dialogue.users, dialogue.replies, strict=True)
    )
    system = f"system: {dialogue.opening.system.content}"
    assert EndingTokenizer().decode(sample.ids_T.tolist()) == system + text
