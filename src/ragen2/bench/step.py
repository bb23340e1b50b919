"""Whole training steps of a run, timed phase by phase: for the benchmark of the step."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen2.backends.agent import Agent, open_agent
from ragen2.backends.sampling.hf import HFPolicy
from ragen2.bench.device import machine
from ragen2.bench.rollout import engine_of
from ragen2.config import RunConfig, dump_config
from ragen2.errors import ConfigError, RunError
from ragen2.policy import Policy
from ragen2.runs.store import RunDirectory
from ragen2.trainer.loop import train

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
        "max_tokens": config.rollout.max_tokens,
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
