"""Training steps timed phase by phase, and updates of one learner from equal weights, timed and counted."""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen2.backends.agent import Agent, open_agent
from ragen2.backends.learner.learner import TorchLearner
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.bench.device import machine, wait_for
from ragen2.bench.rollout import engine_of
from ragen2.config import RunConfig, dump_config, load_run
from ragen2.errors import ConfigError, RunError
from ragen2.filtering import TopK
from ragen2.policy import Policy
from ragen2.runs.store import RunDirectory
from ragen2.trainer.batch import play_batch
from ragen2.trainer.loop import train
from ragen2.trainer.update import update
from ragen2.types import Selection

if TYPE_CHECKING:
    from ragen2.policy import ChatTokenizer, Learner, Request, Sampler, SamplingParams
    from ragen2.runs.record import StepRecord
    from ragen2.types import Completion

EVALUATE, OTHER, WHOLE = "evaluate", "other", "step"


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Means over the timed steps."""

    seconds: float
    """One step with its share of an evaluation."""
    phases: Mapping[str, float]
    """Seconds per step of each phase, which add up to ``seconds``; ``other`` is records, rollouts and
    checkpoints on disk."""
    seconds_evaluation: float
    """One whole evaluation."""
    sampled_tokens: float
    """Written in the rollout of one step."""
    trained_tokens: float
    """Of one step, each counted once however many passes are made."""
    steps: tuple[float, ...]
    """Seconds of every timed step, without evaluations."""
    first_seconds: float
    """The very first step, with whatever is prepared or compiled then."""

    @property
    def shares(self) -> dict[str, float]:
        """Each phase's share of the step."""
        return {name: seconds / self.seconds for name, seconds in self.phases.items()}


def open_timed(config: RunConfig) -> Agent:
    """The model of a run file, with an engine of our own."""
    if config.model.engine in {"vllm", "server"}:
        raise ConfigError(
            f'bench step times our own engines, got model.engine = "{config.model.engine}"; leave it out'
        )
    return open_agent(
        config.model,
        config.learner,
        seed=config.seed,
        algorithm=config.algorithm,
        steps=config.steps,
    )


def measured_on(config: RunConfig, policy: HFPolicy) -> dict[str, Any]:
    """Machine, engine and the sizes of a step."""
    return {
        **machine(policy.device),
        "engine": engine_of(policy),
        "model": config.model.path,
        "env": config.env.kind,
        "prompts": config.rollout.prompts,
        "group_size": config.rollout.group_size,
        "max_tokens": config.rollout.reply_tokens(config.env),
        "max_turns": config.env.max_turns,
    }


def measure_steps(
    config: RunConfig, policy: Policy, learner: Learner, *, warmup: int, repeats: int
) -> StepCosts:
    """Train for ``warmup`` steps, then for ``repeats`` that count, into a directory that is thrown away.

    The last step evaluates, as that of every run does. An evaluation is spread over the
    ``evaluation.every`` steps between two of them, wherever those that were seen fell.
    """
    config = config.model_copy(update={"steps": warmup + repeats})
    meter = _Meter()
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run", dump_config(config))
        state = train(config, _Counted(policy, meter), learner, run, sinks=[meter])
    if state.step < config.steps:
        raise RunError(
            f"the run ended after step {state.step} of {config.steps}: "
            f"{state.stopped or state.watch.warning.reason}; time fewer steps, or switch off what ended it"
        )
    return meter.costs(warmup, config.evaluation.every)


@dataclass(slots=True)
class _Meter:
    """A sink that notes when each step ended, and counts the tokens that its rollout wrote."""

    records: list[StepRecord] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    now: str = ""
    tokens: int = 0

    def phase(self, name: str) -> None:
        """Remember what the step is doing."""
        self.now = name

    def count(self, tokens: int) -> None:
        """Tokens were written; only those of a rollout are wanted."""
        self.tokens += tokens if self.now == "rollout" else 0

    def record(self, record: StepRecord) -> None:
        """A step is over."""
        self.ended.append(time.perf_counter())
        self.records.append(record)
        self.sampled.append(self.tokens)
        self.tokens = 0

    def costs(self, warmup: int, evaluated_every: int) -> StepCosts:
        """Record 0 is the evaluation before training; the steps after ``warmup`` count."""
        first = warmup + 1
        took = [end - start for start, end in zip(self.ended, self.ended[1:], strict=False)]
        counted = self.records[first:]
        evaluations = [r.seconds[EVALUATE] for r in counted if EVALUATE in r.seconds]
        evaluation = _mean(evaluations)
        steps = [
            seconds - record.seconds.get(EVALUATE, 0.0)
            for seconds, record in zip(took[warmup:], counted, strict=True)
        ]
        phases = _phase_means(counted)
        phases[OTHER] = _mean(steps) - sum(phases.values())
        phases[EVALUATE] = evaluation / evaluated_every
        return StepCosts(
            seconds=sum(phases.values()),
            phases=phases,
            seconds_evaluation=evaluation,
            sampled_tokens=_mean(self.sampled[first:]),
            trained_tokens=_mean([record.metrics["update/tokens"] for record in counted]),
            steps=tuple(steps),
            first_seconds=took[0],
        )


class SamplerOver:
    """What a sampler over another sampler hands through."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.max_context = sampler.max_context

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's own."""
        return self.sampler.tokenizer


class _Counted(SamplerOver):
    """A policy whose written tokens a meter hears of."""

    def __init__(self, policy: Policy, meter: _Meter) -> None:
        super().__init__(policy)
        self.score = policy.score
        self._meter = meter

    def sample(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        completions = self.sampler.sample(requests, params)
        self._meter.count(sum(len(completion.ids_T) for completion in completions))
        return completions


def _phase_means(records: Sequence[StepRecord]) -> dict[str, float]:
    """Mean seconds per step of each phase; a phase that a step skipped took it no time."""
    names = [name for record in records for name in record.seconds]
    wanted = [name for name in dict.fromkeys(names) if name not in {EVALUATE, WHOLE}]
    return {n: _mean([record.seconds.get(n, 0.0) for record in records]) for n in wanted}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


ALL, FILTERED = "unfiltered", "filtered"
SELECTIONS_TIMED = 21


@dataclass(frozen=True, slots=True, eq=False)
class UpdateWorkload:
    """The same rollouts, two selections of them, and what choosing and playing took."""

    selections: Mapping[str, Selection]
    updates: Mapping[str, Callable[[], object]]
    seconds_rollout: float
    seconds_select: float

    def summary(self, costs: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """Ratios; the step that choosing is a share of holds neither scoring nor diagnosis."""
        whole, part = costs[ALL], costs[FILTERED]
        seconds_step = self.seconds_rollout + self.seconds_select + part["seconds"]
        return {
            "kept_ratio": self.selections[FILTERED].kept_ratio,
            "seconds_ratio": part["seconds"] / whole["seconds"],
            "tokens_ratio": part["tokens"] / whole["tokens"],
            "seconds_rollout": self.seconds_rollout,
            "seconds_select": self.seconds_select,
            "select_share": self.seconds_select / seconds_step,
        }


def workload_config(overrides: Sequence[str], *, prompts: int, group_size: int) -> RunConfig:
    """The embedded default with ``overrides``, one round of this many rollouts, nothing filtered."""
    sizes = (f"rollout.prompts={prompts}", f"rollout.group_size={group_size}")
    return load_run(None, [*overrides, *sizes, "rollout.resample_rounds=0", "filter.kind=keep_all"])


def play_workload(
    config: RunConfig, sampler: Sampler, learner: Learner, *, share: float
) -> UpdateWorkload:
    """Play one batch, and select all of it and the ``share`` of its prompts with most variance.

    Prompts without variance take part in the ranking, so that the share is always met.
    """
    started = time.perf_counter()
    batch = play_batch(config, sampler, step=1)
    seconds_rollout = time.perf_counter() - started
    rule = TopK(share=share, include_zero=True)
    times = []
    for _ in range(SELECTIONS_TIMED):
        started = time.perf_counter()
        chosen = rule.select(batch.groups)
        times.append(time.perf_counter() - started)
    selections = {ALL: batch.selection, FILTERED: chosen}
    # The last step: past any warm-up of a critic alone.
    updates = {
        name: partial(update, config, learner, selection, batch.groups, config.steps)
        for name, selection in selections.items()
    }
    return UpdateWorkload(selections, updates, seconds_rollout, statistics.median(times))


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """What one update costs."""

    seconds: float
    """Median of the repeats."""
    repeats: tuple[float, ...]
    tokens: int
    """Tokens that went through the policy network, padding and all."""


def update_costs(
    learner: TorchLearner, updates: Mapping[str, Callable[[], object]], *, repeats: int
) -> dict[str, UpdateCost]:
    """Run every update ``repeats`` times in turn, after one warm-up each, always from the same weights.

    In turn, so that a machine that slows down meanwhile slows all of them. The learner ends as it began.
    """
    tokens = {}
    for name, run_update in updates.items():
        before = learner.forward.tokens_run
        with _kept_as_it_is(learner):
            run_update()
        tokens[name] = learner.forward.tokens_run - before
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(repeats):
        for name, run_update in updates.items():
            with _kept_as_it_is(learner):
                seconds[name].append(_timed(learner, run_update))
    return {
        name: UpdateCost(statistics.median(took), tuple(took), tokens[name])
        for name, took in seconds.items()
    }


def _timed(learner: TorchLearner, update: Callable[[], object]) -> float:
    started = time.perf_counter()
    update()
    wait_for(learner.device)
    return time.perf_counter() - started


@contextmanager
def _kept_as_it_is(learner: TorchLearner) -> Iterator[None]:
    """Weights, optimisers and count of updates are put back afterwards, those of a critic too."""
    parts: list[Any] = [learner.network, learner.optimiser]
    if learner.critic is not None:
        parts += [learner.critic.network, learner.critic.head, learner.critic.optimiser]
    states = [copy.deepcopy(part.state_dict()) for part in parts]
    num_updates = learner.num_updates
    try:
        yield
    finally:
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        learner.num_updates = num_updates
