"""The same numbers as verl 0.9.1 on 200 random masked batches, to 1e-5.

Where we differ on purpose, ``docs/algorithms.md`` says how and why; batches here stay clear of it (groups of
one, and REINFORCE++ across observations).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from parity_batches import COUNT, Batch, ask_peer, random_batch

from ragen2.algorithms import (
    GRPO,
    RLOO,
    DrGRPO,
    Outcome,
    ReinforcePlusPlus,
    clipped_surrogate,
    gae,
    kl_estimate,
    token_weights,
    value_loss,
    whiten,
)

pytestmark = pytest.mark.peers
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> list[tuple[Batch, Batch]]:
    theirs = ask_peer("verl", "verl_side.py", tmp_path_factory.mktemp("verl"))
    return [(random_batch(seed), theirs[seed]) for seed in range(COUNT)]


def groups_of(batch: Batch) -> list[list[Outcome]]:
    lengths = batch["mask"].sum(1).astype(int)
    found: dict[int, list[Outcome]] = {}
    for row, group in enumerate(batch["index"].astype(int)):
        reward = batch["rewards"][row].sum()
        found.setdefault(group, []).append(
            Outcome(np.array([lengths[row]]), np.array([float(reward)]))
        )
    return list(found.values())


def padded(credit, batch: Batch) -> np.ndarray:
    whole = np.zeros_like(batch["mask"])
    flat = [one.advantages_T for group in credit for one in group]
    for row, values in enumerate(flat):
        whole[row, : len(values)] = values
    return whole


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("grpo", GRPO()),
        ("dr_grpo", DrGRPO()),
        ("rloo", RLOO()),
        ("reinforce_plus_plus_baseline", ReinforcePlusPlus(baseline="group")),
    ],
)
def test_advantages(pairs, name, algorithm):
    for batch, theirs in pairs:
        ours = padded(algorithm.credit(groups_of(batch)), batch)
        np.testing.assert_allclose(ours, theirs[name] * batch["mask"], **CLOSE)


def test_reinforce_plus_plus(pairs):
    for batch, theirs in pairs:
        algorithm = ReinforcePlusPlus(gamma=float(batch["gamma"]))
        ours = padded(algorithm.credit(groups_of(batch)), batch)
        np.testing.assert_allclose(ours, theirs["reinforce_plus_plus"] * batch["mask"], **CLOSE)


def test_gae_skips_what_was_not_written(pairs):
    for batch, theirs in pairs:
        rows = [mask > 0 for mask in batch["holes"]]
        settings = {"gamma": float(batch["gamma"]), "lam": float(batch["lam"])}
        raw = [
            gae(rewards[own], values[own], **settings)
            for rewards, values, own in zip(
                batch["dense_rewards"], batch["values"], rows, strict=True
            )
        ]
        for row, (own, ours, white) in enumerate(zip(rows, raw, whiten(raw), strict=True)):
            returns = ours + batch["values"][row][own]
            np.testing.assert_allclose(returns, theirs["gae_returns"][row][own], **CLOSE)
            np.testing.assert_allclose(white, theirs["gae"][row][own], **CLOSE)


def weighted(losses: torch.Tensor, batch: Batch, mode: str) -> torch.Tensor:
    lengths = batch["holes"].sum(1).astype(int).tolist()
    weights = token_weights(lengths, mode, constant_length=batch["holes"].shape[1])
    mask = torch.as_tensor(batch["holes"])
    return (losses * mask * torch.as_tensor(weights)[:, None]).sum()


@pytest.mark.parametrize("dual", [3.0, 1.5])
def test_policy_loss_and_its_gradient(pairs, dual):
    for batch, theirs in pairs:
        new = torch.as_tensor(batch["new"]).requires_grad_()
        old, advantages = torch.as_tensor(batch["old"]), torch.as_tensor(batch["advantages"])
        losses = clipped_surrogate(new, old, advantages, 0.2, 0.28, dual)
        loss = weighted(losses, batch, "token_mean")
        loss.backward()
        np.testing.assert_allclose(loss.item(), theirs[f"policy_{dual}"], **CLOSE)
        np.testing.assert_allclose(new.grad.numpy(), theirs[f"policy_{dual}_grad"], **CLOSE)


@pytest.mark.parametrize(
    "mode",
    [
        "token_mean",
        "token_sum",
        "seq_mean_token_sum",
        "seq_mean_token_sum_norm",
        "seq_mean_token_mean",
    ],
)
def test_aggregation(pairs, mode):
    for batch, theirs in pairs:
        ours = weighted(torch.as_tensor(batch["advantages"]), batch, mode)
        np.testing.assert_allclose(ours.item(), theirs[f"agg_{mode.replace('_', '-')}"], **CLOSE)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs", "k1+", "k3+"])
def test_kl_and_its_gradient(pairs, kind):
    for batch, theirs in pairs:
        new = torch.as_tensor(batch["new"]).requires_grad_()
        value = kl_estimate(new, torch.as_tensor(batch["ref"]), kind)
        value.sum().backward()
        np.testing.assert_allclose(value.detach().numpy(), theirs[f"kl_{kind}"], **CLOSE)
        np.testing.assert_allclose(new.grad.numpy(), theirs[f"kl_{kind}_grad"], **CLOSE)


def test_value_loss_and_its_gradient(pairs):
    for batch, theirs in pairs:
        values = torch.as_tensor(batch["new"]).requires_grad_()
        losses = value_loss(
            values, torch.as_tensor(batch["old"]), torch.as_tensor(batch["ref"]), clip=0.5
        )
        loss = weighted(losses, batch, "token_mean")
        loss.backward()
        np.testing.assert_allclose(loss.item(), theirs["value"], **CLOSE)
        np.testing.assert_allclose(values.grad.numpy(), theirs["value_grad"], **CLOSE)
