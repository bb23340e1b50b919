"""Evaluation without training: held-out success, the probe set, and a whole assessment of a model.

The probe set is the same held-out prompts at every evaluation, so that steps can be compared: training
prompts change every step, and with them how hard they are to tell apart. A change of ``collapse/probe/`` is a
change of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ragen2.diagnostics import (
    Collapse,
    Diagnostic,
    Evidence,
    Measured,
    Vision,
    measure_all,
    regime,
    surface,
)
from ragen2.diagnostics.metrics.collapse import PREFIX, PROBE, check_scope
from ragen2.diagnostics.statistics.resampling import wilson_of_trials
from ragen2.envs.base import HELD_OUT_SEEDS, Env
from ragen2.policy import Policy, Sampler, Scorer, TextSampler
from ragen2.progress import phase
from ragen2.rollout import Rollout, Task, play
from ragen2.rollout.context import require_vision
from ragen2.rollout.play import DEFAULT_PROMPT, refuse_broken
from ragen2.rollout.prompts import PromptSettings
from ragen2.scoring import first_turn_traces
from ragen2.seeding import stream
from ragen2.types import Group

if TYPE_CHECKING:
    from ragen2.config import RunConfig

RESAMPLES = 1000
SUCCESS, SECOND = "eval/success", "eval/second_success"
"""At the first temperature, and at the second where there is one."""
WIDE_TRACES = 64
"""Traces of later turns, and of whole trajectories, that are scored at most."""
NO_TOKENS = "the model gives text alone, and scores need the tokens it sampled"
NOT_ASKED = "it was not asked for"
COLLAPSE = PREFIX.partition("/")[0]

EvidenceOf = Callable[[Sequence[Group], Scorer | None], Evidence]
"""Makes evidence of groups, with the step, averages and seed of a run."""


def evaluate_run(config: RunConfig, policy: Policy, evidence_of: EvidenceOf) -> Measured:
    """Held-out success and, where it is on, the probe set: what a run measures now and then."""
    found = Measured(_evaluate_at(config, policy, config.evaluation.temperature)[0])
    if config.evaluation.second_temperature:
        again, _ = _evaluate_at(config, policy, config.evaluation.second_temperature)
        found.add({name.replace(SUCCESS, SECOND): again[name] for name in again if SUCCESS in name})
    if config.evaluation.probe_prompts:
        groups = play_probe_set(config, policy)
        found.add(measure_probe(config, evidence_of(groups, policy)))
    return found


def _evaluate_at(
    config: RunConfig, policy: Policy | TextSampler, temperature: float
) -> tuple[dict[str, float], list[Group]]:
    """The run's held-out tasks, sampled at a temperature."""
    return evaluate(
        config.env,
        policy,
        config.rollout.model_copy(update={"temperature": temperature}),
        tasks=config.evaluation.tasks,
        first=config.evaluation.first_task(config.seed),
        seed=config.seed,
        prompt=config.prompt,
    )


def evaluate(
    env: Env,
    sampler: Sampler | TextSampler,
    rollout: Rollout,
    *,
    tasks: int,
    first: int = 0,
    seed: int = 0,
    prompt: PromptSettings = DEFAULT_PROMPT,
) -> tuple[dict[str, float], list[Group]]:
    """Play ``tasks`` held-out tasks from ``first`` on once each; metrics under ``eval/``, and the groups."""
    if first + tasks > HELD_OUT_SEEDS:
        raise ValueError(f"there are {HELD_OUT_SEEDS} held-out tasks, {tasks} were asked for")
    groups = play(
        env,
        sampler,
        [[Task(task, 0)] for task in range(first, first + tasks)],
        rollout,
        key=(seed, "evaluate"),
        prompt=prompt,
    )
    refuse_broken(groups)
    return evaluation_metrics(groups), groups


def evaluation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Success with its 95% interval, and the means of the rest."""
    found = surface(groups)
    rewards = np.concatenate([group.rewards_G for group in groups])
    count = len(rewards)
    low, high = wilson_of_trials(found["success"], count)
    return {
        SUCCESS: found["success"],
        f"{SUCCESS}_low": low,
        f"{SUCCESS}_high": high,
        "eval/reward": float(rewards.mean()),
        "eval/turns": found["turns"],
        **(
            {"eval/format_validity": found["format_validity"]} if "format_validity" in found else {}
        ),
    }


def measure_probe(config: RunConfig, evidence: Evidence) -> Measured:
    """Metrics under ``collapse/probe/``, or the reason why there are none."""
    traces = first_turn_traces(evidence.groups, None, stream(config.seed, PROBE))
    return Collapse().measure_scope(check_scope(PROBE, traces), evidence)


def play_probe_set(config: RunConfig, policy: Policy) -> list[Group]:
    """One-turn replies to the first held-out tasks, sampled as in training with the same luck each time."""
    env = config.env.model_copy(update={"max_turns": 1})
    tasks = [
        [Task(seed, luck) for luck in range(config.evaluation.probe_traces)]
        for seed in range(config.evaluation.probe_prompts)
    ]
    key = (config.seed, PROBE)
    return play(env, policy, tasks, config.rollout, key=key, prompt=config.prompt)


@dataclass(frozen=True, slots=True)
class Assessment:
    """What was found. ``regime`` is None when there was no reasoning to score."""

    metrics: dict[str, float]
    regime: str | None
    absent: dict[str, str] = field(default_factory=dict)
    """Scopes that could not be measured, each with the reason."""
    evaluated: list[Group] = field(default_factory=list)
    """The held-out tasks as they were played, once each."""
    groups: list[Group] = field(default_factory=list)
    """The groups whose reasoning was cross-scored."""


def assess(
    config: RunConfig, policy: Policy | TextSampler, *, scores_reasoning: bool = True
) -> Assessment:
    """Play ``evaluation.tasks`` held-out tasks once, then one batch of groups to cross-score.

    The groups are no more than ``evaluation.tasks`` episodes together, so that few tasks are quick. Those of
    a model that gives text alone are played all the same: they can be audited.
    """
    require_vision(config.env, policy, config.rollout, config.prompt)
    phases = 1 if not scores_reasoning else 2 if isinstance(policy, TextSampler) else 3
    with phase(f"1 of {phases}, held-out tasks"):
        metrics, evaluated = _evaluate_at(config, policy, config.evaluation.temperature)
    if not scores_reasoning:
        return Assessment(metrics, None, {COLLAPSE: NOT_ASKED}, evaluated)
    with phase(f"2 of {phases}, groups to compare"):
        groups = held_out_groups(config, policy)
    if isinstance(policy, TextSampler):
        absent = {PREFIX.rstrip("/"): NO_TOKENS}
        return Assessment(metrics, None, absent, evaluated, groups)
    with phase(f"3 of {phases}, scoring"):
        found = measure_collapse(config, policy, groups)
    plain = {name.removeprefix(PREFIX): v for name, v in found.items() if name.startswith(PREFIX)}
    judged = regime(plain).value if plain else None
    return Assessment(metrics | found, judged, found.absent, evaluated, groups)


def measure_collapse(config: RunConfig, policy: Policy, groups: list[Group]) -> Measured:
    """Cross-score ``groups``: all first turns, and where there are more turns, samples of those too.

    No scope has more traces than there are trajectories. Metrics are under ``collapse/<scope>/``, with
    images also under ``vision/<turn>/``.
    """
    every_trace = max(2, sum(len(group.trajectories) for group in groups))
    diagnostics: list[Diagnostic] = [Collapse(max_traces=every_trace, resamples=RESAMPLES)]
    if config.env.max_turns > 1:
        wide = Collapse(
            scopes=("turns", "trajectory"),
            max_traces=min(every_trace, WIDE_TRACES),
            resamples=RESAMPLES,
            interval="population",
        )
        diagnostics.append(wide)
    diagnostics.append(Vision(resamples=RESAMPLES))
    evidence = Evidence(0, groups, policy, config.rollout.temperature, seed=config.seed)
    return measure_all(diagnostics, evidence)


def held_out_groups(config: RunConfig, policy: Sampler | TextSampler) -> list[Group]:
    """Groups of held-out tasks, as many and as large as a training step has, but no more episodes than tasks.

    Of few episodes, more prompts are worth more than more replies to each: there is more to tell apart.
    """
    prompts = min(config.rollout.prompts, config.evaluation.tasks)
    size = min(config.rollout.group_size, config.evaluation.tasks // prompts)
    tasks = [[Task(seed, luck) for luck in range(size)] for seed in range(prompts)]
    key = (config.seed, "assess")
    return play(config.env, policy, tasks, config.rollout, key=key, prompt=config.prompt)
