"""Kept groups -> one update: which tokens are trained on, credit for each, then critic and policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ragen2.algorithms.base import Credit, Outcome
from ragen2.errors import EnvError
from ragen2.types import FloatArray, Group, Sample, Trajectory, Turn, Update

if TYPE_CHECKING:
    from ragen2.algorithms.base import Algorithm
    from ragen2.config import RunConfig
    from ragen2.policy import Learner
    from ragen2.types import Selection

SamplesByMember = list[list[list[Sample]]]
"""Samples of each group, of each of its trajectories, of each run of contiguous turns."""
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
        [outcome(one, config.rollout.reply_tokens(config.env)) for one in group.trajectories]
        for group in kept
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


def samples_of(groups: Sequence[Group], temperature: float) -> SamplesByMember:
    """Samples of all trajectories with advantage 0.

    A trajectory whose prompts each continue the one before (full history) is one sample; where the
    history is cut, each run of contiguous turns is a sample of its own.
    """
    return [
        [
            [_sample(turns, temperature) for turns in contiguous_turns(one)]
            for one in group.trajectories
        ]
        for group in groups
    ]


def outcome(trajectory: Trajectory, limit: int) -> Outcome:
    """What a trajectory earned in each turn."""
    return Outcome(
        lengths_K=np.array([len(t.completion.ids_T) for t in trajectory.turns], dtype=np.int64),
        rewards_K=np.array([turn.reward + turn.penalty for turn in trajectory.turns]),
        limit=limit,
    )


def with_credit(samples: Sequence[Sample], credit: Credit, weight: float = 1.0) -> list[Sample]:
    """The samples of one trajectory with each written token's advantage, times ``weight``."""
    advantages = per_sample(samples, credit.advantages_T * weight)
    if credit.returns_T is None:
        return [
            dataclasses.replace(sample, advantages_T=at_written_tokens(sample, part))
            for sample, part in zip(samples, advantages, strict=True)
        ]
    returns = per_sample(samples, credit.returns_T)
    return [
        dataclasses.replace(
            sample,
            advantages_T=at_written_tokens(sample, part),
            returns_T=at_written_tokens(sample, target),
        )
        for sample, part, target in zip(samples, advantages, returns, strict=True)
    ]


def per_sample(samples: Sequence[Sample], values_T: FloatArray) -> list[FloatArray]:
    """Values of a trajectory's written tokens, cut at the bounds of its samples."""
    lengths = [int(sample.loss_mask_T.sum()) for sample in samples]
    # A trajectory without turns has no samples; np.split would make one part of nothing.
    return np.split(values_T, np.cumsum(lengths)[:-1]) if lengths else []


def at_written_tokens(sample: Sample, values_T: FloatArray) -> FloatArray:
    """Values of written tokens at their places in the sample, 0 elsewhere."""
    whole_T = np.zeros(len(sample.ids_T))
    whole_T[sample.loss_mask_T] = values_T
    return whole_T


def contiguous_turns(trajectory: Trajectory) -> list[list[Turn]]:
    """Turns in runs within which each prompt starts with all tokens of the turn before."""
    found: list[list[Turn]] = []
    for turn in trajectory.turns:
        if found and _continues(found[-1][-1], turn):
            found[-1].append(turn)
        else:
            found.append([turn])
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """All tokens of a trajectory after its first prompt, as one row of another trainer."""

    ids: list[int]
    logprobs: list[float]
    """0 where no token was sampled."""
    mask: list[int]
    """1 where a token was sampled, 0 where the environment wrote."""
    reasoning: list[tuple[int, int]]
    """Half-open ranges of the reasoning, one per turn."""


def conversation(trajectory: Trajectory) -> Conversation:
    """A trajectory with full history as one row; prompts only grow, so that its turns share one text."""
    if not trajectory.turns:
        prompt = trajectory.prompt
        raise EnvError(
            f"the first prompt of {prompt.env} seed {prompt.seed} does not fit the model's "
            "context; use a smaller task or fewer rollout.max_tokens"
        )
    row = Conversation([], [], [], [])
    start = len(trajectory.turns[0].prompt_ids_T)
    for turn in trajectory.turns:
        seen = turn.prompt_ids_T[start:].tolist()
        if seen[: len(row.ids)] != row.ids:
            raise AssertionError("with the full history, prompts only grow")
        observed, written = seen[len(row.ids) :], turn.completion.ids_T.tolist()
        first = len(row.ids) + len(observed)
        row.reasoning.append((first + turn.reasoning_span[0], first + turn.reasoning_span[1]))
        row.ids.extend(observed + written)
        row.logprobs.extend([0.0] * len(observed) + turn.completion.logprobs_T.tolist())
        row.mask.extend([0] * len(observed) + [1] * len(written))
    return row


def flatten(samples: SamplesByMember) -> Iterator[Sample]:
    """All samples in order."""
    for group in samples:
        for trajectory in group:
            yield from trajectory


def _continues(before: Turn, turn: Turn) -> bool:
    prompt, completion = before.prompt_ids_T, before.completion.ids_T
    length = len(prompt) + len(completion)
    is_longer = len(turn.prompt_ids_T) >= length
    # Image tokens are the same whatever they show, so that equal ids may be about other images.
    has_seen = turn.images[: len(before.images)] == before.images
    return (
        is_longer
        and has_seen
        and np.array_equal(turn.prompt_ids_T[:length], np.concatenate([prompt, completion]))
    )


def _sample(turns: Sequence[Turn], temperature: float) -> Sample:
    last = turns[-1]
    ids_T = np.concatenate([last.prompt_ids_T, last.completion.ids_T])
    loss_mask_T = np.zeros(len(ids_T), dtype=np.bool_)
    old_logprobs_T = np.zeros(len(ids_T))
    for turn in turns:
        written = slice(len(turn.prompt_ids_T), len(turn.prompt_ids_T) + len(turn.completion.ids_T))
        loss_mask_T[written] = True
        old_logprobs_T[written] = turn.completion.logprobs_T
    return Sample(
        ids_T,
        loss_mask_T,
        old_logprobs_T,
        np.zeros(len(ids_T)),
        temperature,
        images=last.images,
    )
