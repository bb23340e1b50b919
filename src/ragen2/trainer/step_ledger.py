"""The step ledger: what every training loop records of a step, be it ours, TRL's or verl's.

A loop opens a step, passes in what was played, adds what it did, and closes the step. The ledger diagnoses,
judges the regime, keeps moving averages, follows the early warning and the early stops, writes the record.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from ragen2.config import RunConfig, Stops, WarningSettings
from ragen2.curriculum import CurriculumState, Level
from ragen2.diagnostics import Diagnostic, Ema, Evidence, Measured, measure_all
from ragen2.diagnostics.base import Metrics, Replayer
from ragen2.diagnostics.judging.periods import JUDGED_BY, periods
from ragen2.diagnostics.metrics.collapse import judged_scope
from ragen2.diagnostics.metrics.reward import coverage, filter_metrics, reward_spread
from ragen2.policy import Scorer
from ragen2.runs.record import Sink, StepRecord, records_digest
from ragen2.runs.store import RunDirectory
from ragen2.trainer.batch import EnvReplayer
from ragen2.trainer.state import (
    AlarmResponse,
    AlarmState,
    MeasuredStep,
    OfferedTasks,
    TrainerState,
    respond,
    track,
    warning_metrics,
    watch_stops,
    with_other_tasks,
)
from ragen2.types import Group, Prompt, Selection

COVERAGE_STEPS = 20
"""Steps over which ``filter/coverage`` counts."""
REGIME_STEPS = 20
"""Measured steps that the regime of a step looks back on: it is that of their last period."""
NEEDS_SUCCESS = frozenset(
    {
        "rollout/success",
        "filter/difficulty",
        "filter/difficulty_gap",
        "filter/kept_ratio_never_solved",
        "filter/kept_ratio_sometimes_solved",
        "filter/kept_ratio_always_solved",
        "filter/variance_beside_success",
    }
)
"""Metrics that mean nothing where only rewards are known, not whether a task was solved."""
NEEDS_ENV = frozenset({"rollout/env_errors"})
"""Metrics that mean nothing where no environment of ours is played."""
_EMA_END = "/marginal_std_ema"


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """What is measured of a step and what is done about it."""

    diagnostics: Sequence[Diagnostic]
    warning: WarningSettings
    stops: Stops
    seed: int
    temperature: float
    rollouts_every: int = 1
    replayer: Replayer | None = None
    """Plays a prompt again in its environment; None where the environment is not ours."""

    @classmethod
    def of(cls, config: RunConfig) -> LedgerSettings:
        """Those of a run file."""
        return cls(
            config.diagnostics,
            config.warning,
            config.stops,
            config.seed,
            config.rollout.temperature,
            config.checkpoints.rollouts_every,
            EnvReplayer(config.env),
        )


@dataclass(slots=True)
class _OpenStep:
    step: int
    no_success: str = ""
    measured: Measured = field(default_factory=Measured)
    judged: dict[str, float] = field(default_factory=dict)
    watch: AlarmState | None = None
    groups: list[Group] = field(default_factory=list)
    selection: Selection | None = None
    rounds: int | None = None
    level: Level | None = None
    curriculum: CurriculumState | None = None
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


class StepLedger:
    """Writes the records of one run; ``state`` is what it remembers from step to step."""

    def __init__(
        self,
        settings: LedgerSettings,
        run: RunDirectory,
        state: TrainerState | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self.settings = settings
        self.run = run
        self.state = state or TrainerState(step=0)
        self._sinks = sinks
        self._open = _OpenStep(self.state.step)
        self._digest = records_digest(run.sound_records()[0])

    def open(self, step: int, *, no_success: str = "") -> None:
        """Begin a step; ``no_success`` says why it is not known which tasks were solved."""
        self._open = _OpenStep(step, no_success)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase of the step under way and tell the sinks about it."""
        for sink in self._sinks:
            sink.phase(name)
        started = time.perf_counter()
        yield
        self.spent(name, time.perf_counter() - started)

    def spent(self, phase: str, seconds: float) -> None:
        """Count time that was spent on the step under way."""
        taken = self._open.seconds
        taken[phase] = taken.get(phase, 0.0) + seconds

    def evidence(self, groups: Sequence[Group], scorer: Scorer | None) -> Evidence:
        """What diagnostics of the step under way may look at."""
        ours = self.settings
        return Evidence(
            self._open.step,
            groups,
            scorer,
            ours.temperature,
            self.state.ema,
            ours.seed,
            replayer=ours.replayer,
        )

    def diagnose(
        self, groups: Sequence[Group], scorer: Scorer | None, replayer: Replayer | None = None
    ) -> None:
        """Measure the whole batch, before any filter, and judge what was found.

        ``replayer`` is for tasks of another environment than the run's own.
        """
        opened, ours = self._open, self.settings
        due = [one for one in ours.diagnostics if one.is_due(opened.step)]
        evidence = self.evidence(groups, scorer)
        if replayer is not None:
            evidence = replace(evidence, replayer=replayer)
        with self.phase("score"):
            self.add(measure_all([one for one in due if one.needs_scorer], evidence))
        with self.phase("diagnose"):
            self.add(measure_all([one for one in due if not one.needs_scorer], evidence))
        scope = f"collapse/{judged_scope(ours.diagnostics)}/"
        found = opened.measured.items()
        opened.judged = {n.removeprefix(scope): v for n, v in found if n.startswith(scope)}
        opened.watch = track(ours.warning, self.state.watch, opened.judged)
        self.add(warning_metrics(ours.warning, opened.watch, measured=bool(opened.judged)))

    def filtered(
        self, groups: Sequence[Group], selection: Selection, rounds: int | None = None
    ) -> None:
        """Take what the filter kept of a batch; a step may have several batches.

        ``rounds`` of resampling are None where another trainer chooses the prompts.
        """
        opened = self._open
        before = opened.selection
        opened.groups += groups
        opened.selection = selection if before is None else _joined(before, selection)
        opened.rounds = rounds
        if selection.reason:
            opened.notes.append(f"no update: {selection.reason}")

    def played_at(self, level: Level, after: CurriculumState, note: str) -> None:
        """Take the level of the step's tasks, and what the curriculum makes of their success."""
        self._open.level, self._open.curriculum = level, after
        self.add({"curriculum/level": float(level.number)})
        if note:
            self.note(note)

    def add(self, found: Metrics) -> None:
        """Take numbers of the step under way, with what is absent of them."""
        self._open.measured.add(found)

    def note(self, text: str) -> None:
        """Say what a reader of the record should know."""
        self._open.notes.append(text)

    @property
    def metrics(self) -> dict[str, float]:
        """All finite numbers of the step under way, for other loggers."""
        return self._finished()[0]

    def close(self, seconds: Mapping[str, float] | None = None) -> AlarmResponse:
        """Write the record of the step under way; the response says what its alarm asks for."""
        opened, before = self._open, self.state
        metrics, absent = self._finished()
        self._advance(metrics)
        response = respond(
            self.settings.warning, before.watch, self.state.watch, opened.step, self.run.path
        )
        ended = f"the run ends here: {self.state.stopped}" if self.state.stopped else ""
        opened.notes += [text for text in (response.note, ended) if text]
        # The record comes last: a step that is in steps.jsonl has its rollouts and scores, and a run that
        # is killed before is rewound to its last checkpoint, which takes them away again.
        if opened.groups and opened.step % self.settings.rollouts_every == 0:
            self.run.save_rollouts(opened.step, opened.groups, knows_success=not opened.no_success)
        self.run.save_scores(opened.step, opened.measured.scores)
        selection = opened.selection
        # Step 0 is an evaluation alone: its time says nothing about how long a step takes.
        whole = {"step": sum(opened.seconds.values())} if opened.step else {}
        record = StepRecord(
            step=opened.step,
            metrics=metrics,
            absent=absent,
            regime=self.state.regime,
            kept=[] if selection is None else selection.kept_P.tolist(),
            scores=[] if selection is None else selection.scores_P.tolist(),
            seeds=[group.prompt.seed for group in opened.groups],
            note="; ".join(opened.notes),
            seconds=opened.seconds | whole | dict(seconds or {}),
            files=self.run.digests(opened.step),
        )
        self.run.append(record)
        self._digest = records_digest([record], self._digest)
        self.state = self.state.model_copy(update={"records": self._digest})
        for sink in self._sinks:
            sink.record(record)
        return response

    def _finished(self) -> tuple[dict[str, float], dict[str, str]]:
        """Numbers that can be recorded, and the reasons for those that cannot."""
        opened = self._open
        found = opened.measured | self._filter_metrics()
        absent = dict(opened.measured.absent)
        if opened.no_success:
            found = {name: value for name, value in found.items() if name not in NEEDS_SUCCESS}
            absent |= dict.fromkeys(("rollout/success", "filter/difficulty"), opened.no_success)
        if self.settings.replayer is None:
            found = {name: value for name, value in found.items() if name not in NEEDS_ENV}
        finite = {name: value for name, value in found.items() if math.isfinite(value)}
        broken = {n: f"not finite: {value}" for n, value in found.items() if n not in finite}
        return finite, absent | broken

    def _filter_metrics(self) -> dict[str, float]:
        """What the filter did to this batch and, where we choose the prompts, to the last steps."""
        opened = self._open
        if opened.selection is None:
            return {}
        found = filter_metrics(opened.selection, opened.groups)
        if opened.rounds is None:
            return found
        recent = self._recent()
        covered = coverage([one.kept for one in recent], [one.tasks for one in recent])
        found["filter/rounds"] = float(opened.rounds)
        return found if covered is None else found | {"filter/coverage": covered}

    def _recent(self) -> tuple[OfferedTasks, ...]:
        opened = self._open
        if opened.selection is None or opened.rounds is None:
            return self.state.recent
        tasks = tuple(task_number(group.prompt) for group in opened.groups)
        kept = tuple(opened.selection.kept_P.tolist())
        return (*self.state.recent, OfferedTasks(tasks=tasks, kept=kept))[-COVERAGE_STEPS:]

    def _advance(self, metrics: Mapping[str, float]) -> None:
        """The state after the step: averages, regime, early warning, early stops."""
        opened, before, ours = self._open, self.state, self.settings
        judged, scope = opened.judged, judged_scope(ours.diagnostics)
        measured = before.measured
        if judged:
            kept = {f"collapse/{scope}/{n}": v for n, v in judged.items() if n in JUDGED_BY}
            measured = (*measured, MeasuredStep(step=opened.step, metrics=kept))[-REGIME_STEPS:]
        stops, stopped = before.stops, ""
        if opened.step:  # the evaluation before training counts towards no early stop
            rewards = [group.rewards_G for group in opened.groups]
            # Measured here too: a run without the diagnostic `reward` can stop as well.
            spread = {"reward/std": reward_spread(rewards)["std"]} if rewards else {}
            counted = {**metrics, **spread}
            if opened.level and opened.level.number < opened.level.highest:
                counted.pop("eval/success", None)  # of tasks that are not trained on yet
            stops, stopped = watch_stops(ours.stops, before.stops, counted)
        watch, curriculum = opened.watch or before.watch, opened.curriculum or before.curriculum
        if opened.level and opened.level.number != curriculum.level:
            watch = with_other_tasks(watch)
        self.state = TrainerState(
            step=opened.step,
            ema=next_emas(before.ema, metrics),
            regime=periods(measured, scope)[-1].regime.value if judged else before.regime,
            measured=measured,
            watch=watch,
            stops=stops,
            stopped=stopped,
            recent=self._recent(),
            curriculum=curriculum,
        )


def _joined(one: Selection, other: Selection) -> Selection:
    """The verdicts on two batches of a step, as the record lists them."""
    return Selection(
        np.concatenate([one.kept_P, other.kept_P]), np.concatenate([one.scores_P, other.scores_P])
    )


def next_emas(before: Mapping[str, Ema], metrics: Mapping[str, float]) -> dict[str, Ema]:
    """The averages after a step: those that it measured are new, the others stay."""
    scopes = [name.removesuffix(_EMA_END) for name in metrics if name.endswith(_EMA_END)]
    return dict(before) | {
        scope.removeprefix("collapse/"): Ema(
            metrics[f"{scope}{_EMA_END}"], metrics[f"{scope}{_EMA_END}_seq"]
        )
        for scope in scopes
    }


def task_number(prompt: Prompt) -> int:
    """A number that equal prompts share, in this process and in any other."""
    shown = [(one.content, *(image.digest for image in one.images)) for one in prompt.messages]
    text = "\0".join([prompt.env, *(part for message in shown for part in message)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())
