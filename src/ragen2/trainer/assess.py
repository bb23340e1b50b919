"""Assess a model without training it: held-out success and collapse metrics in one verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ragen2.diagnostics import measure, regime
from ragen2.diagnostics.collapse import PREFIX
from ragen2.rollout import Task, play
from ragen2.scoring import cross_score, first_turn_traces
from ragen2.seeding import stream
from ragen2.trainer.evaluate import evaluate

if TYPE_CHECKING:
    from ragen2.config import RunConfig
    from ragen2.trainer.loop import Policy
    from ragen2.types import Group

RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. ``regime`` is None when there was no reasoning to score."""

    metrics: dict[str, float]
    regime: str | None


def assess(config: RunConfig, policy: Policy) -> Verdict:
    """Play ``evaluation.tasks`` held-out tasks once, then one batch of groups to cross-score."""
    rollout = config.rollout.model_copy(update={"temperature": config.evaluation.temperature})
    metrics, _ = evaluate(
        config.env, policy, rollout, tasks=config.evaluation.tasks, seed=config.seed
    )
    found = measure_collapse(config, policy, _held_out_groups(config, policy))
    metrics |= {f"{PREFIX}{name}": value for name, value in found.items()}
    return Verdict(metrics, regime(found).value if found else None)


def measure_collapse(config: RunConfig, policy: Policy, groups: list[Group]) -> dict[str, float]:
    """Cross-score all first-turn reasonings of ``groups``; empty when there is nothing to compare."""
    limit = config.rollout.prompts * config.rollout.group_size
    traces = first_turn_traces(groups, limit, stream(config.seed, "assess"))
    scores = cross_score(traces, policy, config.rollout.temperature)
    if scores is None:
        return {}
    return measure(scores.logp_NP, scores.length_N, scores.owner_N, resamples=RESAMPLES)


def _held_out_groups(config: RunConfig, policy: Policy) -> list[Group]:
    """Groups of one-turn play: collapse is read off the first turn, so no more is needed."""
    env = config.env.model_copy(update={"max_turns": 1})
    size = config.rollout.group_size
    tasks = [[Task(seed, luck) for luck in range(size)] for seed in range(config.rollout.prompts)]
    return play(env, policy, tasks, config.rollout, key=(config.seed, "assess"))
