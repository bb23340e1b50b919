"""Runs in verl's own venv: what verl makes of each batch. Knows nothing of ragen2."""

import sys
import warnings
from pathlib import Path

import numpy as np
import torch

warnings.filterwarnings("ignore")

from verl.trainer.ppo import core_algos  # noqa: E402  # the filter must come first

AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
)
KLS = ("k1", "k2", "k3", "abs", "k1+", "k3+")


def work(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tensors = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in batch.items()}
    mask, holes = tensors["mask"], tensors["holes"]
    index = np.array([str(int(i)) for i in batch["index"]], dtype=object)
    rewards = tensors["rewards"]
    gamma, lam = float(batch["gamma"]), float(batch["lam"])
    out: dict[str, np.ndarray] = {}

    def keep(name: str, value: torch.Tensor) -> None:
        out[name] = value.detach().double().numpy()

    for scaled in (True, False):
        advantages, _ = core_algos.compute_grpo_outcome_advantage(
            rewards.clone(), mask, index, norm_adv_by_std_in_grpo=scaled
        )
        keep("grpo" if scaled else "dr_grpo", advantages)
    keep("rloo", core_algos.compute_rloo_outcome_advantage(rewards.clone(), mask, index)[0])
    config = type("C", (), {"gamma": gamma, "get": lambda self, k, d=None: getattr(self, k, d)})()
    keep(
        "reinforce_plus_plus",
        core_algos.compute_reinforce_plus_plus_outcome_advantage(
            rewards.clone(), mask, config=config
        )[0],
    )
    keep(
        "reinforce_plus_plus_baseline",
        core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
            rewards.clone(), mask, index
        )[0],
    )
    advantages, returns = core_algos.compute_gae_advantage_return(
        tensors["dense_rewards"].clone(), tensors["values"].clone(), holes, gamma, lam
    )
    keep("gae", advantages)
    keep("gae_returns", returns)
    for dual in (3.0, 1.5):
        new = tensors["new"].clone().requires_grad_()
        loss = core_algos.compute_policy_loss(
            tensors["old"],
            new,
            tensors["advantages"],
            holes,
            cliprange=0.2,
            cliprange_low=0.2,
            cliprange_high=0.28,
            clip_ratio_c=dual,
            loss_agg_mode="token-mean",
        )[0]
        loss.backward()
        keep(f"policy_{dual}", loss)
        keep(f"policy_{dual}_grad", new.grad)
    for mode in AGGREGATIONS:
        keep(f"agg_{mode}", core_algos.agg_loss(tensors["advantages"], holes, mode))
    for kind in KLS:
        new = tensors["new"].clone().requires_grad_()
        value = core_algos.kl_penalty(new, tensors["ref"], kind)
        value.sum().backward()
        keep(f"kl_{kind}", value)
        keep(f"kl_{kind}_grad", new.grad)
    values = tensors["new"].clone().requires_grad_()
    loss = core_algos.compute_value_loss(values, tensors["ref"], tensors["old"], holes, 0.5)[0]
    loss.backward()
    keep("value", loss)
    keep("value_grad", values.grad)
    return out


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    for seed in range(count):
        np.savez(folder / f"out_{seed}.npz", **work(dict(np.load(folder / f"in_{seed}.npz"))))
