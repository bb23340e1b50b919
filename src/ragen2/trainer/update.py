"""Kept groups -> one update: credit for every written token, then critic and policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ragen2.trainer.samples import (
    SamplesByMember,
    at_written_tokens,
    flatten,
    outcome,
    per_sample,
    samples_of,
    with_credit,
)
from ragen2.types import Update

if TYPE_CHECKING:
    from ragen2.algorithms import Algorithm, Outcome
    from ragen2.config import RunConfig
    from ragen2.policy import Learner
    from ragen2.types import FloatArray, Group, Sample, Selection


NO_TOKENS = "no kept prompt has a sampled token"
"""Why a step that kept something makes no update all the same."""


def update(
    config: RunConfig, learner: Learner, selection: Selection, groups: Sequence[Group], step: int
) -> Update | None:
    """One optimisation phase over what the filter kept; None when that holds no written token."""
    credited = credited_samples(config, learner, selection, groups)
    samples = [sample for sample in credited.samples if sample.loss_mask_T.any()]
    if not samples:
        return None
    algorithm = config.algorithm
    metrics = dict(credited.metrics)
    if algorithm.critic is not None:
        metrics |= learner.update_critic(samples, algorithm.critic)
        # Advantages are returns minus the critic's values: until it knows something of the task they
        # are noise, which the policy is spared. The critic has learned from the batch all the same.
        if step <= algorithm.critic.warmup:
            return Update(metrics, 0, 0)
    found = learner.update(samples, algorithm, scale=loss_scale(config, selection))
    return dataclasses.replace(found, metrics={**metrics, **found.metrics})


def loss_scale(config: RunConfig, selection: Selection) -> float:
    """What the whole loss is multiplied by.

    The loss is a mean over what was kept, so a step that keeps little moves the weights as far as a
    full one, on fewer prompts and hence with more noise; ``linear`` and ``sqrt`` make it smaller.
    """
    ratio = selection.kept_ratio
    return {"none": 1.0, "linear": ratio, "sqrt": float(np.sqrt(ratio))}[config.loss_scale]


def update_metrics(done: Update | None) -> dict[str, float]:
    """An update by the names of the record; without one, no steps on no tokens."""
    if done is None:
        return {"update/steps": 0.0, "update/tokens": 0.0}
    return {
        **{f"update/{name}": value for name, value in done.metrics.items()},
        "update/steps": float(done.num_steps),
        "update/tokens": float(done.num_tokens),
    }


@dataclasses.dataclass(frozen=True, slots=True)
class CreditedSamples:
    """Samples that carry advantages, and what was measured on the way."""

    samples: list[Sample]
    metrics: dict[str, float]


def credited_samples(
    config: RunConfig, learner: Learner, selection: Selection, groups: Sequence[Group]
) -> CreditedSamples:
    """Samples of the kept members of the kept groups, each token with its advantage.

    Credit is given over whole groups, so that leaving members out does not move the baseline.
    """
    kept = selection.apply(groups)
    samples = samples_of(kept, config.rollout.temperature)
    if not any(True for _ in flatten(samples)):
        return CreditedSamples([], {})
    batch = [
        [outcome(one, config.rollout.max_tokens) for one in group.trajectories] for group in kept
    ]
    samples, batch, metrics = _with_learner(config.algorithm, learner, samples, batch)
    credited: list[Sample] = []
    credits = config.algorithm.credit(batch)
    for group, credit, weight, members in zip(
        samples, credits, selection.kept_weights, selection.kept_members(kept), strict=True
    ):
        for parts, one, is_kept in zip(group, credit, members, strict=True):
            if is_kept and parts:
                credited.extend(with_credit(parts, one, weight))
    return CreditedSamples(credited, metrics)


def _with_learner(
    algorithm: Algorithm, learner: Learner, samples: SamplesByMember, batch: list[list[Outcome]]
) -> tuple[SamplesByMember, list[list[Outcome]], dict[str, float]]:
    """Add what only the learner knows: KL to the reference as a token reward, the critic's values."""
    metrics: dict[str, float] = {}
    if algorithm.needs_reference_in_reward:
        kl = learner.kl_to_reference(list(flatten(samples)), algorithm.kl_estimator)
        metrics["kl"] = float(np.concatenate(kl).mean())
        costs = _joined(samples, [-algorithm.kl_coefficient * values for values in kl])
        batch = [
            [dataclasses.replace(o, token_rewards_T=c) for o, c in zip(row, cost, strict=True)]
            for row, cost in zip(batch, costs, strict=True)
        ]
    if algorithm.critic is not None:
        values = _joined(samples, learner.values(list(flatten(samples))))
        batch = [
            [dataclasses.replace(o, values_T=v) for o, v in zip(row, value, strict=True)]
            for row, value in zip(batch, values, strict=True)
        ]
        samples = [
            [_with_values(parts, v) for parts, v in zip(group, value, strict=True)]
            for group, value in zip(samples, values, strict=True)
        ]
    return samples, batch, metrics


def _with_values(samples: Sequence[Sample], values_T: FloatArray) -> list[Sample]:
    return [
        dataclasses.replace(sample, values_T=at_written_tokens(sample, part))
        for sample, part in zip(samples, per_sample(samples, values_T), strict=True)
    ]


def _joined(samples: SamplesByMember, values: Sequence[FloatArray]) -> list[list[FloatArray]]:
    """Values of each sample's written tokens, joined to one array per trajectory."""
    rest = iter(values)
    return [
        [np.concatenate([np.empty(0), *(next(rest) for _ in parts)]) for parts in group]
        for group in samples
    ]
