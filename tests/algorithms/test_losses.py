"""Losses against their formulas, against autograd and against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen2.algorithms import clipped_surrogate, is_clipped, kl_k3, token_weights

LOW, HIGH = 0.2, 0.28
CLIP = {"clip_low": LOW, "clip_high": HIGH}

logps = st.lists(st.floats(-8.0, 0.0), min_size=1, max_size=6)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_case(seed: int, size: int = 200):
    """Log-ratios on both sides of both clips, advantages of both signs."""
    rng = np.random.default_rng(seed)
    old = torch.tensor(rng.uniform(-5, 0, size))
    logp = old + torch.tensor(rng.normal(0, 0.4, size))
    return logp.requires_grad_(), old, torch.tensor(rng.normal(0, 1, size))


def numeric_gradient(function, at: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    with torch.no_grad():
        return (function(at + step) - function(at - step)) / (2 * step)


# --- clipped surrogate -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),
        (1.1, 2.0, -2.2),
        (2.0, 2.0, -2 * (1 + HIGH)),
        (0.5, 2.0, -1.0),
        (1.1, -2.0, 2.2),
        (2.0, -2.0, 4.0),
        (0.5, -2.0, 2 * (1 - LOW)),
        (3.0, 0.0, 0.0),
    ],
)
def test_the_surrogate_token_by_token(ratio, advantage, loss):
    found = clipped_surrogate(tensor(math.log(ratio)), tensor(0.0), tensor(advantage), **CLIP)
    assert found.item() == pytest.approx(loss)


def test_the_surrogate_is_minus_the_minimum_of_both_products():
    logp, old, advantages = random_case(0)
    ratio = torch.exp(logp - old)
    expected = -torch.min(ratio * advantages, torch.clamp(ratio, 1 - LOW, 1 + HIGH) * advantages)
    assert torch.allclose(clipped_surrogate(logp, old, advantages, **CLIP), expected)


def test_the_gradient_of_the_surrogate_is_its_slope():
    logp, old, advantages = random_case(1)
    clipped_surrogate(logp, old, advantages, **CLIP).sum().backward()
    slope = numeric_gradient(lambda x: clipped_surrogate(x, old, advantages, **CLIP), logp)
    assert torch.allclose(logp.grad, slope, atol=1e-6)


def test_on_policy_the_gradient_is_minus_the_advantage():
    logp = tensor(-1.0, -2.0, -3.0).requires_grad_()
    advantages = tensor(1.0, -0.5, 0.0)
    clipped_surrogate(logp, logp.detach(), advantages, **CLIP).sum().backward()
    assert torch.allclose(logp.grad, -advantages)


def test_a_token_is_clipped_exactly_where_the_gradient_is_cut():
    logp, old, advantages = random_case(2)
    clipped_surrogate(logp, old, advantages, **CLIP).sum().backward()
    assert torch.equal(is_clipped(logp, old, advantages, **CLIP), logp.grad == 0.0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [
        (1.3, 1.0, True),
        (1.27, 1.0, False),
        (1.3, -1.0, False),
        (0.7, -1.0, True),
        (0.81, -1.0, False),
        (0.7, 1.0, False),
        (9.0, 0.0, False),
    ],
)
def test_only_a_step_beyond_the_clip_in_the_direction_of_the_advantage_is_clipped(
    ratio, advantage, clipped
):
    found = is_clipped(tensor(math.log(ratio)), tensor(0.0), tensor(advantage), **CLIP)
    assert found.item() is clipped


def test_a_far_away_policy_gives_a_finite_loss():
    found = clipped_surrogate(tensor(0.0, -900.0), tensor(-900.0, 0.0), tensor(-1.0, -1.0), **CLIP)
    assert torch.isfinite(found).all()


# --- KL --------------------------------------------------------------------------------------------


def test_k3_is_its_formula():
    logp, reference, _ = random_case(3)
    ratio = torch.exp(reference - logp)
    assert torch.allclose(kl_k3(logp, reference), ratio - torch.log(ratio) - 1)


def test_k3_is_zero_at_the_reference_and_positive_elsewhere():
    assert kl_k3(tensor(-1.0), tensor(-1.0)).item() == 0.0
    logp, reference, _ = random_case(4)
    assert (kl_k3(logp, reference) > 0).all()


def test_the_gradient_of_k3_is_its_slope():
    logp, reference, _ = random_case(5)
    kl_k3(logp, reference).sum().backward()
    assert torch.allclose(
        logp.grad, numeric_gradient(lambda x: kl_k3(x, reference), logp), atol=1e-6
    )


def test_k3_is_an_unbiased_estimate_of_the_divergence():
    policy, reference = tensor(0.5, 0.3, 0.2), tensor(0.2, 0.5, 0.3)
    expected = (policy * (policy / reference).log()).sum()
    estimate = (policy * kl_k3(policy.log(), reference.log())).sum()
    assert estimate.item() == pytest.approx(expected.item())


@given(logps, st.floats(-900.0, 0.0))
def test_k3_is_finite_whatever_the_reference(values, reference):
    found = kl_k3(torch.tensor(values), torch.full((len(values),), reference))
    assert torch.isfinite(found).all()


# --- weights ---------------------------------------------------------------------------------------


lengths = st.lists(st.integers(1, 500), min_size=1, max_size=20)


@given(lengths, st.sampled_from(["token_mean", "seq_mean_token_mean"]))
def test_weights_of_all_tokens_sum_to_one(sizes, aggregation):
    weights = token_weights(sizes, aggregation)
    assert (weights * np.array(sizes)).sum() == pytest.approx(1.0)


def test_token_mean_weighs_every_token_alike():
    assert token_weights([1, 3, 4], "token_mean") == pytest.approx([1 / 8] * 3)


def test_sequence_mean_weighs_every_sequence_alike():
    weights = token_weights([1, 3, 4], "seq_mean_token_mean")
    assert weights == pytest.approx([1 / 3, 1 / 9, 1 / 12])
