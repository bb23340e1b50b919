"""The run directory of a TRL run: one record for each step, made of what is known at different times.

A step is opened when its rollouts are scored, gets TRL's own numbers when those are logged, and is written
once it is over: before the next one, before a checkpoint, and at the end of training.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from ragen2.diagnostics import Ema, Evidence, WarningState, regime
from ragen2.diagnostics.metrics.collapse import judged_scope
from ragen2.diagnostics.metrics.filtering import filter_metrics
from ragen2.errors import RunError
from ragen2.integrations.trl.settings import SNRSettings
from ragen2.policy import Scorer
from ragen2.runs.files import write_atomically
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.runs.trajectories import group_lines
from ragen2.types import Group, Selection

STATE = "ragen2_state.json"
"""The file in TRL's checkpoint folder."""
UPDATE_NAMES = {
    "loss": "update/loss",
    "policy_loss": "update/policy_loss",
    "grad_norm": "update/grad_norm",
    "learning_rate": "update/lr",
    "kl": "update/kl",
    "entropy": "update/entropy",
    "clip_ratio/region_mean": "update/clip_fraction",
}
"""TRL's names of what we record under ours."""
NO_SUCCESS = "TRL knows rewards only; set SNRSettings(success_reward=...)"
_OF_SUCCESS = (
    "rollout/success",
    "filter/difficulty",
    "filter/difficulty_gap",
    "filter/kept_ratio_never_solved",
    "filter/kept_ratio_sometimes_solved",
    "filter/kept_ratio_always_solved",
    "filter/variance_beside_success",
)
_EMA_END = "/marginal_std_ema"


class LogState(BaseModel):
    """What the diagnostics remember between steps; saved with TRL's checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int = 0
    ema: dict[str, Ema] = {}
    baseline: dict[str, float] | None = None
    """The run's first measurement, which later ones are judged against."""
    warning: WarningState = WarningState()
    regime: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """One generation batch: all its groups, and what the filter made of them."""

    groups: list[Group]
    selection: Selection
    knows_success: bool


@dataclass(slots=True)
class _OpenStep:
    step: int
    started: float
    batches: list[Scored] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class RunLog:
    """Measures steps and writes their records; used on the main process alone."""

    def __init__(
        self, settings: SNRSettings, path: Path, run: Mapping[str, Any], seed: int
    ) -> None:
        self.settings = settings
        self.path = path
        self.state = LogState()
        self._run_settings = run
        self._seed = seed
        self._directory: RunDirectory | None = None
        self._open: _OpenStep | None = None

    def start(self) -> None:
        """Make a new run directory; one that holds a run is never touched."""
        import tomli_w

        try:
            RunDirectory.refuse_taken(self.path)
        except RunError as error:
            raise RunError(
                f"run directory {self.path} is not empty; give another with SNRSettings(run_dir=...), "
                "or go on with trainer.train(resume_from_checkpoint=True)"
            ) from error
        self._directory = RunDirectory.create(self.path, tomli_w.dumps(dict(self._run_settings)))
        self.state, self._open = LogState(), None

    def resume(self, checkpoint: Path) -> bool:
        """Go on after a checkpoint: what came later is forgotten. False if it holds no state of ours."""
        file = checkpoint / STATE
        if not file.is_file():
            self.start()
            return False
        try:
            state = LogState.model_validate_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"{file} cannot be read: {reason}; resume from another one") from error
        if (self.path / "run.toml").is_file():
            self._directory = RunDirectory.open(self.path)
            self._directory.rewind(state.step)
        else:
            self.start()
        self.state, self._open = state, None
        return True

    def save(self, checkpoint: Path, step: int) -> None:
        """Write the state into TRL's checkpoint folder."""
        state = self.state.model_copy(update={"step": step})
        write_atomically(checkpoint / STATE, state.model_dump_json(indent=1))

    def scored(
        self, step: int, batch: Scored, scorer: Scorer | None, temperature: float
    ) -> dict[str, float]:
        """Take a generation batch of ``step`` and return what TRL's loggers should show.

        Likelihoods are taken of the first batch of a step only, under the weights that wrote it.
        """
        if self._open is None or self._open.step != step:
            self.close()
            self._open = _OpenStep(step, time.perf_counter())
        self._open.batches.append(batch)
        if len(self._open.batches) > 1:
            return {}
        evidence = Evidence(step, batch.groups, scorer, temperature, self.state.ema, self._seed)
        self._measure(self._open, evidence)
        self._judge(self._open)
        with self._timed("diagnose"):
            return self._open.metrics | _of_filter([batch])

    def attach(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Add numbers to the record of ``step``; those that are not finite are named as absent."""
        if self._open is None or self._open.step != step:
            self.close()
            self._open = _OpenStep(step, time.perf_counter())
        for name, value in metrics.items():
            if value is not None and math.isfinite(value):
                self._open.metrics[name] = float(value)
            else:
                self._open.absent[name] = f"not finite: {value}"

    def spent(self, phase: str, seconds: float) -> None:
        """Count time that was spent outside on the step under way."""
        if self._open is not None:
            self._open.seconds[phase] = self._open.seconds.get(phase, 0.0) + seconds

    def close(self) -> None:
        """Write the record and the rollouts of the step under way."""
        opened, self._open = self._open, None
        if opened is None or self._directory is None:
            return
        opened.seconds["step"] = time.perf_counter() - opened.started
        selections = [batch.selection for batch in opened.batches]
        groups = [group for batch in opened.batches for group in batch.groups]
        if groups and opened.step % self.settings.rollouts_every == 0:
            self._save_rollouts(opened)
        metrics = opened.metrics | (_of_filter(opened.batches) if groups else {})
        opened.notes += [f"no update: {one.reason}" for one in selections if one.reason]
        self._directory.append(
            StepRecord(
                step=opened.step,
                metrics=metrics,
                absent=opened.absent,
                regime=self.state.regime,
                kept=[bool(kept) for one in selections for kept in one.kept_P],
                scores=[float(score) for one in selections for score in one.scores_P],
                seeds=[group.prompt.seed for group in groups],
                note="; ".join(opened.notes),
                seconds=opened.seconds,
            )
        )

    def _measure(self, opened: _OpenStep, evidence: Evidence) -> None:
        due = [one for one in self.settings.diagnostics if one.is_due(evidence.step)]
        for phase, needs_scorer in (("score", True), ("diagnose", False)):
            with self._timed(phase):
                for one in due:
                    if one.needs_scorer == needs_scorer:
                        self.attach(evidence.step, one.measure(evidence))
                        opened.absent |= one.missing(evidence)
        if not opened.batches[0].knows_success:
            opened.metrics = _without_success(opened.metrics)
            opened.absent |= {"rollout/success": NO_SUCCESS, "filter/difficulty": NO_SUCCESS}

    def _judge(self, opened: _OpenStep) -> None:
        """Regime, early warning and moving averages after what was just measured."""
        prefix = f"collapse/{judged_scope(self.settings.diagnostics)}/"
        judged = {
            name.removeprefix(prefix): value
            for name, value in opened.metrics.items()
            if name.startswith(prefix)
        }
        state = self.state
        families = [n.removesuffix(_EMA_END) for n in opened.metrics if n.endswith(_EMA_END)]
        emas = {
            one.removeprefix("collapse/"): Ema(
                opened.metrics[f"{one}{_EMA_END}"], opened.metrics[f"{one}{_EMA_END}_seq"]
            )
            for one in families
        }
        changes: dict[str, Any] = {"step": opened.step, "ema": state.ema | emas}
        if judged:
            warning = self.settings.warning.update(state.warning, judged)
            changes |= {
                "regime": regime(judged, state.baseline).value,
                "baseline": state.baseline or judged,
                "warning": warning,
            }
            opened.metrics["warning/level"] = 1.0 if warning.is_raised else 0.0
            opened.metrics["warning/statistic"] = warning.statistic
            if warning.is_raised and not state.warning.is_raised:
                opened.notes.append(f"early warning: {warning.reason}")
        self.state = state.model_copy(update=changes)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.spent(phase, time.perf_counter() - started)

    def _save_rollouts(self, opened: _OpenStep) -> None:
        assert self._directory is not None  # noqa: S101 - close() checked it
        lines = [
            _honest(line, knows_success=batch.knows_success)
            for batch in opened.batches
            for group in batch.groups
            for line in group_lines(group, opened.step)
        ]
        path = self._directory.path / "rollouts" / f"step_{opened.step:06d}.jsonl"
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, "".join(f"{line}\n" for line in lines))
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error


def _of_filter(batches: Sequence[Scored]) -> dict[str, float]:
    """What the filters of a step's batches did, taken together."""
    joined = Selection(
        np.concatenate([one.selection.kept_P for one in batches]),
        np.concatenate([one.selection.scores_P for one in batches]),
    )
    found = filter_metrics(joined, [group for one in batches for group in one.groups])
    return found if all(one.knows_success for one in batches) else _without_success(found)


def _without_success(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in _OF_SUCCESS}


def _honest(line: str, *, knows_success: bool) -> str:
    """A trajectory's line with null for what TRL does not tell: log-probs, and whether it was solved."""
    data = json.loads(line)
    if not knows_success:
        data["solved"] = None
    for turn in data["turns"]:
        turn["logprobs"] = [None if math.isnan(value) else value for value in turn["logprobs"]]
    return json.dumps(data, ensure_ascii=False)
