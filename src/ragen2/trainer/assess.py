"""Assess a model without training it: held-out success and collapse metrics in one verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ragen2.diagnostics import Collapse, Diagnostic, Evidence, Vision, regime
from ragen2.diagnostics.metrics.collapse import PREFIX
from ragen2.policy import TextSampler
from ragen2.rollout import Task, play
from ragen2.rollout.image_support import require_vision
from ragen2.trainer.evaluate import evaluate

if TYPE_CHECKING:
    from ragen2.config import RunConfig
    from ragen2.policy import Sampler
    from ragen2.trainer.loop import Policy
    from ragen2.types import Group

RESAMPLES = 1000
NO_TOKENS = "the model gives words alone, and scores need the tokens it sampled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. ``regime`` is None when there was no reasoning to score."""

    metrics: dict[str, float]
    regime: str | None
    absent: dict[str, str] = field(default_factory=dict)
    """Scopes that could not be measured, each with the reason."""
    evaluated: list[Group] = field(default_factory=list)
    """The held-out tasks as they were played, once each."""
    groups: list[Group] = field(default_factory=list)
    """The groups whose reasoning was cross-scored."""


def assess(config: RunConfig, policy: Policy | TextSampler) -> Verdict:
    """Play ``evaluation.tasks`` held-out tasks once, then one batch of groups to cross-score.

    The groups of a model that gives words alone are played all the same: they can be audited.
    """
    require_vision(config.env, policy, config.rollout)
    rollout = config.rollout.model_copy(update={"temperature": config.evaluation.temperature})
    metrics, evaluated = evaluate(
        config.env, policy, rollout, tasks=config.evaluation.tasks, seed=config.seed
    )
    groups = held_out_groups(config, policy)
    if isinstance(policy, TextSampler):
        return Verdict(metrics, None, {PREFIX.rstrip("/"): NO_TOKENS}, evaluated, groups)
    found, absent = measure_collapse(config, policy, groups)
    plain = {name.removeprefix(PREFIX): v for name, v in found.items() if name.startswith(PREFIX)}
    judged = regime(plain).value if plain else None
    return Verdict(metrics | found, judged, absent, evaluated, groups)


def measure_collapse(
    config: RunConfig, policy: Policy, groups: list[Group]
) -> tuple[dict[str, float], dict[str, str]]:
    """Cross-score ``groups``: all first turns, and where there are more turns, samples of those too.

    Returns metrics under ``collapse/<scope>/``, with images also under ``vision/<turn>/``, and the
    reasons for what could not be measured.
    """
    every_trace = max(2, config.rollout.prompts * config.rollout.group_size)
    diagnostics: list[Diagnostic] = [Collapse(max_traces=every_trace, resamples=RESAMPLES)]
    if config.env.max_turns > 1:
        wide = Collapse(scopes=("turns", "trajectory"), resamples=RESAMPLES, interval="population")
        diagnostics.append(wide)
    diagnostics.append(Vision(resamples=RESAMPLES))
    evidence = Evidence(0, groups, policy, config.rollout.temperature, seed=config.seed)
    metrics: dict[str, float] = {}
    absent: dict[str, str] = {}
    for diagnostic in diagnostics:
        metrics |= diagnostic.measure(evidence)
        absent |= diagnostic.missing(evidence)
    return metrics, absent


def held_out_groups(config: RunConfig, policy: Sampler | TextSampler) -> list[Group]:
    """Groups of held-out tasks, as many and as large as a training step has."""
    size = config.rollout.group_size
    tasks = [[Task(seed, luck) for luck in range(size)] for seed in range(config.rollout.prompts)]
    return play(config.env, policy, tasks, config.rollout, key=(config.seed, "assess"))
