"""What a run must remember beyond weights and optimiser to go on exactly where it was.

Tasks and random streams are not in here: both are functions of the run's seed, the step and the member of
a group (``training_tasks``, ``seeding.stream``), so that a resumed step draws what it would have drawn. Only
what depends on earlier steps is saved: averages, alarms, early stops, the window of ``filter/coverage``.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ragen2.diagnostics import Ema
from ragen2.errors import RunError
from ragen2.runs.checkpoints import STATE
from ragen2.runs.files import write_atomically
from ragen2.trainer.alarms import AlarmState
from ragen2.trainer.stops import StopState


class OfferedTasks(BaseModel):
    """The tasks of one step, and which of them the filter kept.

    A task is named by its prompt, not by its seed: small environments give one task to many seeds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: tuple[int, ...]
    kept: tuple[bool, ...]


class TrainerState(BaseModel):
    """Random streams, tasks and data position are functions of the seed and ``step``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    """Steps done."""
    ema: dict[str, Ema] = {}
    """Spread of the marginal averaged over steps, scope by scope."""
    regime: str | None = None
    watch: AlarmState = AlarmState()
    """The early warning's baseline, sums and alarm."""
    stops: StopState = StopState()
    """What the early stops count."""
    stopped: str = ""
    """Why the run ended by itself after this step; empty otherwise."""
    recent: tuple[OfferedTasks, ...] = ()
    """The tasks of the last steps and which of them were updated on, oldest first."""


def write_state(folder: Path, state: TrainerState) -> None:
    """Save beside the weights."""
    write_atomically(folder / STATE, state.model_dump_json(indent=1))


def read_state(folder: Path) -> TrainerState:
    """Read what ``write_state`` wrote."""
    try:
        return TrainerState.model_validate_json((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{folder / STATE} cannot be read: {reason}") from error
