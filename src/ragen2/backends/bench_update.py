"""What an update costs: several updates of one learner, each from the same weights, timed and counted."""

from __future__ import annotations

import copy
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ragen2.backends.learner import TorchLearner


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """One update's price."""

    seconds: float
    """Median of the repeats."""
    repeats: tuple[float, ...]
    tokens: int
    """Tokens that went through the policy network, padding and all."""


def update_costs(
    learner: TorchLearner, updates: Mapping[str, Callable[[], object]], *, repeats: int
) -> dict[str, UpdateCost]:
    """Run every update ``repeats`` times in turn, after one warm-up each, always from the same weights.

    In turn, so that a machine that slows down meanwhile slows all of them. The learner ends as it began.
    """
    tokens = {}
    for name, update in updates.items():
        before = learner.reader.tokens_read
        with _kept_as_it_is(learner):
            update()
        tokens[name] = learner.reader.tokens_read - before
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(repeats):
        for name, update in updates.items():
            with _kept_as_it_is(learner):
                seconds[name].append(_timed(learner, update))
    return {
        name: UpdateCost(statistics.median(took), tuple(took), tokens[name])
        for name, took in seconds.items()
    }


def _timed(learner: TorchLearner, update: Callable[[], object]) -> float:
    started = time.perf_counter()
    update()
    if learner.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


@contextmanager
def _kept_as_it_is(learner: TorchLearner) -> Iterator[None]:
    """Weights, optimisers and count of updates are put back afterwards, those of a critic too."""
    parts: list[Any] = [learner.network, learner.optimiser]
    if learner.critic is not None:
        parts += [learner.critic.network, learner.critic.head, learner.critic.optimiser]
    states = [copy.deepcopy(part.state_dict()) for part in parts]
    num_updates = learner.num_updates
    try:
        yield
    finally:
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        learner.num_updates = num_updates


def machine(learner: TorchLearner) -> dict[str, str | int]:
    """What the figures were measured on."""
    is_gpu = learner.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if is_gpu else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
