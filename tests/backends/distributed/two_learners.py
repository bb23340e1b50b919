"""Run by torchrun in each of two processes: a learner that shares its work against one that does not.

python -m torch.distributed.run --standalone --nproc-per-node 2 two_learners.py ddp|fsdp2 FOLDER
"""

# ruff: noqa: T201 - a program that prints
from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ragen2.algorithms import PPO
from ragen2.backends.agent import quiet_transformers
from ragen2.backends.distributed.parallelism import Replicas, Shards
from ragen2.backends.distributed.process_group import ProcessGroup, join_process_group
from ragen2.backends.distributed.rank import rank_of
from ragen2.backends.distributed.sharded import ShardedLearner
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.new_model import new_model, train_tokenizer
from ragen2.backends.settings import LearnerSettings, ModelSettings, NewModel
from ragen2.backends.tokenizer import TemplateTokenizer
from ragen2.types import FloatArray, Sample

SMALL = NewModel(hidden=32, layers=2, heads=4, intermediate=64, vocabulary=300, context=256)
SETTINGS = LearnerSettings(lr=1e-3, micro_tokens=120, minibatches=2)
LENGTHS = [40, 44, 41, 50, 47, 42, 49, 45, 43, 48, 46]
ALGORITHM = PPO(kl_coefficient=0.1, kl_in="loss")
NEAR = {"rtol": 1e-4, "atol": 1e-6}


def main(mode: str, folder: Path) -> None:
    torch.set_num_threads(1)
    quiet_transformers()
    processes = join_process_group(rank_of(os.environ))
    parts = small_model()
    alone, shared = learner(parts), learner(parts, mode, processes)
    check_parts(shared, mode)
    samples = random_samples(LENGTHS)
    compare_readings(alone, shared, samples)
    compare_updates(alone, shared, samples)
    if mode == "ddp":
        check_full_device(parts, processes, samples)
    check_checkpoint(parts, shared, mode, processes, folder)
    both = processes.gather("same")
    if processes.rank == 0:
        print(*both, flush=True)
    threads = num_gloo_threads()
    processes.leave()
    assert num_gloo_threads() <= threads - 2, "threads of the group of commands outlive it"


def num_gloo_threads() -> int:
    """Threads that carry out collective calls: two per group, until nobody refers to it."""
    names = (Path(task, "comm").read_text() for task in Path("/proc/self/task").iterdir())
    return sum(name == "pt_gloo_runloop\n" for name in names)


def small_model() -> tuple[Any, TemplateTokenizer]:
    hf = train_tokenizer(["go down to the goal"] * 4, SMALL.vocabulary)
    network = new_model(SMALL, hf, seed=3)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)  # a fresh model's choices are nearly uniform
    return network.eval(), TemplateTokenizer(hf, [hf.eos_token_id])


def learner(parts: Any, mode: str = "", processes: ProcessGroup | None = None) -> TorchLearner:
    words = copy.deepcopy(parts[0]), parts[1], ModelSettings(), SETTINGS
    made: TorchLearner
    if processes is None:
        made = TorchLearner(*words, seed=0)
    elif mode == "ddp":
        made = TorchLearner(*words, seed=0, parallelism=Replicas(processes))
    else:
        made = ShardedLearner(*words, seed=0, parallelism=Shards(processes))
    made.keep_reference()
    made.start_critic(1e-2)
    critic = made.critic
    assert critic is not None
    with torch.no_grad():
        critic.head.weight.copy_(torch.linspace(-1, 1, critic.head.in_features)[None])
    return made


def random_samples(lengths: list[int]) -> list[Sample]:
    rng = np.random.default_rng(0)
    made = []
    for length in lengths:
        mask = np.arange(length) >= length // 2
        made.append(
            Sample(
                ids_T=rng.integers(5, 260, length),
                loss_mask_T=mask,
                old_logprobs_T=np.where(mask, rng.normal(-5.0, 0.3, length), 0.0),
                advantages_T=np.where(mask, rng.normal(0.0, 1.0, length), 0.0),
                values_T=np.where(mask, rng.normal(0.0, 1.0, length), 0.0),
                returns_T=np.where(mask, rng.normal(0.0, 1.0, length), 0.0),
            )
        )
    return made


def check_parts(shared: TorchLearner, mode: str) -> None:
    """Under FSDP a process holds half of the weights, but for a row where a matrix has an odd number."""
    held = sum(getattr(p, "_local_tensor", p).numel() for p in shared.network.parameters())
    total = sum(p.numel() for p in shared.network.parameters())
    share = 1.0 if mode == "ddp" else 0.5
    assert abs(held / total - share) < 0.01, (held, total)


def compare_readings(alone: TorchLearner, shared: TorchLearner, samples: list[Sample]) -> None:
    """Without a change of weights; a batch of one sample leaves one process without a share."""
    for some in (samples, samples[:1]):
        found, wanted = (learner.gradient(some, ALGORITHM) for learner in (shared, alone))
        near(wanted.values.numpy(), found.values.numpy())
        near_rows(alone.values(some), shared.values(some))
        near_rows(alone.kl_to_reference(some, "k3"), shared.kl_to_reference(some, "k3"))
    assert np.abs(np.concatenate(alone.values(samples))).max() > 0.1


def compare_updates(alone: TorchLearner, shared: TorchLearner, samples: list[Sample]) -> None:
    """Three updates of policy and critic: numbers and weights, from a batch and from one sample."""
    before = flat(alone.whole)
    for some in (samples, samples[:1], samples[2:]):
        one, two = (each.update(some, ALGORITHM, scale=0.5) for each in (alone, shared))
        assert (one.num_tokens, one.num_steps) == (two.num_tokens, two.num_steps)
        assert one.metrics.keys() == two.metrics.keys()
        for name, value in one.metrics.items():
            near(np.array(value), np.array(two.metrics[name]))
        ours, theirs = (each.update_critic(some, ALGORITHM.critic) for each in (alone, shared))
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            near(np.array(value), np.array(theirs[name]))
    near(flat(alone.whole), flat(shared.whole), atol=1e-5)
    assert np.abs(flat(alone.whole) - before).max() > 1e-3
    near_rows(alone.values(samples), shared.values(samples), atol=1e-4)


def check_full_device(parts: Any, processes: ProcessGroup, samples: list[Sample]) -> None:
    """When the second process alone runs out of memory, both cut alike, and the gradient is the same."""
    full = learner(parts, "ddp", processes)
    rows = full.forward.rows

    def limited(batch: Any) -> torch.Tensor:
        if processes.rank == 1 and batch.ids.numel() > 60:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return rows(batch)

    full.forward.rows = limited  # type: ignore[method-assign]
    wanted, found = (each.gradient(samples, ALGORITHM) for each in (learner(parts), full))
    near(wanted.values.numpy(), found.values.numpy())
    assert full.forward.micro_tokens < SETTINGS.micro_tokens
    assert len(set(processes.gather(full.forward.micro_tokens))) == 1


def check_checkpoint(
    parts: Any, shared: TorchLearner, mode: str, processes: ProcessGroup, folder: Path
) -> None:
    """It goes on exactly in as many processes, and to rounding in one."""
    samples = random_samples(LENGTHS)
    shared.save(folder)
    processes.gather("saved")
    again, single = learner(parts, mode, processes), learner(parts)
    for each in (again, single):
        each.load(folder)
    for each in (shared, again, single):
        each.update(samples, ALGORITHM, scale=1.0)
        each.update_critic(samples, ALGORITHM.critic)
    assert (flat(again.whole) == flat(shared.whole)).all()
    near(flat(single.whole), flat(shared.whole), atol=1e-5)
    same = [
        (a == b).all() for a, b in zip(again.values(samples), shared.values(samples), strict=True)
    ]
    assert all(same)


def flat(network: Any) -> FloatArray:
    return torch.cat([p.detach().flatten() for p in network.parameters()]).double().numpy()


def near(one: Any, other: Any, **how: float) -> None:
    np.testing.assert_allclose(one, other, **{**NEAR, **how})


def near_rows(ones: list[FloatArray], others: list[FloatArray], **how: float) -> None:
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        near(one, other, **how)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
