"""The run directory of a TRL run: what TRL's trainer passes to the step ledger, at different times.

A step is opened when its rollouts are scored, gets TRL's own numbers when those are logged, and is written
once it is over: before the next one, before a checkpoint, and at the end of training.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen2.config import WarningSettings
from ragen2.diagnostics import Measured
from ragen2.errors import RunError
from ragen2.integrations.trl.rows import ENV
from ragen2.integrations.trl.settings import SNRSettings
from ragen2.policy import Scorer
from ragen2.reading import read_json
from ragen2.runs.files import write_atomically
from ragen2.runs.lock import WriterLock
from ragen2.runs.store import RunDirectory
from ragen2.runs.toml_files import read_toml_file
from ragen2.trainer.batch import EnvReplayer
from ragen2.trainer.resume import differences, lacks_records
from ragen2.trainer.state import TrainerState
from ragen2.trainer.step_ledger import LedgerSettings, StepLedger
from ragen2.types import Group, Selection

logger = logging.getLogger(__name__)

STATE = "ragen2_state.json"
"""The file in TRL's checkpoint folder."""
DIGEST = "digest"
"""Its entry that guards the others."""
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


@dataclass(frozen=True, slots=True, eq=False)
class ScoredBatch:
    """One generation batch: all its groups, and what the filter made of them."""

    groups: list[Group]
    selection: Selection
    knows_success: bool


class RunLog:
    """Passes steps of TRL to a ledger; used on the main process alone."""

    def __init__(
        self,
        settings: SNRSettings,
        path: Path,
        run: Mapping[str, Any],
        *,
        seed: int,
        temperature: float,
        replayer: EnvReplayer | None = None,
    ) -> None:
        self.path = path
        self.state = TrainerState(step=0)
        """Of the step that was written last."""
        self.asks_to_stop = False
        """Whether an alarm or an early stop has ended the run."""
        self._run_settings = run
        self._seeks_tags = settings.reasoning == "think" and any(
            one.needs_scorer for one in settings.diagnostics
        )
        self._settings = LedgerSettings(
            settings.diagnostics,
            _with_response(settings),
            settings.stops,
            seed,
            temperature,
            settings.rollouts_every,
            replayer,
        )
        self._lock = WriterLock(path)
        self._ledger: StepLedger | None = None
        self._step: int | None = None
        self._started = 0.0

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
        self._lock.acquire()
        run = RunDirectory.create(self.path, tomli_w.dumps(dict(self._run_settings)))
        self._begin(run, TrainerState(step=0))

    def resume(self, checkpoint: Path) -> bool:
        """Go on after a checkpoint: what came later is forgotten. False if it holds none of our state."""
        file = checkpoint / STATE
        if not file.is_file():
            self.start()
            return False
        state = _read_state(file)
        if (self.path / "run.toml").is_file():
            self._lock.acquire()
            run = RunDirectory.open(self.path)
            problem = lacks_records(run, state) if state.records else ""
            if problem:
                raise RunError(
                    f"{checkpoint} cannot be gone on from: {problem} in {self.path}; resume from an earlier "
                    "one, or give another folder with SNRSettings(run_dir=...)"
                )
            self._update_settings(run)
            run.rewind(state.step)  # steps after the checkpoint are trained, and recorded, again
            self._begin(run, state)
        else:
            self.start()
            self._begin(RunDirectory.open(self.path), state)
        return True

    def save(self, checkpoint: Path, step: int) -> None:
        """Write the state into TRL's checkpoint folder."""
        # TRL's own files hold weights, optimiser, random state and data position; this one adds only what
        # diagnostics, early warning and early stops remember. Why a run ended is no part of going on.
        state = self.state.model_copy(update={"step": step, "stopped": ""})
        file = checkpoint / STATE
        try:
            checkpoint.mkdir(parents=True, exist_ok=True)
            data = state.model_dump(mode="json")
            write_atomically(file, json.dumps({**data, DIGEST: _digest(data)}, indent=1))
        except OSError as error:
            raise RunError(f"{file} cannot be written: {error.strerror or error}") from error

    def scored(self, step: int, batch: ScoredBatch, scorer: Scorer | None) -> dict[str, float]:
        """Take a generation batch of ``step`` and return what TRL's loggers should show.

        Likelihoods are taken of the first batch of a step only, under the weights that wrote it.
        """
        is_first = self._step != step
        ledger = self._opened(step, "" if batch.knows_success else NO_SUCCESS)
        if is_first:
            self._tell_without_reasoning(step, batch.groups)
            ledger.diagnose(batch.groups, scorer)
        ledger.filtered(batch.groups, batch.selection)
        return ledger.metrics if is_first else {}

    def attach(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Add numbers to the record of ``step``; those that are not finite are named as absent."""
        if self._ledger is None:  # an evaluation outside of training has no run directory
            return
        ledger = self._opened(step)
        known = {n: float(v) for n, v in metrics.items() if v is not None and math.isfinite(v)}
        absent = {n: f"not finite: {v}" for n, v in metrics.items() if n not in known}
        ledger.add(Measured(known, absent))

    def spent(self, phase: str, seconds: float) -> None:
        """Count time that was spent outside on the step under way."""
        if self._ledger is not None and self._step is not None:
            self._ledger.spent(phase, seconds)

    def close(self) -> None:
        """Write the record and the rollouts of the step under way."""
        if self._ledger is None or self._step is None:
            return
        self._step = None
        response = self._ledger.close({"step": time.perf_counter() - self._started})
        self.state = self._ledger.state
        self.asks_to_stop = self.asks_to_stop or response.stops or bool(self.state.stopped)

    def end(self) -> None:
        """Training is over, or broke off: another process may write to the run directory."""
        self._lock.release()

    def _tell_without_reasoning(self, step: int, groups: Sequence[Group]) -> None:
        """Say once that no completion has reasoning; episodes of our environments have their own format."""
        turns = [
            turn
            for group in groups
            if group.prompt.env == ENV
            for one in group.trajectories
            for turn in one.turns
        ]
        if self._seeks_tags and turns and not any(turn.reply.reasoning for turn in turns):
            self._seeks_tags = False
            logger.warning(
                "no completion of step %d has reasoning in <think> tags, so collapse is not measured; "
                'SNRSettings(reasoning="all") scores whole completions',
                step,
            )

    def _update_settings(self, run: RunDirectory) -> None:
        """The script decides: where its settings are not those of run.toml, say so and write them there."""
        import tomli_w

        file = run.path / "run.toml"
        now = dict(self._run_settings)
        try:
            there = read_toml_file(file)
        except ValueError:
            there = {}
        changes = list(differences(there, now))
        for name, old, new in changes:
            logger.warning("%s was %s when the run began, is %s now", name, old, new)
        if changes:
            write_atomically(file, tomli_w.dumps(now))

    def _begin(self, run: RunDirectory, state: TrainerState) -> None:
        self._ledger, self.state = StepLedger(self._settings, run, state), state
        self._step, self.asks_to_stop = None, False

    def _opened(self, step: int, no_success: str = "") -> StepLedger:
        if self._ledger is None:
            raise AssertionError("TRL begins or resumes a run before it scores anything")
        if self._step != step:
            self.close()
            self._ledger.open(step, no_success=no_success)
            self._step, self._started = step, time.perf_counter()
        return self._ledger


def _with_response(settings: SNRSettings) -> WarningSettings:
    """The early warning of these settings; one without a response only writes a note."""
    warning = settings.warning
    return (
        warning
        if isinstance(warning, WarningSettings)
        else WarningSettings.model_validate(warning.model_dump())
    )


def _read_state(file: Path) -> TrainerState:
    """The state of a checkpoint; the warning that older ones have at the top begins anew."""
    try:
        data = read_json(file)
        is_changed = data.pop(DIGEST, "") not in {"", _digest(data)}  # older ones have none
        known = {name: value for name, value in data.items() if name not in {"warning", "baseline"}}
        state = TrainerState.model_validate(known)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{file} cannot be read: {reason}; resume from another one") from error
    if is_changed:
        raise RunError(f"{file} has changed since it was saved; resume from another one")
    return state


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]
