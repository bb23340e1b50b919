"""Credit for episodes that verl updates on: our own algorithms over what its workers have computed.

T: written tokens of an episode, all turns joined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from ragen2.algorithms import Credit, Outcome
from ragen2.algorithms.functions import kl_estimate
from ragen2.config import RunConfig
from ragen2.trainer.update import loss_scale, outcome
from ragen2.types import FloatArray, Group, Selection, Trajectory


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WorkerOutputs:
    """What verl's workers computed for the written tokens of one episode."""

    logp_T: FloatArray
    reference_T: FloatArray | None = None
    """Log-probs under the reference model; None where none is loaded."""
    values_T: FloatArray | None = None
    """The critic's value before each token; None without a critic."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class EpisodeCredits:
    """Credit of every member of the kept groups, and what was measured on the way."""

    members: list[list[Credit]]
    metrics: dict[str, float]


def credit(
    config: RunConfig,
    selection: Selection,
    groups: Sequence[Group],
    outputs: Sequence[Sequence[WorkerOutputs | None]],
) -> EpisodeCredits:
    """Give credit; advantages are multiplied by what the filter and ``loss_scale`` say.

    ``outputs`` are those of the kept groups' members; None for a member that the filter left out, whose
    rewards still take part in its group's comparison.
    """
    kept = selection.apply(groups)
    batch = [
        [
            _with_outputs(config, outcome(episode, config.rollout.reply_tokens(config.env)), output)
            for episode, output in zip(group.trajectories, row, strict=True)
        ]
        for group, row in zip(kept, outputs, strict=True)
    ]
    found = config.algorithm.credit(batch)
    # verl has no factor of the whole loss, so it goes into the advantages.
    scale = loss_scale(config, selection)
    weighed = [
        [dataclasses.replace(one, advantages_T=one.advantages_T * weight * scale) for one in group]
        for group, weight in zip(found, selection.kept_weights, strict=True)
    ]
    pairs = [
        (output, one)
        for row, members in zip(outputs, found, strict=True)
        for output, one in zip(row, members, strict=True)
        if output is not None
    ]
    gaps = [
        np.abs(output.logp_T - _sampled(episode))
        for group, row in zip(kept, outputs, strict=True)
        for episode, output in zip(group.trajectories, row, strict=True)
        if output is not None
    ]
    metrics = {"sampler_mismatch": float(np.concatenate(gaps).mean())}
    return EpisodeCredits(
        weighed, {**metrics, **_mean_kl(config, pairs), **_explained_variance(pairs)}
    )


def _with_outputs(config: RunConfig, one: Outcome, output: WorkerOutputs | None) -> Outcome:
    """The outcome with its KL costs and values."""
    if output is None:
        return one
    costs_T = None
    if config.algorithm.needs_reference_in_reward:
        costs_T = -config.algorithm.kl_coefficient * _kl(config, output)
    return dataclasses.replace(one, token_rewards_T=costs_T, values_T=output.values_T)


def _kl(config: RunConfig, output: WorkerOutputs) -> FloatArray:
    """KL to the reference at each token."""
    if output.reference_T is None:
        raise AssertionError(
            "KL in the reward was asked for, and there are no log-probs of a reference"
        )
    logp, reference = torch.from_numpy(output.logp_T), torch.from_numpy(output.reference_T)
    found: FloatArray = kl_estimate(logp, reference, config.algorithm.kl_estimator).numpy()
    return found


def _sampled(episode: Trajectory) -> FloatArray:
    """Log-probs under which the tokens were drawn."""
    return np.concatenate([turn.completion.logprobs_T for turn in episode.turns])


def _mean_kl(config: RunConfig, pairs: Sequence[tuple[WorkerOutputs, Credit]]) -> dict[str, float]:
    if not config.algorithm.needs_reference_in_reward:
        return {}
    return {"kl": float(np.concatenate([_kl(config, output) for output, _ in pairs]).mean())}


def _explained_variance(pairs: Sequence[tuple[WorkerOutputs, Credit]]) -> dict[str, float]:
    """Share of the returns' variance that the critic's values account for; 1 is perfect."""
    predicted = [output.values_T for output, _ in pairs if output.values_T is not None]
    targets = [one.returns_T for _, one in pairs if one.returns_T is not None]
    if not predicted or not targets:
        return {}
    values, returns = np.concatenate(predicted), np.concatenate(targets)
    spread = float(returns.var())
    if spread == 0.0:
        return {}
    return {"explained_variance": 1.0 - float((returns - values).var()) / spread}
