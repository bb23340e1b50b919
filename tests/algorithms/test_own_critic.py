"""An algorithm of a user's own may have a critic: the contract asks what it needs, never what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
import torch

from ragen2.algorithms import PPO, Algorithm, Credit, CriticSettings, Outcome
from ragen2.backends.agent import Agent, open_agent
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.config import RunConfig
from ragen2.filtering import KeepAll
from ragen2.rollout import Rollout
from ragen2.trainer.update import update
from ragen2.types import Update


@pytest.fixture
def algorithm(own_kinds: None) -> Algorithm:
    class MyCriticAlgorithm(Algorithm):
        """Return minus value, and the return as the critic's target."""

        kind: Literal["my_critic"] = "my_critic"
        critic_warmup: int = 0

        @property
        def critic(self) -> CriticSettings:
            return CriticSettings(lr=1e-2, warmup=self.critic_warmup)

        def credit(self, batch: Sequence[Sequence[Outcome]]) -> list[list[Credit]]:
            return [[self._credit(one) for one in group] for group in batch]

        def _credit(self, one: Outcome) -> Credit:
            assert one.values_T is not None
            returns_T = np.full(len(one.values_T), one.total)
            return Credit(returns_T - one.values_T, returns_T)

    found = Algorithm.from_dict({"kind": "my_critic"})
    assert isinstance(found, MyCriticAlgorithm)
    assert not isinstance(found, PPO)
    return found


def agent_for(algorithm: Algorithm) -> Agent:
    learner = LearnerSettings(lr=1e-3)
    return open_agent(ModelSettings(device="cpu"), learner, seed=0, algorithm=algorithm)


def one_step(algorithm: Algorithm, agent: Agent, group_of) -> Update:
    config = RunConfig(algorithm=algorithm, rollout=Rollout(max_tokens=8))
    groups = [group_of([0.0, 1.0, 1.0]), group_of([1.0, 1.0], seed=8)]
    done = update(config, agent.learner, KeepAll().select(groups), groups, step=1)
    assert done is not None
    return done


def weights(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten().clone() for one in network.parameters()])


def test_one_step_trains_its_critic_and_the_policy(algorithm, group_of):
    agent = agent_for(algorithm)
    critic = agent.learner._need_critic()
    policy, head = weights(agent.learner.network), weights(critic.head)
    done = one_step(algorithm, agent, group_of)
    # An untrained critic says 0: half the squared error of 0 against returns of 1 for four members of five.
    assert done.metrics["value_loss"] == pytest.approx(0.5 * 4 / 5)
    assert done.num_steps == 1
    assert not torch.equal(weights(critic.head), head)
    assert not torch.equal(weights(agent.learner.network), policy)


def test_a_second_step_sees_what_the_critic_learnt(algorithm, group_of):
    agent = agent_for(algorithm)
    first, second = (one_step(algorithm, agent, group_of).metrics for _ in range(2))
    assert second["value_loss"] < first["value_loss"]


def test_its_warm_up_trains_the_critic_alone(algorithm, group_of):
    slow = algorithm.model_copy(update={"critic_warmup": 1})
    agent = agent_for(slow)
    policy = weights(agent.learner.network)
    done = one_step(slow, agent, group_of)
    assert "value_loss" in done.metrics
    assert done.num_steps == 0
    assert torch.equal(weights(agent.learner.network), policy)
