"""The update benchmark starts every update from the same weights and counts what goes through the model."""

from __future__ import annotations

import torch

from ragen2.backends.agent import open_agent
from ragen2.bench.step import ALL, FILTERED, play_workload, update_costs, workload_config


def test_a_filter_that_keeps_two_of_five_prompts_saves_the_rest_of_the_tokens():
    config = workload_config(["rollout.max_tokens=24"], prompts=5, group_size=2)
    agent = open_agent(config.model, config.learner, seed=0, algorithm=config.algorithm)
    before = {name: value.clone() for name, value in agent.learner.network.state_dict().items()}
    work = play_workload(config, agent.policy, agent.learner, share=0.4)
    found = update_costs(agent.learner, work.updates, repeats=2)
    assert work.selections[FILTERED].kept_P.sum() == 2
    assert work.selections[ALL].kept_P.all()
    assert 0 < found[FILTERED].tokens < 0.7 * found[ALL].tokens
    assert [len(cost.repeats) for cost in found.values()] == [2, 2]
    after = agent.learner.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert agent.learner.num_updates == 0


def test_a_critic_ends_as_it_began():
    overrides = ["rollout.max_tokens=16", "algorithm.kind=ppo", "algorithm.critic_lr=0.01"]
    config = workload_config(overrides, prompts=2, group_size=2)
    agent = open_agent(config.model, config.learner, seed=0, algorithm=config.algorithm)
    work = play_workload(config, agent.policy, agent.learner, share=0.5)
    update_costs(agent.learner, work.updates, repeats=1)
    assert not agent.learner.critic.head.weight.any()
    assert not agent.learner.critic.optimiser.state
