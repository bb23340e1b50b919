"""What a run remembers from step to step, and when that raises an alarm or ends the run.

An alarm of the early warning is responded to once, at the step that raises it; an early stop ends a run that
can no longer learn. Both are part of the state, so a resumed run neither forgets an alarm nor responds twice.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, model_validator

from ragen2.config import Stops, WarningSettings
from ragen2.curriculum import CurriculumState
from ragen2.diagnostics import Ema
from ragen2.diagnostics.judging.warning import WarningState
from ragen2.errors import RunError
from ragen2.reading import read_bytes
from ragen2.runs.checkpoints import STATE
from ragen2.runs.files import write_atomically

LONGEST_QUOTE = 200
"""Characters of a failed command's last line that a note repeats."""


class AlarmState(BaseModel):
    """What is remembered of warnings between steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warning: WarningState = WarningState()
    healthy: int | None = None
    """Step of the newest checkpoint that was taken in good health."""
    pinned: tuple[int, ...] = ()
    """Steps whose checkpoints were the newest healthy ones when an alarm was raised."""

    @model_validator(mode="before")
    @classmethod
    def _of_an_older_rule(cls, value: object) -> object:
        """A checkpoint of the time when regimes had a baseline: the sums of its warning begin anew."""
        if not isinstance(value, dict):
            return value
        warning = value.get("warning")
        is_old = "baseline" in value or (isinstance(warning, dict) and "floor" in warning)
        dropped = {"baseline", "warning"} if is_old else set()
        return {name: kept for name, kept in value.items() if name not in dropped}

    @property
    def protected(self) -> frozenset[int]:
        """Steps whose checkpoints must not be pruned."""
        return frozenset(self.pinned) | ({self.healthy} if self.healthy is not None else set())


@dataclass(frozen=True, slots=True)
class AlarmResponse:
    """What is done about a step's alarm; nothing, when there was none."""

    note: str = ""
    saves: bool = False
    stops: bool = False


def track(settings: WarningSettings, watch: AlarmState, metrics: Mapping[str, float]) -> AlarmState:
    """Take what ``measure`` found at one step; an empty mapping changes nothing."""
    if not metrics:
        return watch
    off = settings.response == "off"
    warning = watch.warning if off else settings.update(watch.warning, metrics)
    pinned = watch.pinned
    if _is_new(watch.warning, warning) and watch.healthy is not None:
        pinned = tuple(sorted({*pinned, watch.healthy}))
    return watch.model_copy(update={"warning": warning, "pinned": pinned})


def warning_metrics(
    settings: WarningSettings, watch: AlarmState, *, measured: bool
) -> dict[str, float]:
    """The rule's own numbers, at steps that were measured."""
    if settings.response == "off" or not measured:
        return {}
    level = 1.0 if watch.warning.is_raised else 0.0
    return {"warning/level": level, "warning/statistic": watch.warning.statistic}


def respond(
    settings: WarningSettings, before: AlarmState, after: AlarmState, step: int, run: Path
) -> AlarmResponse:
    """Respond to an alarm that this step raised, or say that this step cleared one."""
    if before.warning.is_raised and not after.warning.is_raised:
        return AlarmResponse("early warning cleared")
    if after.warning.kind == before.warning.kind or not after.warning.kind:
        return AlarmResponse()
    reason = after.warning.reason
    note = f"early warning: {reason}"
    if (
        not after.warning.is_raised
    ):  # nothing was lost, so there is nothing to keep, to stop or to call for
        return AlarmResponse(note)
    if settings.response in {"checkpoint", "stop"}:
        kept = f"{note}; {_kept(after)}"
        return AlarmResponse(kept, saves=True, stops=settings.response == "stop")
    if settings.response == "command":
        return AlarmResponse(f"{note}; {_run_command(settings, reason, step, run)}")
    return AlarmResponse(note)


def with_other_tasks(watch: AlarmState) -> AlarmState:
    """What reasoning told of tasks of another level is no baseline; an alarm that is on stays on."""
    if watch.warning.kind:
        return watch
    known = WarningState(evidence=watch.warning.evidence, is_grounded=watch.warning.is_grounded)
    return watch.model_copy(update={"warning": known})


def mark_checkpoint(settings: WarningSettings, watch: AlarmState, step: int) -> AlarmState:
    """Remember a checkpoint taken in good health: no alarm, and no sum on its way to one.

    With ``warn`` nothing is remembered, so that nothing is kept from pruning.
    """
    if settings.response in {"off", "warn"}:
        return watch
    is_healthy = not watch.warning.is_raised and watch.warning.statistic < settings.clear
    return watch.model_copy(update={"healthy": step}) if is_healthy else watch


def _is_new(before: WarningState, after: WarningState) -> bool:
    return after.is_raised and not before.is_raised


def _kept(watch: AlarmState) -> str:
    if watch.healthy is None:
        return "no checkpoint was taken in good health before it"
    return f"the last healthy checkpoint, of step {watch.healthy}, is kept"


def _run_command(settings: WarningSettings, reason: str, step: int, run: Path) -> str:
    """Run the user's command; how it ended, in a phrase. Its failure is noted and ends nothing."""
    about = {
        "RAGEN2_RUN_DIR": str(run.resolve()),
        "RAGEN2_STEP": str(step),
        "RAGEN2_REASON": reason,
    }
    try:
        process = subprocess.Popen(  # noqa: S603 - the command of the user's own run file
            shlex.split(settings.command),
            env={**os.environ, **about},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return f"its command could not be started: {error.strerror or error}"
    return _wait_for(process, settings.timeout)


def _wait_for(process: subprocess.Popen[str], timeout: float) -> str:
    """How the command ended; when its time is up, it is ended with all that it started."""
    with process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"its command was ended after {timeout:g} seconds"
    if process.returncode == 0:
        return "its command was run"
    lines = (errors.strip() or out.strip()).splitlines()
    last = f": {lines[-1][:LONGEST_QUOTE]}" if lines else ""
    return f"its command failed with exit code {process.returncode}{last}"


@dataclass(frozen=True, slots=True)
class StopState:
    """What the rules remember from step to step; saved with the run."""

    baseline_sum: float = 0.0
    baseline_count: int = 0
    low_variance: int = 0
    empty: int = 0
    low_success: int = 0


def watch_stops(
    settings: Stops, state: StopState, metrics: Mapping[str, float]
) -> tuple[StopState, str]:
    """Fold one step's metrics in; the second value says why to stop, and is empty otherwise."""
    state = _variance(settings, state, metrics.get("reward/std"))
    if "filter/kept" in metrics:
        state = replace(state, empty=state.empty + 1 if metrics["filter/kept"] == 0.0 else 0)
    if "eval/success" in metrics:
        is_low = metrics["eval/success"] < settings.success_least
        state = replace(state, low_success=state.low_success + 1 if is_low else 0)
    reason = _reason(settings, state)
    if reason:
        # A run that is resumed after it stopped gets its whole number of steps again.
        state = replace(state, low_variance=0, empty=0, low_success=0)
    return state, reason


def _variance(settings: Stops, state: StopState, std: float | None) -> StopState:
    if std is None:
        return state
    if state.baseline_count < settings.variance_baseline:
        # A first step without any variance says nothing about what the run can have.
        if std == 0.0:
            return state
        return replace(
            state,
            baseline_sum=state.baseline_sum + std,
            baseline_count=state.baseline_count + 1,
        )
    baseline = state.baseline_sum / state.baseline_count
    is_low = std < settings.variance_share * baseline
    return replace(state, low_variance=state.low_variance + 1 if is_low else 0)


def _reason(settings: Stops, state: StopState) -> str:
    if settings.variance_steps and state.low_variance >= settings.variance_steps:
        return (
            f"reward variance collapsed: {state.low_variance} steps in a row below "
            f"{settings.variance_share:g} of the first steps' reward std"
        )
    if settings.empty_steps and state.empty >= settings.empty_steps:
        return f"the filter kept no prompt for {state.empty} steps in a row"
    if settings.success_evaluations and state.low_success >= settings.success_evaluations:
        return (
            f"held-out success below {settings.success_least:g} at {state.low_success} "
            "evaluations in a row"
        )
    return ""


class OfferedTasks(BaseModel):
    """The tasks of one step, and which of them the filter kept.

    A task is named by its prompt, not by its seed: small environments give one task to many seeds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: tuple[int, ...]
    kept: tuple[bool, ...]


class MeasuredStep(BaseModel):
    """What the verdict on a period needs of a step in which reasoning was compared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    metrics: dict[str, float]


class TrainerState(BaseModel):
    """Random streams, tasks and data position are functions of the seed and ``step``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    """Steps done."""
    ema: dict[str, Ema] = {}
    """Spread of the marginal averaged over steps, scope by scope."""
    regime: str | None = None
    measured: tuple[MeasuredStep, ...] = ()
    """The last steps in which reasoning was compared, oldest first; their last period has the regime."""
    watch: AlarmState = AlarmState()
    """The early warning's baseline, sums and alarm."""
    stops: StopState = StopState()
    """What the early stops count."""
    stopped: str = ""
    """Why the run ended by itself after this step; empty otherwise."""
    recent: tuple[OfferedTasks, ...] = ()
    """The tasks of the last steps and which of them were updated on, oldest first."""
    curriculum: CurriculumState = CurriculumState()
    """How hard the next step's tasks are."""
    records: str = ""
    """Digest of the records until this step; empty where an older version saved it."""


def write_state(folder: Path, state: TrainerState) -> None:
    """Save beside the weights."""
    write_atomically(folder / STATE, state.model_dump_json(indent=1))


def read_state(folder: Path) -> TrainerState:
    """Read what ``write_state`` wrote."""
    try:
        return TrainerState.model_validate_json(read_bytes(folder / STATE))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{folder / STATE} cannot be read: {reason}") from error
