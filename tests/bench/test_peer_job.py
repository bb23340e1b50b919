"""The job that another trainer does too has our prompts, our rewards and our lengths."""

from __future__ import annotations

import pytest

from ragen2.backends.agent import open_agent
from ragen2.backends.scripted import ByteTokenizer, ScriptedPolicy
from ragen2.bench.peer_job import (
    EndlessSampler,
    our_step,
    peer_config,
    prompts_of,
    rewards_of,
)
from ragen2.policy import SamplingParams
from ragen2.trainer.batch import play_batch, training_tasks

BANDIT = ["env.kind=Bandit", "rollout.prompts=3", "rollout.group_size=2", "rollout.max_tokens=60"]


@pytest.fixture
def config():
    return peer_config(None, [*BANDIT, "env.risky_chance=0.0", "filter.mass=0.5"])


def reply(arm: str) -> list[int]:
    return ByteTokenizer().encode(f"so</think><answer>{arm}</answer>")


def test_the_job_is_one_turn_one_optimiser_step_and_nothing_else(config):
    assert config.env.max_turns == 1
    assert (config.filter.kind, config.algorithm.kind) == ("keep_all", "grpo")
    assert (config.learner.epochs, config.learner.minibatches) == (1, 1)
    assert config.algorithm.kl_coefficient == 0.0
    assert config.diagnostics == ()
    assert config.rollout.group_size == 2


def test_prompts_are_those_of_our_own_rollout(config):
    policy = ScriptedPolicy(lambda prompt, rng: "x")
    groups = play_batch(config, policy, step=2).groups
    played = {g.prompt.seed: g.trajectories[0].turns[0].prompt_ids_T.tolist() for g in groups}
    assert prompts_of(config, policy, 2) == played
    assert len(played) == 3
    assert prompts_of(config, policy, 1).keys().isdisjoint(played)


def test_replies_of_others_are_paid_by_our_environment(config):
    policy = ScriptedPolicy(lambda prompt, rng: "x")
    seeds = [group[0].seed for group in training_tasks(config, 1)]
    arms = config.env.start(seeds[0], 0).observation
    steady, risky = (
        rewards_of(config, policy, [seeds[0]], [reply(arm)])[0]
        for arm in sorted(_arms(arms), key=lambda arm: not _is_steady(arm))
    )
    assert (steady, risky) == (config.env.steady_reward, 0.0)
    mixed = rewards_of(
        config, policy, [seeds[1], seeds[0]], [ByteTokenizer().encode("?"), reply(_steady(arms))]
    )
    assert mixed == [pytest.approx(config.rollout.penalty(config.env)), config.env.steady_reward]


def _arms(observation: str) -> list[str]:
    from ragen2.envs.bandit import PAIRS

    return [arm for pair in PAIRS for arm in pair if arm in observation]


def _is_steady(arm: str) -> bool:
    from ragen2.envs.bandit import PAIRS

    return arm in {steady for steady, _ in PAIRS}


def _steady(observation: str) -> str:
    return next(arm for arm in _arms(observation) if _is_steady(arm))


def test_no_stop_string_reaches_the_sampler():
    asked = []

    class Noting(ScriptedPolicy):
        def sample(self, requests, params):
            asked.append(params)
            return super().sample(requests, params)

    EndlessSampler(Noting(lambda prompt, rng: "x")).sample([], SamplingParams(stop=("a",), top_k=3))
    assert asked == [SamplingParams(stop=(), top_k=3)]


def test_our_step_trains_on_every_written_token():
    sizes = ["rollout.prompts=2", "rollout.group_size=3", "rollout.max_tokens=7"]
    config = peer_config(None, sizes)
    agent = open_agent(config.model, config.learner, seed=0, algorithm=config.algorithm)
    agent.policy.tokenizer.eos_ids = frozenset()
    before = agent.learner.num_updates
    assert our_step(config, agent.policy, agent.learner, 1) == 2 * 3 * 7
    assert agent.learner.num_updates == before + 1
