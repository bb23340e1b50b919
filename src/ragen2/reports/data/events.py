"""What happened when: warnings, steps without an update, checkpoints, early stops, changes of regime."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ragen2.reports.load import Run
from ragen2.runs.checkpoints import checkpoint_step, list_checkpoints
from ragen2.runs.record import StepRecord
from ragen2.runs.sessions import read_sessions


@dataclass(frozen=True, slots=True)
class Event:
    """One mark on the time axis."""

    step: int
    kind: str
    text: str

    def as_dict(self) -> dict[str, Any]:
        """The event as the page takes it."""
        return asdict(self)


KINDS = (
    ("early warning", "warning"),
    ("the run ends here", "early_stop"),
    ("no update", "filter_empty"),
)
"""How the parts of a record's note begin, and what they are."""


def events_of(run: Run) -> list[Event]:
    """All events in order of steps."""
    found = [event for record in run.records for event in _of_note(run, record)]
    found += _regimes(run)
    if run.audit is None:
        last = run.records[-1].step if run.records else 0
        found += [
            Event(session.step, "resume", f"resumed after step {session.step}")
            for session in read_sessions(run.path)[1:]
            if session.step <= last
        ]
        found += [
            Event(checkpoint_step(folder), "checkpoint", "checkpoint on disk")
            for folder in list_checkpoints(run.path)
        ]
    return sorted(found, key=lambda event: event.step)


def _of_note(run: Run, record: StepRecord) -> list[Event]:
    """A note may tell several things; those of an audit give the reason for its regime."""
    if not record.note or run.audit:
        return []
    found = []
    for part in _parts(record.note):
        kind = next((kind for start, kind in KINDS if part.startswith(start)), "note")
        if kind == "filter_empty" and record.metrics.get("filter/kept") != 0.0:
            kind = "note"
        found.append(Event(record.step, kind, part))
    return found


def _parts(note: str) -> list[str]:
    """The note's parts; what does not begin one belongs to the part before it."""
    starts = tuple(start for start, _ in KINDS)
    parts: list[str] = []
    for piece in note.split("; "):
        if parts and not piece.startswith(starts):
            parts[-1] += f"; {piece}"
        else:
            parts.append(piece)
    return parts


def _regimes(run: Run) -> list[Event]:
    found = []
    before = None
    for record in run.records:
        if record.regime and record.regime != before:
            if before is not None:
                words = f"{before} to {record.regime}".replace("_", " ")
                found.append(Event(record.step, "regime", words))
            before = record.regime
    return found
