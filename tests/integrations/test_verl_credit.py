"""Credit inside verl: our algorithms over what its workers said; none of it needs verl itself."""

from __future__ import annotations

import numpy as np
import pytest

from ragen2.config import load_run
from ragen2.integrations.verl.credit import WorkerOutputs, credit
from ragen2.types import (
    Completion,
    Finish,
    Group,
    Message,
    Prompt,
    Reply,
    Selection,
    StopReason,
    Trajectory,
    Turn,
)


def episode(*turns: tuple[int, float]) -> Trajectory:
    """One that wrote so many tokens in each turn and was paid so much for it."""
    prompt = Prompt("Bandit", 3, (Message("user", "go"),))
    made = []
    start = 4
    for tokens, reward in turns:
        written = Completion(np.arange(tokens), np.full(tokens, -1.0), "text", Finish.STOP)
        made.append(Turn(np.arange(start), written, Reply("", ()), (0, 0), "", reward, 0.0, ()))
        start += tokens + 2
    return Trajectory(prompt, 0, tuple(made), StopReason.MAX_TURNS, solved=False)


def group(*members: Trajectory) -> Group:
    return Group(members[0].prompt, members)


def kept(*groups_kept: bool, **more) -> Selection:
    return Selection(np.array(groups_kept), np.ones(len(groups_kept)), **more)


def plain(tokens: int) -> WorkerOutputs:
    return WorkerOutputs(np.full(tokens, -1.0))


def credited(*given):
    return credit(*given).members


def test_group_credit_compares_whole_trajectories():
    config = load_run(None, ["algorithm.kind=grpo"])
    groups = [group(episode((2, 0.5), (1, 0.5)), episode((3, 0.0)))]
    (found,) = credited(config, kept(True), groups, [[plain(3), plain(3)]])
    expected = 0.5 / (np.sqrt(0.5) + 1e-6)
    assert found[0].advantages_T == pytest.approx([expected] * 3)
    assert found[1].advantages_T == pytest.approx([-expected] * 3)


def test_only_kept_groups_are_credited_each_with_its_weight():
    config = load_run(None, ["algorithm.kind=dr_grpo"])
    pair = group(episode((1, 1.0)), episode((1, 0.0)))
    outputs = [[plain(1), plain(1)]] * 2
    weights = np.array([1.0, 9.0, 3.0])
    found = credited(config, kept(True, False, True, weights_P=weights), [pair] * 3, outputs)
    firsts = [row[0].advantages_T[0] for row in found]
    assert firsts == pytest.approx([0.5, 1.5])


@pytest.mark.parametrize(("scale", "factor"), [("none", 1.0), ("linear", 0.25), ("sqrt", 0.5)])
def test_the_loss_is_scaled_by_the_kept_share(scale, factor):
    config = load_run(None, ["algorithm.kind=dr_grpo", f"loss_scale={scale}"])
    pair = group(episode((1, 1.0)), episode((1, 0.0)))
    (found,) = credited(config, kept(True, False, False, False), [pair] * 4, [[plain(1), plain(1)]])
    assert found[0].advantages_T[0] == pytest.approx(0.5 * factor)


def test_a_member_that_is_left_out_still_counts_for_the_baseline():
    config = load_run(None, ["algorithm.kind=dr_grpo", "filter.kind=trajectory"])
    trio = group(episode((1, 3.0)), episode((1, 0.0)), episode((1, 0.0)))
    members = (np.array([True, True, False]),)
    (found,) = credited(config, kept(True, members=members), [trio], [[plain(1), plain(1), None]])
    assert found[0].advantages_T == pytest.approx([2.0])


def test_turns_are_paid_at_their_last_token_and_values_are_the_critics():
    config = load_run(None, ["algorithm.kind=ppo", "algorithm.whiten=false"])
    one = episode((2, 1.0), (2, 10.0))
    values = np.array([0.5, 0.25, 0.0, 4.0])
    (found,) = credited(
        config, kept(True), [group(one)], [[WorkerOutputs(np.full(4, -1.0), values_T=values)]]
    )
    to_come = np.array([11.0, 11.0, 10.0, 10.0])
    assert found[0].returns_T == pytest.approx(to_come)
    assert found[0].advantages_T == pytest.approx(to_come - values)


def test_kl_is_taken_from_the_reward_of_its_token():
    words = ["algorithm.kind=reinforce_plus_plus", "algorithm.baseline=group"]
    kl = ["algorithm.kl_coefficient=0.1", "algorithm.kl_in=reward", "algorithm.kl_estimator=k1"]
    config = load_run(None, [*words, *kl])
    pair = group(episode((2, 1.0)), episode((2, 1.0)))
    far = WorkerOutputs(np.array([-1.0, -1.0]), np.array([-3.0, -2.0]))  # KL 2 and 1: costs 0.3
    near = WorkerOutputs(np.array([-1.0, -1.0]), np.array([-1.0, -1.0]))
    told = credit(config, kept(True), [pair], [[far, near]])
    assert told.metrics["kl"] == pytest.approx(0.75)
    (found,) = told.members
    # Equal rewards: what is left is -0.15 and +0.15 on two tokens each, whitened over all four.
    unit = 0.15 / np.sqrt(0.15**2 * 4 / 3)
    assert found[0].advantages_T == pytest.approx([-unit] * 2)
    assert found[1].advantages_T == pytest.approx([unit] * 2)


def test_what_the_critic_explains_is_measured_on_written_tokens():
    config = load_run(None, ["algorithm.kind=ppo", "algorithm.whiten=false"])
    pair = group(episode((1, 0.0)), episode((1, 2.0)))
    outputs = [[WorkerOutputs(np.zeros(1), values_T=np.array([value])) for value in (0.0, 1.0)]]
    # Returns 0 and 2 have variance 1; what is left of them, 0 and 1, has a quarter.
    found = credit(config, kept(True), [pair], outputs)
    assert found.metrics["explained_variance"] == pytest.approx(0.75)


def test_a_sampler_that_disagrees_shows():
    config = load_run(None, ["algorithm.kind=grpo"])
    pair = group(episode((1, 0.0), (2, 1.0)), episode((1, 0.0)))  # all drawn at -1
    outputs = [[WorkerOutputs(np.array([-1.0, -1.5, -0.7])), WorkerOutputs(np.array([-1.0]))]]
    found = credit(config, kept(True), [pair], outputs)
    assert found.metrics == {"sampler_mismatch": pytest.approx((0.5 + 0.3) / 4)}
