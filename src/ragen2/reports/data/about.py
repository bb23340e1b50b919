"""What a run was and what happened in it: facts, settings, versions, seconds, events, what is absent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ragen2.reports.data.numbers import shorts
from ragen2.reports.load import Run
from ragen2.runs.checkpoints import checkpoint_step, list_checkpoints
from ragen2.runs.record import StepRecord
from ragen2.runs.store import installed_versions, read_sessions

ENDED = "the run ends here"
KINDS = (
    ("early warning", "warning"),
    ("the run ends here", "early_stop"),
    ("no update", "filter_empty"),
    ("curriculum", "note"),
)
"""How the parts of a record's note begin, and what they are."""


def state_of(run: Run) -> str:
    """``empty``, ``unfinished`` or ``finished``; a run that stopped by itself is finished."""
    if not run.records:
        return "empty"
    steps = run.settings.get("steps")
    is_short = run.audit is None and isinstance(steps, int) and run.records[-1].step < steps
    return "unfinished" if is_short and ENDED not in run.records[-1].note else "finished"


def facts_of(run: Run) -> list[list[str]]:
    """A few short ones."""
    if run.audit is not None:
        rows = run.audit.rows
        return [
            ["format", ", ".join(run.audit.formats)],
            ["scores from", run.audit.scorer],
            ["rows", f"{rows.used:,} of {rows.read:,} used"],
            ["steps measured", f"{len(run.records)}"],
        ]
    done = run.records[-1].step if run.records else 0
    named = [
        ("environment", _setting(run, "env", "kind")),
        ("model", _setting(run, "model", "path")),
        ("algorithm", _setting(run, "algorithm", "kind")),
        ("filter", _setting(run, "filter", "kind")),
        ("batch", _batch(run)),
        ("steps", f"{done} of {run.settings.get('steps', '?')}"),
    ]
    return [[label, value] for label, value in named if value]


def settings_of(run: Run) -> list[list[Any]]:
    """Sections of names and values, everything as text; tables of a list are numbered."""
    plain = [[name, _text(value)] for name, value in run.settings.items() if _is_plain(value)]
    sections: list[list[Any]] = [["run" if run.audit is None else "audit", plain]] if plain else []
    for name, value in run.settings.items():
        if _is_plain(value):
            continue
        tables = value if isinstance(value, list) else [value]
        for number, table in enumerate(tables, 1):
            kind = table.get("kind")
            title = f"{name} {number}" if len(tables) > 1 else name
            rows = [[inner, _text(item)] for inner, item in table.items()]
            sections.append([f"{title}: {kind}" if kind else title, rows])
    return sections


def versions_of(run: Run) -> list[list[str]]:
    """Of the run's last session, and of what made the page where they differ or nothing was recorded."""
    mine = installed_versions()
    sessions = read_sessions(run.path) if run.audit is None else []
    if not sessions:
        return [[f"{name} (of this page)", version] for name, version in mine.items()]
    found = [[name, version] for name, version in sessions[-1].versions.items()]
    found.append(["started", sessions[0].started])
    if sessions[-1].versions.get("ragen2") != mine.get("ragen2"):
        found.append(["ragen2 (of this page)", mine.get("ragen2", "not installed")])
    return found


def timings_of(run: Run) -> dict[str, list[float | None]]:
    """Seconds of each phase, a value for each record."""
    phases = dict.fromkeys(name for record in run.records for name in record.seconds)
    return {
        phase: shorts(record.seconds.get(phase) for record in run.records)
        for phase in phases
        if phase != "step"
    }


def absent_of(run: Run) -> list[list[str]]:
    """What was due and not computed, each reason once, with the steps it was given at."""
    reasons: dict[tuple[str, str], list[int]] = {}
    for record in run.records:
        for name, why in record.absent.items():
            reasons.setdefault((name, why), []).append(record.step)
    return [[name, f"{why} ({_steps(steps)})"] for (name, why), steps in reasons.items()]


@dataclass(frozen=True, slots=True)
class Event:
    """One mark on the time axis."""

    step: int
    kind: str
    text: str

    def as_dict(self) -> dict[str, Any]:
        """The event as the page takes it."""
        return asdict(self)


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


def _steps(steps: list[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"{len(steps)} steps, {steps[0]} to {steps[-1]}"


def _setting(run: Run, section: str, name: str) -> str:
    table = run.settings.get(section)
    return str(table[name]) if isinstance(table, dict) and name in table else ""


def _batch(run: Run) -> str:
    prompts, size = (_setting(run, "rollout", name) for name in ("prompts", "group_size"))
    return f"{prompts} prompts x {size} episodes" if prompts and size else ""


def _is_plain(value: Any) -> bool:
    tables = value if isinstance(value, list) else [value]
    return not tables or not all(isinstance(one, dict) for one in tables)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


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
