"""The same loss and gradient as TRL 1.16's GRPOTrainer, from the same logits and masks, to 1e-5.

TRL adds its entropy bonus as a mean over tokens whatever the loss type; ours follows the aggregation, so only
DAPO (token mean) is compared with a bonus. Ours clamps k3 at 10, as verl does; TRL does not clamp.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from parity_batches import COUNT, Batch, ask_peer, random_batch

from ragen2.algorithms import DAPO, GRPO, DrGRPO, LossInputs
from ragen2.backends.learner.logprobs import chosen_logprobs

pytestmark = pytest.mark.peers
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
BETA, ENTROPY, LENGTH = 0.05, 0.02, 40


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> list[tuple[Batch, Batch]]:
    theirs = ask_peer("trl", "trl_side.py", tmp_path_factory.mktemp("trl"))
    return [(random_batch(seed), theirs[seed]) for seed in range(COUNT)]


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("grpo", GRPO(aggregation="seq_mean_token_mean", kl_coefficient=BETA)),
        ("dr_grpo", DrGRPO(clip_high=0.28, constant_length=LENGTH, kl_coefficient=BETA)),
        ("dapo", DAPO(kl_coefficient=BETA, entropy_coefficient=ENTROPY)),
    ],
)
def test_loss_and_its_gradient(pairs, name, algorithm):
    for batch, theirs in pairs:
        mask = torch.as_tensor(batch["holes"]) > 0
        logits = torch.as_tensor(batch["logits"]).requires_grad_()
        targets = torch.as_tensor(batch["ids"]).long()[mask]
        logp, entropy = chosen_logprobs(logits[mask], targets, lambda rows: rows, 1.0)
        given = [
            torch.as_tensor(batch[key])[mask] for key in ("near_old", "advantages", "near_ref")
        ]
        losses = algorithm.loss(LossInputs(logp, given[0], given[1], entropy, given[2])).total_N
        lengths = mask.sum(1)
        weights = torch.as_tensor(algorithm.token_weights(lengths.tolist()))
        loss = (losses * weights.repeat_interleave(lengths)).sum()
        loss.backward()
        np.testing.assert_allclose(loss.item(), theirs[name], **CLOSE)
        np.testing.assert_allclose(logits.grad.numpy(), theirs[f"{name}_grad"], **CLOSE)
