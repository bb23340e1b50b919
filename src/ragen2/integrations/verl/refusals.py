"""Settings of a run file that verl has no counterpart of. Nothing is dropped in silence."""

from __future__ import annotations

from ragen2.algorithms import Algorithm
from ragen2.backends.settings import ModelSettings
from ragen2.config import RunConfig
from ragen2.errors import ConfigError


def refuse_untranslatable(config: RunConfig) -> None:
    """Raise with one line for every setting that has no counterpart."""
    found = [
        *_of_algorithm(config),
        *_of_learner(config),
        *_of_model(config),
        *_of_the_rest(config),
    ]
    if found:
        raise ConfigError("\n".join(f"--engine verl: {line}" for line in found))


def _of_algorithm(config: RunConfig) -> list[str]:
    algorithm, found = config.algorithm, []
    has_other_terms = algorithm.needs_reference or algorithm.entropy_coefficient > 0.0
    if config.loss_scale != "none" and has_other_terms:
        found.append(
            f"loss_scale is {config.loss_scale!r}, which reaches verl's loss through the advantages, "
            "and KL or entropy terms would miss it; use none"
        )
    needs_workers = algorithm.critic is not None or algorithm.needs_reference_in_reward
    if config.filter.kind == "trajectory" and needs_workers:
        found.append(
            "filter.kind is 'trajectory', which leaves members out before verl's critic and reference "
            "see them, but credit would need their values or KL; use a filter of prompts"
        )
    own = type(algorithm).loss, type(algorithm).token_weights
    if own != (Algorithm.loss, Algorithm.token_weights):
        found.append(
            f"algorithm.kind is {algorithm.kind!r}, whose loss is its own, but verl's workers compute "
            "the clipped one; use an algorithm that differs in its credit"
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
            f"{per_step} here; verl moves the learning rate once per step: use constant without warm-up"
        )
    return found


def _of_model(config: RunConfig) -> list[str]:
    model, found = config.model, []
    if model.lora_rank:
        found.append(f"model.lora_rank is {model.lora_rank}; only whole models, use 0")
    if model.vision != ModelSettings().vision:
        found.append(f"model.vision is {model.vision!r}, but no images go to verl; leave it out")
    if model.engine == "server":
        found.append('model.engine is "server", but verl starts its own; use auto, which is vLLM')
    if model.engine_memory != ModelSettings().engine_memory:
        found.append(
            f"model.engine_memory is {model.engine_memory:g}, which is for vLLM in our own process; "
            "leave it out and give --engine-set actor_rollout_ref.rollout.gpu_memory_utilization=0.5"
        )
    return found


def _of_the_rest(config: RunConfig) -> list[str]:
    rollout, found = config.rollout, []
    if config.curriculum.mode != "off":
        found.append(
            f"curriculum.mode is {config.curriculum.mode!r}, but verl's tasks are fixed before it starts; "
            "use off"
        )
    if config.env.shows_images:
        found.append(
            f"{config.env.kind} shows images, and a row of verl holds text only; use our own engine, or "
            "an observation without images"
        )
    if rollout.history != "full":
        found.append(
            f"rollout.history is {rollout.history!r}, but a row of verl is one conversation that only "
            "grows; use full"
        )
    if rollout.image_window:
        found.append(
            f"rollout.image_window is {rollout.image_window}, but no images go to verl; use 0"
        )
    if rollout.resample_rounds:
        found.append(
            f"rollout.resample_rounds is {rollout.resample_rounds}, but a step plays once; use 0"
        )
    if config.evaluation.second_temperature:
        found.append(
            f"evaluation.second_temperature is {config.evaluation.second_temperature:g}, but verl validates "
            "at one temperature; use 0"
        )
    if config.probe.every:
        found.append(
            f"probe.every is {config.probe.every}, but gradients stay inside verl's workers; use 0, "
            "and ragen2 probe on a checkpoint"
        )
    return found
