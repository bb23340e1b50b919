"""The loop: play, score, diagnose, filter, update, record. There is no trainer class."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from ragen2.config import RunConfig
from ragen2.diagnostics import Collapse, Evidence, next_ema, regime
from ragen2.diagnostics.collapse import PREFIX
from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.policy import Learner, Sampler, Scorer
from ragen2.rollout import Task, play
from ragen2.runs.checkpoints import save_checkpoint
from ragen2.runs.record import StepRecord
from ragen2.runs.sinks import Sink
from ragen2.runs.store import RunDirectory
from ragen2.scoring import cross_score, first_turn_traces
from ragen2.seeding import stream
from ragen2.trainer.evaluate import evaluate
from ragen2.trainer.samples import make_samples
from ragen2.trainer.state import TrainerState, write_state
from ragen2.types import Group, ScoreMatrix, Selection, Update

SEEDS_PER_RUN = 10_000_000
"""Distance between the first tasks of two run seeds: no two runs share tasks before this many."""
NO_TOKENS = "no kept prompt has a sampled token"
NO_SCORES = "fewer than two distinct first-turn prompts had reasoning to score"


class Policy(Sampler, Scorer, Protocol):
    """What the loop samples from and scores with: the learner's own weights."""


def train(
    config: RunConfig,
    policy: Policy,
    learner: Learner,
    run: RunDirectory,
    *,
    state: TrainerState | None = None,
    sinks: Sequence[Sink] = (),
    stop_asked: Callable[[], bool] = lambda: False,
) -> TrainerState:
    """Run until ``config.steps`` or until ``stop_asked``; either way a checkpoint is left.

    Args:
        config: the run.
        policy: sampler and scorer over the learner's weights.
        learner: holds the weights, already at ``state``.
        run: where records, rollouts and checkpoints go.
        state: where to go on from; None starts before step 1.
        sinks: who else sees records.
        stop_asked: checked after every step.
    """
    if state is None:
        state = TrainerState(step=0)
        _publish(_evaluation_record(config, policy, 0), run, sinks)
    while state.step < config.steps:
        step = state.step + 1
        record, groups, state = _one_step(config, policy, learner, state, sinks)
        is_stopping = stop_asked()
        if step % config.checkpoints.rollouts_every == 0:
            run.save_rollouts(step, groups)
        _publish(record, run, sinks)
        if step % config.checkpoints.every == 0 or step == config.steps or is_stopping:
            checkpoint(config, run, learner, state)
        if is_stopping:
            break
    return state


def checkpoint(config: RunConfig, run: RunDirectory, learner: Learner, state: TrainerState) -> Path:
    """Save weights, optimiser and trainer state together."""

    def write(folder: Path) -> None:
        learner.save(folder)
        write_state(folder, state)

    return save_checkpoint(run.path, state.step, write, keep=config.checkpoints.keep)


def training_tasks(config: RunConfig, step: int) -> list[list[Task]]:
    """The tasks of a step: a function of seed and step alone, disjoint from all held-out ones."""
    prompts, size = config.rollout.prompts, config.rollout.group_size
    first = HELD_OUT_SEEDS + config.seed * SEEDS_PER_RUN + (step - 1) * prompts
    return [[Task(first + p, luck) for luck in range(size)] for p in range(prompts)]


def _one_step(
    config: RunConfig, policy: Policy, learner: Learner, state: TrainerState, sinks: Sequence[Sink]
) -> tuple[StepRecord, list[Group], TrainerState]:
    clock = _Clock(sinks)
    step = state.step + 1
    with clock("rollout"):
        key = (config.seed, "train", step)
        groups = play(config.env, policy, training_tasks(config, step), config.rollout, key=key)
    with clock("score"):
        scores, absent = _cross_scores(config, policy, groups, step)
        ema = next_ema(state.ema, scores) if scores is not None else state.ema
    with clock("diagnose"):
        evidence = Evidence(step, groups, scores, ema)
        metrics = _measure(config, evidence)
        selection = config.filter.select(groups)
    with clock("update"):
        update = _update(config, learner, selection, groups)
    if step % config.evaluation.every == 0 or step == config.steps:
        with clock("evaluate"):
            metrics |= _evaluation_metrics(config, policy)
    finite, broken = _split_finite(
        {**metrics, **_filter_metrics(selection), **_update_metrics(update)}
    )
    record = StepRecord(
        step=step,
        metrics=finite,
        absent=absent | broken,
        regime=_regime(metrics) or state.regime,
        kept=selection.kept_P.tolist(),
        scores=selection.scores_P.tolist(),
        seeds=[group.prompt.seed for group in groups],
        note="" if update is not None else f"no update: {selection.reason or NO_TOKENS}",
        seconds=clock.seconds,
    )
    return record, groups, TrainerState(step=step, ema=ema, regime=record.regime)


def _cross_scores(
    config: RunConfig, policy: Policy, groups: list[Group], step: int
) -> tuple[ScoreMatrix | None, dict[str, str]]:
    due = [d for d in config.diagnostics if d.needs_scores and d.is_due(step)]
    if not due:
        return None, {}
    limit = max((d.max_traces for d in due if isinstance(d, Collapse)), default=64)
    traces = first_turn_traces(groups, limit, stream(config.seed, "traces", step))
    scores = cross_score(traces, policy, config.rollout.temperature)
    return scores, {} if scores is not None else {PREFIX.rstrip("/"): NO_SCORES}


def _measure(config: RunConfig, evidence: Evidence) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for diagnostic in config.diagnostics:
        can = evidence.scores is not None or not diagnostic.needs_scores
        if can and diagnostic.is_due(evidence.step):
            metrics |= diagnostic.measure(evidence)
    return metrics


def _regime(metrics: dict[str, float]) -> str | None:
    plain = {name.removeprefix(PREFIX): v for name, v in metrics.items() if name.startswith(PREFIX)}
    return regime(plain).value if plain else None


def _update(
    config: RunConfig, learner: Learner, selection: Selection, groups: list[Group]
) -> Update | None:
    kept = selection.apply(groups)
    samples = make_samples(kept, config.algorithm, config.rollout.temperature)
    if not samples:
        return None
    ratio = selection.kept_ratio
    scale = {"none": 1.0, "linear": ratio, "sqrt": float(np.sqrt(ratio))}[config.loss_scale]
    return learner.update(samples, config.algorithm, scale=scale)


def _split_finite(metrics: dict[str, float]) -> tuple[dict[str, float], dict[str, str]]:
    """Numbers that can be recorded, and for each that cannot be (NaN, infinite) what it was."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    broken = {n: f"not finite: {value}" for n, value in metrics.items() if n not in finite}
    return finite, broken


def _filter_metrics(selection: Selection) -> dict[str, float]:
    return {
        "filter/kept": float(selection.kept_P.sum()),
        "filter/kept_ratio": selection.kept_ratio,
    }


def _update_metrics(update: Update | None) -> dict[str, float]:
    if update is None:
        return {"update/steps": 0.0, "update/tokens": 0.0}
    return {
        **{f"update/{name}": value for name, value in update.metrics.items()},
        "update/steps": float(update.num_steps),
        "update/tokens": float(update.num_tokens),
    }


def _evaluation_metrics(config: RunConfig, policy: Policy) -> dict[str, float]:
    rollout = config.rollout.model_copy(update={"temperature": config.evaluation.temperature})
    return evaluate(config.env, policy, rollout, tasks=config.evaluation.tasks, seed=config.seed)[0]


def _evaluation_record(config: RunConfig, policy: Policy, step: int) -> StepRecord:
    started = time.perf_counter()
    finite, broken = _split_finite(_evaluation_metrics(config, policy))
    seconds = {"evaluate": time.perf_counter() - started}
    return StepRecord(step=step, metrics=finite, absent=broken, seconds=seconds)


def _publish(record: StepRecord, run: RunDirectory, sinks: Sequence[Sink]) -> None:
    run.append(record)
    for sink in sinks:
        sink.record(record)


@dataclass(slots=True)
class _Clock:
    """Times the phases of a step and tells the sinks about them."""

    sinks: Sequence[Sink]
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        for sink in self.sinks:
            sink.phase(phase)
        started = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - started
        self.seconds["step"] = sum(v for name, v in self.seconds.items() if name != "step")
