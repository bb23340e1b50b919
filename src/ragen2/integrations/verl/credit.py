"""Credit for episodes that verl updates on: our own algorithms over what its workers have computed.

T: written tokens of an episode, all turns joined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from ragen2.algorithms import Credit, Outcome
from ragen2.algorithms.losses import kl_estimate
from ragen2.config import RunConfig
from ragen2.trainer.samples import outcome
from ragen2.types import FloatArray, Group, Selection, Trajectory


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What verl's workers said about the written tokens of one episode."""

    logp_T: FloatArray
    reference_T: FloatArray | None = None
    """Log-probs under the reference model; None where none is loaded."""
    values_T: FloatArray | None = None
    """The critic's value before each token; None without a critic."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Credited:
    """Credit of every member of the kept groups, and what was measured on the way."""

    members: list[list[Credit]]
    metrics: dict[str, float]


def credit(
    config: RunConfig,
    selection: Selection,
    groups: Sequence[Group],
    readings: Sequence[Sequence[Reading | None]],
) -> Credited:
    """Give credit; advantages are multiplied by what the filter and ``loss_scale`` say.

    ``readings`` are those of the kept groups' members; None for a member that the filter left out, whose
    rewards still take part in its group's comparison.
    """
    kept = selection.apply(groups)
    batch = [
        [
            _told(config, outcome(episode, config.rollout.max_tokens), reading)
            for episode, reading in zip(group.trajectories, row, strict=True)
        ]
        for group, row in zip(kept, readings, strict=True)
    ]
    found = config.algorithm.credit(batch)
    scale = loss_scale(config, selection)
    weighed = [
        [dataclasses.replace(one, advantages_T=one.advantages_T * weight * scale) for one in group]
        for group, weight in zip(found, selection.kept_weights, strict=True)
    ]
    pairs = [
        (reading, one)
        for row, members in zip(readings, found, strict=True)
        for reading, one in zip(row, members, strict=True)
        if reading is not None
    ]
    gaps = [
        np.abs(reading.logp_T - _sampled(episode))
        for group, row in zip(kept, readings, strict=True)
        for episode, reading in zip(group.trajectories, row, strict=True)
        if reading is not None
    ]
    metrics = {"sampler_mismatch": float(np.concatenate(gaps).mean())}
    return Credited(weighed, {**metrics, **_mean_kl(config, pairs), **_explained(pairs)})


def loss_scale(config: RunConfig, selection: Selection) -> float:
    """What the whole loss is multiplied by."""
    ratio = selection.kept_ratio
    return {"none": 1.0, "linear": ratio, "sqrt": float(np.sqrt(ratio))}[config.loss_scale]


def _told(config: RunConfig, one: Outcome, reading: Reading | None) -> Outcome:
    """The outcome with its KL costs and values."""
    if reading is None:
        return one
    costs_T = None
    if config.algorithm.needs_reference_in_reward:
        costs_T = -config.algorithm.kl_coefficient * _kl(config, reading)
    return dataclasses.replace(one, token_rewards_T=costs_T, values_T=reading.values_T)


def _kl(config: RunConfig, reading: Reading) -> FloatArray:
    """KL to the reference at each token."""
    if reading.reference_T is None:
        raise AssertionError("KL in the reward was asked for, and no reference answered")
    logp, reference = torch.from_numpy(reading.logp_T), torch.from_numpy(reading.reference_T)
    found: FloatArray = kl_estimate(logp, reference, config.algorithm.kl_estimator).numpy()
    return found


def _sampled(episode: Trajectory) -> FloatArray:
    """Log-probs under which the tokens were drawn."""
    return np.concatenate([turn.completion.logprobs_T for turn in episode.turns])


def _mean_kl(config: RunConfig, pairs: Sequence[tuple[Reading, Credit]]) -> dict[str, float]:
    if not config.algorithm.needs_reference_in_reward:
        return {}
    return {"kl": float(np.concatenate([_kl(config, reading) for reading, _ in pairs]).mean())}


def _explained(pairs: Sequence[tuple[Reading, Credit]]) -> dict[str, float]:
    """Share of the returns' variance that the critic's values account for; 1 is perfect."""
    said = [reading.values_T for reading, _ in pairs if reading.values_T is not None]
    asked = [one.returns_T for _, one in pairs if one.returns_T is not None]
    if not said or not asked:
        return {}
    values, returns = np.concatenate(said), np.concatenate(asked)
    spread = float(returns.var())
    if spread == 0.0:
        return {}
    return {"explained_variance": 1.0 - float((returns - values).var()) / spread}
