"""A bandit small enough to enumerate: every algorithm's expected step against the gradient of reward."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from ragen2.algorithms import Algorithm, LossInputs, Outcome, kl_estimate

REWARDS = np.array([0.0, 1.0, 0.3])
LOGITS = torch.tensor([0.2, -0.4, 0.1], dtype=torch.float64)
SIZE = 3
KINDS = Algorithm.kinds()


def build(kind: str, **settings) -> Algorithm:
    plain = {"ppo": {"whiten": False}}.get(kind, {})
    return Algorithm.from_dict({"kind": kind, **plain, **settings})


def loss_of(algorithm: Algorithm, theta: torch.Tensor, arms: tuple[int, ...], ref=None):
    """The algorithm's loss of one group of one-token trajectories, sampled at ``LOGITS``."""
    group = [
        Outcome(np.array([1]), np.array([REWARDS[arm]]), values_T=np.array([0.25])) for arm in arms
    ]
    advantages = [float(one.advantages_T[0]) for one in algorithm.credit([group])[0]]
    logp = torch.log_softmax(theta, -1)
    chosen = torch.tensor(arms)
    inputs = LossInputs(
        logp_N=logp[chosen],
        old_logp_N=torch.log_softmax(LOGITS, -1)[chosen],
        advantages_N=torch.tensor(advantages, dtype=torch.float64),
        entropy_N=-(logp.exp() * logp).sum().expand(len(arms)),
        ref_logp_N=None if ref is None else torch.log_softmax(ref, -1)[chosen],
    )
    weights = torch.as_tensor(algorithm.token_weights([1] * len(arms)))
    return (weights * algorithm.loss(inputs).total_N).sum()


def expected_step(algorithm: Algorithm) -> torch.Tensor:
    """Minus the gradient of the loss, averaged over every group that could have been sampled."""
    chances = torch.softmax(LOGITS, -1)
    theta = LOGITS.clone().requires_grad_()
    total = sum(
        float(torch.prod(chances[list(arms)])) * loss_of(algorithm, theta, arms)
        for arms in itertools.product(range(3), repeat=SIZE)
    )
    return -torch.autograd.grad(total, theta)[0]


def reward_gradient() -> torch.Tensor:
    theta = LOGITS.clone().requires_grad_()
    return torch.autograd.grad((torch.softmax(theta, -1) * torch.tensor(REWARDS)).sum(), theta)[0]


def slope(function, at: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    found = torch.zeros_like(at)
    for i in range(len(at)):
        shift = torch.zeros_like(at)
        shift[i] = step
        found[i] = (function(at + shift) - function(at - shift)) / (2 * step)
    return found


def test_the_reward_gradient_is_its_finite_difference():
    rewards = torch.tensor(REWARDS)
    found = slope(lambda theta: (torch.softmax(theta, -1) * rewards).sum(), LOGITS)
    assert torch.allclose(found, reward_gradient(), atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arms", [(0, 1, 2), (1, 1, 0), (2, 0, 0)])
def test_the_losss_gradient_is_its_finite_difference(kind, arms):
    settings = {"entropy_coefficient": 0.1, "kl_coefficient": 0.2, "dual_clip": 3.0}
    algorithm = build(kind, **settings)
    reference = torch.tensor([0.5, 0.0, -0.5], dtype=torch.float64)
    away = LOGITS + torch.tensor([0.05, -0.02, 0.03], dtype=torch.float64)
    theta = away.clone().requires_grad_()
    exact = torch.autograd.grad(loss_of(algorithm, theta, arms, reference), theta)[0]
    found = slope(lambda x: loss_of(algorithm, x, arms, reference), away)
    assert torch.allclose(found, exact, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "settings", "factor"),
    [
        ("rloo", {}, 1.0),
        ("ppo", {}, 1.0),
        ("dr_grpo", {"constant_length": 1}, (SIZE - 1) / SIZE),
        ("grpo", {"scale_by_std": False}, (SIZE - 1) / SIZE),
    ],
)
def test_unscaled_methods_follow_the_reward_gradient_exactly(kind, settings, factor):
    found = expected_step(build(kind, **settings))
    assert torch.allclose(found, factor * reward_gradient(), atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_climbs(kind):
    assert float(expected_step(build(kind)) @ reward_gradient()) > 0


# --- KL: which estimator's gradient, on-policy, is that of the divergence ---------------------------


def kl_gradient() -> torch.Tensor:
    """Of KL(policy || reference) at ``LOGITS``, exactly."""
    reference = torch.tensor([0.5, 0.0, -0.5], dtype=torch.float64)

    def divergence(theta):
        logp = torch.log_softmax(theta, -1)
        return (logp.exp() * (logp - torch.log_softmax(reference, -1))).sum()

    return slope(divergence, LOGITS)


def estimator_gradient(estimator: str) -> torch.Tensor:
    """Gradient of the estimate as a loss, averaged over what the policy samples at ``LOGITS``."""
    reference = torch.log_softmax(torch.tensor([0.5, 0.0, -0.5], dtype=torch.float64), -1)
    theta = LOGITS.clone().requires_grad_()
    chances = torch.softmax(LOGITS, -1)
    loss = (chances * kl_estimate(torch.log_softmax(theta, -1), reference, estimator)).sum()
    return torch.autograd.grad(loss, theta)[0]


@pytest.mark.parametrize("estimator", ["k2", "k1+", "k3+"])
def test_k2_and_the_straight_through_forms_pull_exactly_as_the_divergence(estimator):
    assert torch.allclose(estimator_gradient(estimator), kl_gradient(), atol=1e-7)


def test_k1_as_a_loss_has_no_pull_to_the_reference():
    assert torch.allclose(estimator_gradient("k1"), torch.zeros(3, dtype=torch.float64), atol=1e-12)


def test_k3_pulls_the_same_way():
    pull, exact = estimator_gradient("k3"), kl_gradient()
    assert float(pull @ exact) / float(pull.norm() * exact.norm()) > 0.9
