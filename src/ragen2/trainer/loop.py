"""The loop: play, score, diagnose, filter, update, record. There is no trainer class."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ragen2.config import RunConfig
from ragen2.diagnostics import Diagnostic, Ema, Evidence, regime
from ragen2.diagnostics.metrics.collapse import judged_scope
from ragen2.diagnostics.metrics.filtering import coverage, filter_metrics
from ragen2.diagnostics.metrics.reward import reward_spread
from ragen2.policy import Learner, Sampler, Scorer
from ragen2.rollout.image_support import require_vision
from ragen2.runs.checkpoints import save_checkpoint
from ragen2.runs.record import Sink, StepRecord
from ragen2.runs.scores import ScopeScores
from ragen2.runs.store import RunDirectory
from ragen2.trainer.batch import Batch, play_batch
from ragen2.trainer.card import write_card
from ragen2.trainer.evaluate import evaluate, measure_probe
from ragen2.trainer.probe import probe_gradients
from ragen2.trainer.replay import EnvReplayer
from ragen2.trainer.state import Diet, TrainerState, write_state
from ragen2.trainer.stops import watch_stops
from ragen2.trainer.update import update
from ragen2.trainer.watchdog import answer, follow, mark_checkpoint, warning_metrics
from ragen2.types import Group, Prompt, Update

COVERAGE_STEPS = 20
"""Steps over which ``filter/coverage`` counts."""
NO_TOKENS = "no kept prompt has a sampled token"


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
    """Run until ``config.steps``, ``stop_asked``, an alarm that stops, or an early stop.

    Each leaves a checkpoint.

    Args:
        config: the run.
        policy: sampler and scorer over the learner's weights.
        learner: holds the weights, already at ``state``.
        run: where records, rollouts and checkpoints go.
        state: where to go on from; None starts before step 1.
        sinks: who else sees records.
        stop_asked: checked after every step.
    """
    require_vision(config.env, policy, config.rollout)
    if state is None:
        record, scores = _first_record(config, policy)
        run.save_scores(0, scores)
        state = TrainerState(step=0, ema=next_emas({}, record.metrics))
        _publish(record, run, sinks)
    while state.step < config.steps:
        step = state.step + 1
        before = state.watch
        record, groups, scores, state = _one_step(config, policy, learner, state, sinks)
        response = answer(config.warning, before, state.watch, step=step, run=run.path)
        is_stopping = stop_asked() or response.stops or bool(state.stopped)
        if step % config.checkpoints.rollouts_every == 0:
            run.save_rollouts(step, groups)
        run.save_scores(step, scores)
        ended = f"the run ends here: {state.stopped}" if state.stopped else ""
        _publish(_with_note(record, response.note, ended), run, sinks)
        is_due = step % config.checkpoints.every == 0 or step == config.steps
        if is_due or is_stopping or response.saves:
            watch = mark_checkpoint(config.warning, state.watch, step)
            state = state.model_copy(update={"watch": watch})
            checkpoint(config, run, learner, state)
        if is_stopping:
            break
    return state


def checkpoint(config: RunConfig, run: RunDirectory, learner: Learner, state: TrainerState) -> Path:
    """Save weights, optimiser, trainer state and the model card together."""

    def write(folder: Path) -> None:
        learner.save(folder)
        write_state(folder, state)
        write_card(folder, config, run.records())

    keep, protected = config.checkpoints.keep, state.watch.protected
    return save_checkpoint(run.path, state.step, write, keep=keep, protected=protected)


def _one_step(
    config: RunConfig, policy: Policy, learner: Learner, state: TrainerState, sinks: Sequence[Sink]
) -> tuple[StepRecord, list[Group], list[ScopeScores], TrainerState]:
    clock = _Clock(sinks)
    scores: list[ScopeScores] = []
    step = state.step + 1
    with clock("rollout"):
        batch = play_batch(config, policy, step)
        groups, selection = batch.groups, batch.selection
    due = [diagnostic for diagnostic in config.diagnostics if diagnostic.is_due(step)]
    evidence = Evidence(
        step,
        groups,
        policy,
        config.rollout.temperature,
        state.ema,
        config.seed,
        replayer=EnvReplayer(config.env),
        keep_scores=scores.append,
    )
    with clock("score"):
        metrics, absent = _measure([d for d in due if d.needs_scorer], evidence)
    with clock("diagnose"):
        plain, more_absent = _measure([d for d in due if not d.needs_scorer], evidence)
    if config.probe.every and step % config.probe.every == 0:
        with clock("probe"):
            has_reference = config.algorithm.kl_coefficient > 0.0
            found = probe_gradients(
                config, learner, groups, config.probe, has_reference=has_reference
            )
            plain |= found.metrics()
    with clock("update"):
        done = update(config, learner, selection, groups, step)
    held_out: dict[str, float] = {}
    no_probe: dict[str, str] = {}
    if step % config.evaluation.every == 0 or step == config.steps:
        with clock("evaluate"):
            held_out, no_probe = _evaluate(config, policy, state, step, scores.append)
    recent = (*state.recent, diet_of(batch))[-COVERAGE_STEPS:]
    judged = _judged(config, metrics)
    watch = follow(config.warning, state.watch, judged)
    warned = warning_metrics(config.warning, watch, measured=bool(judged))
    finite, broken = split_finite(
        plain | metrics | held_out | batch_metrics(batch, recent) | _update_metrics(done) | warned
    )
    # Measured here too: a run without the diagnostic `reward` can stop as well.
    watched = {**finite, "reward/std": reward_spread([g.rewards_G for g in groups])["std"]}
    stops, stopped = watch_stops(config.stops, state.stops, watched)
    record = StepRecord(
        step=step,
        metrics=finite,
        absent=absent | more_absent | no_probe | broken,
        regime=regime(judged, state.watch.baseline).value if judged else state.regime,
        kept=selection.kept_P.tolist(),
        scores=selection.scores_P.tolist(),
        seeds=[group.prompt.seed for group in groups],
        note="" if done is not None else f"no update: {selection.reason or NO_TOKENS}",
        seconds=clock.seconds,
    )
    ema = next_emas(state.ema, finite)
    return (
        record,
        groups,
        scores,
        TrainerState(
            step=step,
            ema=ema,
            regime=record.regime,
            watch=watch,
            stops=stops,
            stopped=stopped,
            recent=recent,
        ),
    )


def _measure(
    diagnostics: Sequence[Diagnostic], evidence: Evidence
) -> tuple[dict[str, float], dict[str, str]]:
    """Numbers, and reasons for those that could not be had."""
    metrics: dict[str, float] = {}
    absent: dict[str, str] = {}
    for diagnostic in diagnostics:
        metrics |= diagnostic.measure(evidence)
        absent |= diagnostic.missing(evidence)
    return metrics, absent


def next_emas(before: Mapping[str, Ema], metrics: Mapping[str, float]) -> dict[str, Ema]:
    """The averages after a step: those that it measured are new, the others stay."""
    ends = "/marginal_std_ema"
    measured = [name.removesuffix(ends) for name in metrics if name.endswith(ends)]
    return dict(before) | {
        family.removeprefix("collapse/"): Ema(
            metrics[f"{family}{ends}"], metrics[f"{family}{ends}_seq"]
        )
        for family in measured
    }


def _judged(config: RunConfig, metrics: dict[str, float]) -> dict[str, float]:
    """What was measured in the scope that this run is judged by, by its own names; often nothing."""
    prefix = f"collapse/{judged_scope(config.diagnostics)}/"
    return {name.removeprefix(prefix): v for name, v in metrics.items() if name.startswith(prefix)}


def split_finite(metrics: dict[str, float]) -> tuple[dict[str, float], dict[str, str]]:
    """Numbers that can be recorded, and for each that cannot be (NaN, infinite) what it was."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    broken = {n: f"not finite: {value}" for n, value in metrics.items() if n not in finite}
    return finite, broken


def diet_of(batch: Batch) -> Diet:
    """What a step offered, and what of it was taken."""
    tasks = tuple(_task_name(group.prompt) for group in batch.groups)
    return Diet(tasks=tasks, kept=tuple(batch.selection.kept_P.tolist()))


def _task_name(prompt: Prompt) -> int:
    """A number that equal prompts share, in this process and in any other."""
    shown = [(one.content, *(image.digest for image in one.images)) for one in prompt.messages]
    words = "\0".join([prompt.env, *(word for message in shown for word in message)])
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=6).digest())


def batch_metrics(batch: Batch, recent: Sequence[Diet]) -> dict[str, float]:
    """What the filter did to this batch and to the last steps, under ``filter/``."""
    found = filter_metrics(batch.selection, batch.groups)
    found["filter/rounds"] = float(batch.rounds)
    covered = coverage([diet.kept for diet in recent], [diet.tasks for diet in recent])
    return found if covered is None else found | {"filter/coverage": covered}


def _update_metrics(update: Update | None) -> dict[str, float]:
    if update is None:
        return {"update/steps": 0.0, "update/tokens": 0.0}
    return {
        **{f"update/{name}": value for name, value in update.metrics.items()},
        "update/steps": float(update.num_steps),
        "update/tokens": float(update.num_tokens),
    }


def _evaluate(
    config: RunConfig,
    policy: Policy,
    state: TrainerState,
    step: int,
    keep_scores: Callable[[ScopeScores], None],
) -> tuple[dict[str, float], dict[str, str]]:
    """Held-out success and the probe set."""
    rollout = config.rollout.model_copy(update={"temperature": config.evaluation.temperature})
    found, _ = evaluate(
        config.env, policy, rollout, tasks=config.evaluation.tasks, seed=config.seed
    )
    probed, absent = measure_probe(
        config, policy, step=step, ema=state.ema, keep_scores=keep_scores
    )
    return found | probed, absent


def _first_record(config: RunConfig, policy: Policy) -> tuple[StepRecord, list[ScopeScores]]:
    """The evaluation before training."""
    scores: list[ScopeScores] = []
    started = time.perf_counter()
    metrics, absent = _evaluate(config, policy, TrainerState(step=0), 0, scores.append)
    finite, broken = split_finite(metrics)
    seconds = {"evaluate": time.perf_counter() - started}
    record = StepRecord(step=0, metrics=finite, absent=absent | broken, seconds=seconds)
    return record, scores


def _with_note(record: StepRecord, *more: str) -> StepRecord:
    notes = [text for text in (record.note, *more) if text]
    return record.model_copy(update={"note": "; ".join(notes)})


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
