"""GRPO: how advantages, clipping, KL and entropy make its loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ragen2.algorithms import GRPO, LossInputs, clipped_surrogate, group_advantages, kl_k3
from ragen2.trainer.warmstart import Supervised


def inputs(*, with_reference: bool = True) -> LossInputs:
    rng = np.random.default_rng(0)
    logp, old, advantages, reference = (torch.tensor(rng.normal(-1, 0.3, 50)) for _ in range(4))
    entropy = torch.tensor(rng.uniform(0, 2, 50))
    return LossInputs(logp, old, advantages + 1, entropy, reference if with_reference else None)


def test_advantages_are_those_of_the_group(group_of):
    group = group_of([0.0, 1.0, 1.0])
    for scale in (True, False):
        expected = group_advantages(group.rewards_G, scale_by_std=scale)
        assert GRPO(scale_by_std=scale).advantages(group.rewards_G).tolist() == expected.tolist()


def test_the_loss_is_surrogate_plus_kl_minus_entropy():
    given = inputs()
    algorithm = GRPO(clip_low=0.1, clip_high=0.3, kl_coefficient=0.05, entropy_coefficient=0.02)
    surrogate = clipped_surrogate(
        given.logp_N, given.old_logp_N, given.advantages_N, clip_low=0.1, clip_high=0.3
    )
    kl = kl_k3(given.logp_N, given.ref_logp_N)
    found = algorithm.loss(given)
    assert torch.allclose(found.total_N, surrogate + 0.05 * kl - 0.02 * given.entropy_N)
    assert torch.equal(found.parts["policy_loss"], surrogate)
    assert torch.equal(found.parts["kl"], kl)
    assert set(found.parts["clip_fraction"].tolist()) <= {0.0, 1.0}


def test_without_a_reference_there_is_no_kl():
    found = GRPO(kl_coefficient=0.0).loss(inputs(with_reference=False))
    assert sorted(found.parts) == ["clip_fraction", "policy_loss"]
    assert torch.equal(found.total_N, found.parts["policy_loss"])


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_weights_follow_the_setting(aggregation):
    weights = GRPO(aggregation=aggregation).token_weights([1, 3])
    expected = {"token_mean": [0.25, 0.25], "seq_mean_token_mean": [0.5, 1 / 6]}
    assert weights == pytest.approx(expected[aggregation])


def test_supervised_loss_is_minus_log_prob_with_every_token_alike():
    given = inputs(with_reference=False)
    assert torch.equal(Supervised().loss(given).total_N, -given.logp_N)
    assert Supervised().token_weights([2, 6]).tolist() == [1 / 8, 1 / 8]
    assert not Supervised().needs_reference
