"""The flow of a real model: token-exact scores, and a link that a plan in the reasoning must show."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.diagnostics import Evidence, Flow
from ragen2.envs import FrozenLake
from ragen2.rollout import Rollout, Task, play
from ragen2.scoring.exchanges import action_traces, score_flow
from ragen2.types import Group


@pytest.fixture(scope="module")
def groups(policy) -> list[Group]:
    tasks = [[Task(seed, luck) for luck in range(4)] for seed in range(4)]
    env = FrozenLake(max_turns=1)
    return play(env, policy, tasks, Rollout(max_tokens=64), key=("flow",))


def test_an_action_scored_after_its_own_pieces_has_the_log_prob_it_was_sampled_with(policy, groups):
    rng = np.random.default_rng(0)
    traces = action_traces(groups, 1, 99, rng)
    scores = score_flow(traces, policy, 1.0, swaps=1, rng=rng)
    turns = [one.turns[0] for group in groups for one in group.trajectories]
    sampled = {
        (turn.prompt_ids_T.tobytes(), turn.completion.ids_T.tobytes()): turn.completion.logprobs_T[
            slice(*turn.action_span)
        ].sum()
        for turn in turns
        if turn.action_span != (0, 0)
    }
    for trace, own in zip(traces, scores.own_N, strict=True):
        (known,) = {
            value
            for (prompt, ids), value in sampled.items()
            if prompt == trace.prompt_ids_T.tobytes()
            and ids.startswith(trace.reasoning_ids_T.tobytes() + trace.between_ids_T.tobytes())
            and trace.action_ids_T.tobytes() in ids
        }
        assert own == pytest.approx(known, abs=1e-3)


def test_the_action_span_of_a_real_tokenizer_is_the_answer(policy, groups):
    for group in groups:
        for trajectory in group.trajectories:
            turn = trajectory.turns[0]
            text = policy.tokenizer.decode(turn.action_ids_T.tolist())
            answer = turn.completion.text.partition("<answer>")[2].partition("</answer>")[0]
            assert text == (answer if turn.reply.actions else "")


def test_actions_of_the_embedded_model_follow_the_plan_in_its_reasoning(policy, groups):
    found = Flow(max_traces=16).measure(Evidence(1, groups, policy))
    assert found["flow/first_turn/reasoning_action_swap_p_value"] <= 0.01
    assert found["flow/first_turn/reasoning_action_swap_seq"] > 1.0
    assert found["flow/first_turn/reasoning_action_blank_seq"] > 1.0
