"""What a run file may say that verl has no counterpart of. Nothing is dropped in silence."""

from __future__ import annotations

from ragen2.algorithms.base import GroupAlgorithm
from ragen2.config import RunConfig
from ragen2.errors import ConfigError

ESTIMATORS = {"grpo": "grpo", "dr_grpo": "grpo", "dapo": "grpo", "rloo": "rloo"}
"""verl's advantage estimator of each algorithm that has one."""


def refuse_untranslatable(config: RunConfig) -> None:
    """Raise with one line for every setting that has no counterpart."""
    found = [*_of_algorithm(config), *_of_learner(config), *_of_the_rest(config)]
    if found:
        raise ConfigError("\n".join(f"--engine verl: {line}" for line in found))


def _of_algorithm(config: RunConfig) -> list[str]:
    algorithm = config.algorithm
    if not isinstance(algorithm, GroupAlgorithm) or algorithm.kind not in ESTIMATORS:
        known = ", ".join(ESTIMATORS)
        return [
            f"algorithm.kind is {algorithm.kind!r}, which has no translation; use one of {known}"
        ]
    found = []
    if algorithm.credit_to != "trajectory":
        found.append(
            f"algorithm.credit_to is {algorithm.credit_to!r}, but verl's group estimators give one "
            "advantage a trajectory; use trajectory"
        )
    if algorithm.overlong_buffer:
        found.append(
            f"algorithm.overlong_buffer is {algorithm.overlong_buffer}, but verl knows no punishment "
            "by turn; set it to 0"
        )
    has_other_terms = algorithm.needs_reference or algorithm.entropy_coefficient > 0.0
    if config.loss_scale != "none" and has_other_terms:
        found.append(
            f"loss_scale is {config.loss_scale!r}, which reaches verl's loss through the advantages, "
            "and KL or entropy terms would miss it; use none"
        )
    return found


def _of_learner(config: RunConfig) -> list[str]:
    learner, found = config.learner, []
    per_step = learner.epochs * learner.minibatches
    if learner.schedule == "linear":
        found.append('learner.schedule is "linear", verl has constant and cosine; use one of them')
    if per_step > 1 and (learner.warmup_steps or learner.schedule != "constant"):
        found.append(
            f"learner.warmup_steps and learner.schedule count optimiser steps, of which a step has "
            f"{per_step} here; verl moves the learning rate once a step: use constant without warm-up"
        )
    if config.model.lora_rank:
        found.append(f"model.lora_rank is {config.model.lora_rank}; only whole models, use 0")
    return found


def _of_the_rest(config: RunConfig) -> list[str]:
    rollout, found = config.rollout, []
    if rollout.history != "full":
        found.append(
            f"rollout.history is {rollout.history!r}, but a row of verl is one conversation that only "
            "grows; use full"
        )
    if rollout.resample_rounds:
        found.append(
            f"rollout.resample_rounds is {rollout.resample_rounds}, but a step plays once; use 0"
        )
    if config.filter.kind == "trajectory":
        found.append(
            "filter.kind is 'trajectory', but verl gives credit within the members that are left; "
            "use a filter of prompts"
        )
    if config.filter.noise_replays:
        found.append(
            f"filter.noise_replays is {config.filter.noise_replays}; replays are not made, use 0"
        )
    if config.probe.every:
        found.append(
            f"probe.every is {config.probe.every}, but gradients stay inside verl's workers; use 0, "
            "and ragen2 probe on a checkpoint"
        )
    return found
