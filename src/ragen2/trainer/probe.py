"""The gradient probe: on one batch, the true gradient of each part of the loss by reward variance.

Unlike the norms a training step logs, nothing here is averaged over minibatches: a bucket's gradient is the
gradient of the loss over all its samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ragen2.algorithms.functions import kl_estimate, token_weights
from ragen2.diagnostics.metrics.gradients import (
    BucketGradient,
    GradientReport,
    PolicyGradient,
    PromptGradient,
    cosines,
    edge_buckets,
    norm,
    rank_buckets,
)
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.filtering import KeepAll
from ragen2.policy import LossInputs, TokenLoss
from ragen2.rollout import Task, play
from ragen2.rollout.context import require_vision
from ragen2.spread import spread
from ragen2.trainer.batch import SEEDS_PER_RUN
from ragen2.trainer.update import credited_samples, samples_of
from ragen2.types import Sample

if TYPE_CHECKING:
    from ragen2.algorithms import Algorithm
    from ragen2.config import Probe, RunConfig
    from ragen2.policy import Gradient, KLEstimator, Learner, Sampler
    from ragen2.types import FloatArray, Group

FIRST_PROBE_TASK = SEEDS_PER_RUN // 2
"""Where the probe's own tasks begin among those of a run; no run trains as far as that."""
Tell = Callable[[int], None]
"""Called with how many prompts are done."""


def kl_estimator(algorithm: Algorithm) -> KLEstimator:
    """The run's own, but k3 for k1: as a loss that has no pull to the reference, only noise."""
    return "k3" if algorithm.kl_estimator == "k1" else algorithm.kl_estimator


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the loss as an objective of its own, without its coefficient."""

    algorithm: Algorithm
    name: str

    @property
    def needs_reference(self) -> bool:
        """KL alone looks at the reference."""
        return self.name == "kl"

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """The part's loss at each token."""
        if self.name == "kl":
            assert inputs.ref_logp_N is not None, "a probe of KL needs the starting model"  # noqa: S101
            estimator = kl_estimator(self.algorithm)
            return TokenLoss(kl_estimate(inputs.logp_N, inputs.ref_logp_N, estimator), {})
        if self.name == "entropy":
            return TokenLoss(-inputs.entropy_N, {})
        bare = self.algorithm.model_copy(update={"entropy_coefficient": 0.0, "kl_coefficient": 0.0})
        return TokenLoss(
            bare.loss(
                LossInputs(
                    inputs.logp_N, inputs.old_logp_N, inputs.advantages_N, inputs.entropy_N, None
                )
            ).total_N,
            {},
        )

    def token_weights(self, lengths: Sequence[int]) -> FloatArray:
        """As the algorithm weighs tokens."""
        return self.algorithm.token_weights(lengths)


@dataclass(frozen=True, slots=True)
class Score:
    """Minus the log-probability of everything written: its gradient is the score function."""

    needs_reference: bool = False

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """Minus log-prob of each token."""
        return TokenLoss(-inputs.logp_N, {})

    def token_weights(self, lengths: Sequence[int]) -> FloatArray:
        """Every token counts 1."""
        return token_weights(lengths, "token_sum")


@dataclass(frozen=True, slots=True)
class _PromptSamples:
    """The samples of one prompt under both kinds of credit."""

    trained: list[Sample]
    centred: list[Sample]


def play_probe(config: RunConfig, sampler: Sampler, step: int) -> list[Group]:
    """A batch of tasks that no run trains on; the same ones for every checkpoint of a run."""
    require_vision(config.env, sampler, config.rollout, config.prompt)
    first = HELD_OUT_SEEDS + config.seed * SEEDS_PER_RUN + FIRST_PROBE_TASK
    lucks = range(config.rollout.group_size)
    tasks = [[Task(first + p, luck) for luck in lucks] for p in range(config.rollout.prompts)]
    key = (config.seed, "gradients", step)
    return play(config.env, sampler, tasks, config.rollout, key=key, prompt=config.prompt)


def probe_gradients(
    config: RunConfig,
    learner: Learner,
    groups: Sequence[Group],
    settings: Probe,
    *,
    has_reference: bool,
    tell: Tell = lambda done: None,
) -> GradientReport:
    """Take the gradient on ``groups`` apart. Weights are not changed.

    Args:
        config: the run.
        learner: holds the weights and, for an algorithm that needs one, the critic.
        groups: one batch, played with these weights.
        settings: how prompts are put into buckets.
        has_reference: whether the learner holds the starting model, so that KL can be measured.
        tell: called after each prompt with how many are done.
    """
    variance_P = np.array([spread(group.rewards_G, "reward_variance", ddof=1) for group in groups])
    members = (
        edge_buckets(variance_P, settings.edges)
        if settings.edges
        else rank_buckets(variance_P, settings.buckets)
    )
    samples_P = _samples_by_prompt(config, learner, groups)
    parts = (
        ("task", "centred", "kl", "entropy") if has_reference else ("task", "centred", "entropy")
    )
    prompts: dict[int, PromptGradient] = {}
    buckets: list[BucketGradient] = []
    whole = PolicyGradient()
    for name, bucket in [(f"bucket_{i + 1}", bucket) for i, bucket in enumerate(members) if bucket]:
        # One prompt's gradient at a time: a vector is as large as the model.
        joined = PolicyGradient()
        for p in bucket:
            policy = _policy_gradient(config, learner, groups[p])
            prompts[p] = _prompt(groups[p], policy)
            joined.join(policy)
            tell(len(prompts))
        whole.join(joined)
        mine = [samples_P[p] for p in bucket]
        gradients = _gradients(config.algorithm, learner, mine, parts)
        buckets.append(_bucket(name, variance_P[bucket], joined, gradients))
    gradients = _gradients(config.algorithm, learner, samples_P, parts)
    buckets.append(_bucket("all", variance_P, whole, gradients))
    return GradientReport(tuple(buckets), tuple(prompts[p] for p in sorted(prompts)))


def _samples_by_prompt(
    config: RunConfig, learner: Learner, groups: Sequence[Group]
) -> list[_PromptSamples]:
    """The algorithm's credit is given over the whole batch (it may be normalised there), then split."""
    everything = KeepAll().select(groups)
    samples = iter(credited_samples(config, learner, everything, groups).samples)
    members_by_prompt = samples_of(groups, config.rollout.temperature)
    return [
        _PromptSamples(
            trained=[next(samples) for parts in members for _ in parts],
            centred=_centred_samples(group, members),
        )
        for group, members in zip(groups, members_by_prompt, strict=True)
    ]


def _centred_samples(group: Group, members: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Every written token has the trajectory's return minus the group's mean as its advantage."""
    centred_G = _centred(group)
    return [
        dataclasses.replace(
            sample, advantages_T=np.where(sample.loss_mask_T, float(advantage), 0.0)
        )
        for parts, advantage in zip(members, centred_G, strict=True)
        for sample in parts
    ]


def _centred(group: Group) -> FloatArray:
    """Returns minus their mean; exactly 0 where they differ by rounding alone."""
    rewards_G = group.rewards_G
    if spread(rewards_G, "reward_variance", ddof=0) == 0.0:
        return np.zeros(len(rewards_G))
    return np.asarray(rewards_G - rewards_G.mean())


def _policy_gradient(config: RunConfig, learner: Learner, group: Group) -> PolicyGradient:
    centred_G = _centred(group)
    members = samples_of([group], config.rollout.temperature)[0]
    if not centred_G.any():
        # Equal returns pull nowhere, whatever the score functions are.
        return PolicyGradient(count=sum(bool(parts) for parts in members))
    found = PolicyGradient()
    for parts, advantage in zip(members, centred_G, strict=True):
        if parts:
            found.add(learner.gradient(parts, Score()), -float(advantage))
    return found


def _prompt(group: Group, policy: PolicyGradient) -> PromptGradient:
    variance = spread(group.rewards_G, "reward_variance", ddof=0)
    return PromptGradient(
        seed=group.prompt.seed,
        variance=variance,
        norm=policy.mean_norm,
        bound=float(np.sqrt(variance)) * policy.score_rms,
    )


def _gradients(
    algorithm: Algorithm,
    learner: Learner,
    prompts: Sequence[_PromptSamples],
    parts: Sequence[str],
) -> dict[str, Gradient]:
    """The gradient of each part over all samples of these prompts; none where nothing was written."""
    trained = [sample for one in prompts for sample in one.trained]
    centred = [sample for one in prompts for sample in one.centred]
    if not trained:
        return {}
    return {
        part: learner.gradient(centred if part == "centred" else trained, Part(algorithm, part))
        for part in parts
    }


def _bucket(
    name: str, variances: FloatArray, policy: PolicyGradient, gradients: Mapping[str, Gradient]
) -> BucketGradient:
    return BucketGradient(
        name=name,
        prompts=len(variances),
        trajectories=policy.count,
        variance_low=float(variances.min()),
        variance_mean=float(variances.mean()),
        variance_high=float(variances.max()),
        norms={part: norm(vector) for part, vector in gradients.items()},
        cosines=cosines(gradients),
        snr=policy.snr,
    )
