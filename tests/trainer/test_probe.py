"""The gradient probe against gradients computed another way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ragen2.algorithms import GRPO, DrGRPO, LossInputs
from ragen2.backends.agent import open_agent
from ragen2.backends.learner.optimiser import TensorGradient
from ragen2.backends.settings import LearnerSettings, ModelSettings
from ragen2.config import Probe, RunConfig
from ragen2.diagnostics.metrics.gradients import GradientReport
from ragen2.envs import FrozenLake
from ragen2.rollout import Rollout, play
from ragen2.spread import spread
from ragen2.trainer.batch import training_tasks
from ragen2.trainer.probe import kl_estimator, play_probe, probe_gradients
from ragen2.types import (
    Completion,
    Finish,
    Group,
    Prompt,
    Reply,
    StopReason,
    Trajectory,
    Turn,
)


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return RunConfig(
        env=FrozenLake(max_turns=2),
        rollout=Rollout(prompts=4, group_size=4, max_tokens=48),
        algorithm=DrGRPO(constant_length=1, kl_coefficient=0.1, aggregation="seq_mean_token_sum"),
    )


@pytest.fixture(scope="module")
def agent(config):
    return open_agent(ModelSettings(), LearnerSettings(), seed=0, algorithm=config.algorithm)


@pytest.fixture(scope="module")
def groups(config, agent):
    return play(config.env, agent.policy, training_tasks(config, 1), config.rollout, key=(0,))


@pytest.fixture(scope="module")
def report(config, agent, groups) -> GradientReport:
    return probe_gradients(config, agent.learner, groups, Probe(buckets=2), has_reference=True)


def test_buckets_go_from_low_to_high_variance_and_all_comes_last(report, groups):
    assert [bucket.name for bucket in report.buckets] == ["bucket_1", "bucket_2", "all"]
    low, high, everything = report.buckets
    assert low.variance_high <= high.variance_low
    assert low.prompts + high.prompts == everything.prompts == len(groups)
    variances = [spread(group.rewards_G, "reward_variance", 1) for group in groups]
    assert everything.variance_mean == pytest.approx(np.mean(variances))


def test_the_task_gradient_of_all_is_the_mean_policy_gradient(report, groups):
    """With centred returns, summed tokens and on-policy samples the two are the same thing."""
    everything = report.buckets[-1]
    joined = np.sqrt(sum(prompt.norm**2 for prompt in report.prompts))
    assert everything.norms["task"] <= joined
    if sum(prompt.norm > 0 for prompt in report.prompts) == 1:
        assert everything.norms["task"] == pytest.approx(joined / len(groups), rel=1e-3)


def test_no_prompt_exceeds_its_bound(report):
    for prompt in report.prompts:
        assert prompt.norm <= prompt.bound * (1 + 1e-6)
        assert (prompt.variance == 0.0) == (prompt.norm == 0.0)


def test_kl_to_the_weights_themselves_has_no_gradient_and_entropy_has(report):
    for bucket in report.buckets:
        assert bucket.norms["kl"] == pytest.approx(0.0, abs=1e-5)
        assert bucket.norms["entropy"] > 0.0


def test_probing_changes_no_weight(config, agent, groups):
    before = [p.detach().clone() for p in agent.learner.network.parameters()]
    probe_gradients(config, agent.learner, groups[:1], Probe(), has_reference=True)
    for old, new in zip(before, agent.learner.network.parameters(), strict=True):
        assert (old == new).all()
        assert new.grad is None


def test_without_a_reference_there_is_no_kl_part(config, agent, groups):
    found = probe_gradients(config, agent.learner, groups[:1], Probe(), has_reference=False)
    assert list(found.buckets[-1].norms) == ["task", "centred", "entropy"]
    assert set(found.buckets[-1].cosines) <= {"task_entropy"}


def test_the_probes_tasks_are_the_same_at_every_step_and_no_step_trains_on_them(config, agent):
    first = play_probe(config, agent.policy, 1)
    seeds = [group.prompt.seed for group in first]
    assert [group.prompt.seed for group in play_probe(config, agent.policy, 9)] == seeds
    trained = {task.seed for step in range(1, 2000) for (task, *_) in training_tasks(config, step)}
    assert not trained & set(seeds)
    assert min(seeds) >= 100_000


def test_the_estimator_is_the_runs_own_but_for_k1():
    assert kl_estimator(GRPO(kl_estimator="k2")) == "k2"
    assert kl_estimator(GRPO(kl_estimator="k1")) == "k3"


def test_metrics_are_named_by_bucket(report):
    metrics = report.metrics()
    assert metrics["probe/all/task_norm"] == report.buckets[-1].norms["task"]
    assert metrics["probe/bucket_1/variance"] == report.buckets[0].variance_mean


# --- a policy whose gradients can be written down --------------------------------------------------


class TableLearner:
    """One table of logits for every position: the gradient of log p(a) is e_a - p."""

    def __init__(self) -> None:
        self.theta = torch.tensor([0.3, -0.2, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
        self.reference = torch.tensor([0.0, 0.1, 0.2, -0.3], dtype=torch.float64)

    @property
    def p(self) -> np.ndarray:
        return torch.softmax(self.theta.detach(), -1).numpy()

    def gradient(self, samples, objective):
        logp = torch.log_softmax(self.theta, -1)
        reference = torch.log_softmax(self.reference, -1)
        ids = torch.as_tensor(np.concatenate([s.ids_T[s.loss_mask_T] for s in samples]))
        lengths = [int(s.loss_mask_T.sum()) for s in samples]
        inputs = LossInputs(
            logp_N=logp[ids],
            old_logp_N=torch.as_tensor(
                np.concatenate([s.old_logprobs_T[s.loss_mask_T] for s in samples])
            ),
            advantages_N=torch.as_tensor(
                np.concatenate([s.advantages_T[s.loss_mask_T] for s in samples])
            ),
            entropy_N=-(logp.exp() * logp).sum().expand(len(ids)),
            ref_logp_N=reference[ids] if objective.needs_reference else None,
        )
        weights = np.repeat(objective.token_weights(lengths), lengths)
        loss = (torch.as_tensor(weights) * objective.loss(inputs).total_N).sum()
        return TensorGradient(torch.autograd.grad(loss, self.theta)[0])


def one_token(learner: TableLearner, seed: int, arms: list[int], rewards: list[float]) -> Group:
    """A group whose members each wrote one token."""
    prompt = Prompt("Table", seed, ())
    members = []
    for luck, (arm, reward) in enumerate(zip(arms, rewards, strict=True)):
        written = Completion(np.array([arm]), np.log(learner.p[[arm]]), str(arm), Finish.STOP)
        turn = Turn(
            prompt_ids_T=np.array([9]),
            completion=written,
            reply=Reply("", (str(arm),)),
            reasoning_span=(0, 0),
            observation="",
            reward=reward,
            penalty=0.0,
            executed=(str(arm),),
        )
        members.append(Trajectory(prompt, luck, (turn,), StopReason.DONE, solved=reward > 0))
    return Group(prompt, tuple(members))


def test_norms_are_exact_where_gradients_are_known():
    learner = TableLearner()
    arms = {1: [0, 1, 2, 3], 2: [1, 1, 0, 2], 3: [0, 0, 1, 1]}
    rewards = {1: [0.0, 0.0, 0.0, 0.0], 2: [1.0, 0.0, 1.0, 0.0], 3: [5.0, 0.0, 1.0, 2.0]}
    groups = [one_token(learner, seed, arms[seed], rewards[seed]) for seed in (1, 2, 3)]
    config = RunConfig(
        algorithm=DrGRPO(constant_length=1, kl_coefficient=0.5, kl_estimator="k2"),
        rollout=Rollout(prompts=3, group_size=4),
    )
    done: list[int] = []
    report = probe_gradients(
        config, learner, groups, Probe(buckets=3), has_reference=True, tell=done.append
    )
    assert done == [1, 2, 3]
    p = learner.p
    log_ratio = np.log(p) - torch.log_softmax(learner.reference, -1).numpy()
    entropy = -float((p * np.log(p)).sum())
    for bucket, seed in zip(report.buckets, (1, 2, 3), strict=False):
        scores = np.eye(4)[arms[seed]] - p
        centred = np.array(rewards[seed]) - np.mean(rewards[seed])
        task = (centred[:, None] * scores).mean(0)
        kl = (log_ratio[arms[seed]][:, None] * scores).mean(0)
        assert bucket.norms["task"] == pytest.approx(np.linalg.norm(task), abs=1e-5)
        assert bucket.norms["centred"] == pytest.approx(bucket.norms["task"], abs=1e-9)
        assert bucket.norms["kl"] == pytest.approx(np.linalg.norm(kl), abs=1e-5)
        flat = p * (np.log(p) + entropy)
        assert bucket.norms["entropy"] == pytest.approx(np.linalg.norm(flat), abs=1e-5)
        if seed > 1:
            cosine = -task @ kl / np.linalg.norm(task) / np.linalg.norm(kl)
            assert bucket.cosines["task_kl"] == pytest.approx(cosine, abs=1e-5)
        prompt = report.prompts[seed - 1]
        assert prompt.norm == pytest.approx(np.linalg.norm(task), abs=1e-5)
        size = np.sqrt((np.linalg.norm(scores, axis=1) ** 2).mean())
        assert prompt.bound == pytest.approx(np.std(rewards[seed]) * size, abs=1e-5)


def test_dividing_by_the_std_hides_the_variance_that_centred_returns_show():
    """Two prompts with the same arms, one with ten times the reward: GRPO trains on both alike."""
    learner = TableLearner()
    arms = [0, 1, 2, 3]
    groups = [
        one_token(learner, 1, arms, [0.0, 0.0, 0.1, 0.1]),
        one_token(learner, 2, arms, [0.0, 0.0, 1.0, 1.0]),
    ]
    config = RunConfig(algorithm=GRPO(), rollout=Rollout(prompts=2, group_size=4))
    low, high, _ = probe_gradients(
        config, learner, groups, Probe(buckets=2), has_reference=True
    ).buckets
    assert high.norms["task"] == pytest.approx(low.norms["task"], rel=1e-4)
    assert high.norms["centred"] == pytest.approx(10 * low.norms["centred"], rel=1e-6)
    assert high.norms["kl"] == pytest.approx(low.norms["kl"], rel=1e-6)


def test_a_prompt_without_reward_variance_is_not_differentiated_rollout_by_rollout():
    learner = TableLearner()
    asked: list[int] = []
    plain = learner.gradient

    def counted(samples, objective):
        asked.append(len(samples))
        return plain(samples, objective)

    learner.gradient = counted
    groups = [one_token(learner, 1, [0, 1], [1.0, 1.0])]
    config = RunConfig(algorithm=DrGRPO(), rollout=Rollout(prompts=1, group_size=2))
    found = probe_gradients(config, learner, groups, Probe(), has_reference=True)
    assert asked == [2] * 8, "four parts of the bucket, four of all, no single rollout"
    assert (found.prompts[0].norm, found.prompts[0].bound) == (0.0, 0.0)
    assert found.buckets[0].trajectories == 2
    assert found.buckets[0].snr is None


def test_edges_put_prompts_where_their_variance_lies_and_empty_buckets_out():
    learner = TableLearner()
    groups = [
        one_token(learner, 1, [0, 1], [0.0, 0.0]),
        one_token(learner, 2, [0, 1], [0.0, 1.0]),
    ]
    config = RunConfig(algorithm=DrGRPO(), rollout=Rollout(prompts=2, group_size=2))
    edges = Probe(edges=(0.0, 0.1, 0.4))
    found = probe_gradients(config, learner, groups, edges, has_reference=False)
    assert [(b.name, b.prompts) for b in found.buckets] == [
        ("bucket_1", 1),
        ("bucket_3", 1),
        ("all", 2),
    ]
