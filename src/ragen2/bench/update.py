"""What an update costs: several updates of one learner, each from the same weights, timed and counted."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ragen2.backends.learner.learner import TorchLearner
from ragen2.bench.device import wait_for
from ragen2.config import RunConfig, load_run
from ragen2.filtering import TopK
from ragen2.trainer.batch import play_batch
from ragen2.trainer.update import update
from ragen2.types import Selection

if TYPE_CHECKING:
    from ragen2.policy import Learner, Sampler

ALL, FILTERED = "unfiltered", "filtered"
SELECTIONS_TIMED = 21


@dataclass(frozen=True, slots=True, eq=False)
class UpdateWorkload:
    """The same rollouts, two selections of them, and what choosing and playing took."""

    selections: Mapping[str, Selection]
    updates: Mapping[str, Callable[[], object]]
    seconds_rollout: float
    seconds_select: float

    def summary(self, costs: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """Ratios; the step that choosing is a share of holds neither scoring nor diagnosis."""
        whole, part = costs[ALL], costs[FILTERED]
        seconds_step = self.seconds_rollout + self.seconds_select + part["seconds"]
        return {
            "kept_ratio": self.selections[FILTERED].kept_ratio,
            "seconds_ratio": part["seconds"] / whole["seconds"],
            "tokens_ratio": part["tokens"] / whole["tokens"],
            "seconds_rollout": self.seconds_rollout,
            "seconds_select": self.seconds_select,
            "select_share": self.seconds_select / seconds_step,
        }


def workload_config(overrides: Sequence[str], *, prompts: int, group_size: int) -> RunConfig:
    """The embedded default with ``overrides``, one round of this many rollouts, nothing filtered."""
    sizes = (f"rollout.prompts={prompts}", f"rollout.group_size={group_size}")
    return load_run(None, [*overrides, *sizes, "rollout.resample_rounds=0", "filter.kind=keep_all"])


def play_workload(
    config: RunConfig, sampler: Sampler, learner: Learner, *, share: float
) -> UpdateWorkload:
    """Play one batch, and select all of it and the ``share`` of its prompts with most variance.

    Prompts without variance take part in the ranking, so that the share is always met.
    """
    started = time.perf_counter()
    batch = play_batch(config, sampler, step=1)
    seconds_rollout = time.perf_counter() - started
    rule = TopK(share=share, include_zero=True)
    times = []
    for _ in range(SELECTIONS_TIMED):
        started = time.perf_counter()
        chosen = rule.select(batch.groups)
        times.append(time.perf_counter() - started)
    selections = {ALL: batch.selection, FILTERED: chosen}
    # The last step: past any warm-up of a critic alone.
    updates = {
        name: partial(update, config, learner, selection, batch.groups, config.steps)
        for name, selection in selections.items()
    }
    return UpdateWorkload(selections, updates, seconds_rollout, statistics.median(times))


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """What one update costs."""

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
    for name, run_update in updates.items():
        before = learner.forward.tokens_run
        with _kept_as_it_is(learner):
            run_update()
        tokens[name] = learner.forward.tokens_run - before
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(repeats):
        for name, run_update in updates.items():
            with _kept_as_it_is(learner):
                seconds[name].append(_timed(learner, run_update))
    return {
        name: UpdateCost(statistics.median(took), tuple(took), tokens[name])
        for name, took in seconds.items()
    }


def _timed(learner: TorchLearner, update: Callable[[], object]) -> float:
    started = time.perf_counter()
    update()
    wait_for(learner.device)
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
