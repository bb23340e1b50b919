"""What a run goes on with: a checkpoint that its records reach, and the settings it was trained with.

A checkpoint has its settings beside the weights, and each start of the program records them in
sessions.jsonl. A run.toml that is neither was edited, or is not the run's.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ragen2.config import (
    RunConfig,
    dump_config,
    parse_config,
    read_toml,
    resolve_config,
    with_overrides,
)
from ragen2.consent import PluginRule, link_risks, require_consent
from ragen2.errors import ConfigError, RunError
from ragen2.runs.checkpoints import SETTINGS, list_checkpoints, newest_checkpoint
from ragen2.runs.files import write_atomically
from ragen2.runs.record import records_digest
from ragen2.runs.store import FILE as SESSIONS
from ragen2.runs.store import RunDirectory, read_sessions, record_session
from ragen2.runs.toml_files import read_toml_file
from ragen2.trainer.state import TrainerState, read_state

logger = logging.getLogger(__name__)

FIXED = frozenset(
    {
        *("seed", "env.kind", "algorithm.kind"),
        *("model.lora_rank", "model.lora_alpha", "model.frozen", "model.vision"),
    }
)
"""What the saved weights, optimiser and averages were made for: another value is another run."""
ALWAYS = ("seed", "steps", "env", "model", "rollout", "filter", "algorithm", "learner")
"""Settings and tables that every version writes into run.toml."""
LONGEST_VALUE = 100
"""Characters of a value that are shown."""
Difference = tuple[str, str, str]
"""A setting, and its two values as text."""


@dataclass(frozen=True, slots=True)
class ResumedSettings:
    """The settings that a run goes on with."""

    config: RunConfig
    changed: tuple[str, ...] = ()
    """What ``--set`` changed in them, one phrase per setting."""


def sound_checkpoint(run: RunDirectory) -> Path | None:
    """The newest whole checkpoint that the records reach without a gap; None before the first.

    Where there are checkpoints and none is such, the run is refused: what is missing would be so for good.
    """
    problems: list[str] = []

    def find_problem(folder: Path) -> str:
        problems.append(lacks_records(run, read_state(folder)))
        return problems[-1]

    found = newest_checkpoint(run.path, find_problem)
    if found is None and problems:
        raise RunError(
            f"the records of {run.path} reach none of its checkpoints ({problems[-1]}); put steps.jsonl "
            f"back, or start over beside it with: ragen2 train {run.path / 'run.toml'} --out {run.path}-again"
        )
    if found is None and list_checkpoints(run.path):
        raise RunError(
            f"every checkpoint of {run.path} is damaged; to start again from step 1, remove "
            f"{run.path / 'checkpoints'} and resume"
        )
    return found


def lacks_records(run: RunDirectory, state: TrainerState) -> str:
    """What is wrong with the records of the steps that led to ``state``; an empty string for nothing."""
    sound, flaw = run.sound_records()
    kept = [record for record in sound if record.step <= state.step]
    steps = [record.step for record in kept]
    if state.records and records_digest(kept) == state.records:
        return ""
    if not steps:
        return flaw or "steps.jsonl holds no record"
    wanted = range(min(steps[0], 1), state.step + 1)
    if not state.records and steps == list(wanted):  # of an older version
        return ""
    gap = next((step for step in wanted if step not in steps), None)
    if gap is not None and gap > steps[-1]:
        return flaw or f"steps.jsonl ends with step {steps[-1]}"
    return (
        f"a record of steps {steps[0]} to {state.step} has changed"
        if gap is None
        else f"steps.jsonl lacks step {gap}"
    )


def write_settings(folder: Path, config: RunConfig) -> None:
    """Save them beside the weights, where the checkpoint's hashes guard them."""
    write_atomically(folder / SETTINGS, dump_config(config))


def resumed_settings(
    run: Path,
    checkpoint: Path | None,
    overrides: Sequence[str] = (),
    *,
    plugins: PluginRule = "known",
) -> ResumedSettings:
    """The settings of ``run.toml`` with ``overrides``, which must be all that differs from those recorded.

    A run of an older version, which recorded none, goes on with what its run.toml says.
    """
    file = run / "run.toml"
    if plugins != "skip":
        require_consent(f"run {run}", link_risks(run), trust=plugins == "trust")
    data = read_toml(file)
    before = _matching(run, checkpoint, data, overrides)
    if before is None:
        before = data
        if checkpoint is not None or (run / "steps.jsonl").exists():
            _refuse_lacking(file, data)
        if checkpoint is not None:
            logger.warning(
                "an older version wrote %s and recorded no settings: run.toml is taken as it is, and "
                "recorded from here on",
                run,
            )
    changes = list(differences(_resolved(before), _resolved(with_overrides(data, overrides))))
    for name, old, new in changes:
        if name in FIXED:
            raise ConfigError(
                f"{name} is {old} for the whole run, --set says {new}; start a new run with --set "
                f"model.path={run}"
            )
    told = tuple(f"{name} is {new} (was {old})" for name, old, new in changes)
    config = resolve_config(RunConfig, data, overrides, f"run file {file}", plugins)
    return ResumedSettings(config, told)


def _refuse_lacking(file: Path, data: Mapping[str, Any]) -> None:
    """Raise where a run file lacks what every version wrote into it; its defaults are not the run's."""
    if lacking := [name for name in ALWAYS if name not in data]:
        raise ConfigError(
            f"{file} lacks {', '.join(lacking)}, so it is not what the run was trained with; put it back"
        )


def record_start(run: Path, step: int, config: RunConfig, changed: Sequence[str] = ()) -> None:
    """Note a start after ``step`` with these settings; run.toml gets those that changed or that it lacks."""
    tables, file = as_tables(config), run / "run.toml"
    record_session(run, step, tables, changed)
    if _without_places(read_toml_file(file)) != _without_places(tables):
        write_atomically(file, dump_config(config))


def refuse_edited(run: Path, checkpoint: Path | None, only: Collection[str] = ()) -> None:
    """Raise where these tables, or any, of ``run.toml`` are not what the run was trained with."""
    _matching(run, checkpoint, read_toml(run / "run.toml"), only=only)


def differences(there: Any, here: Any, path: str = "") -> Iterator[Difference]:
    """Settings that are not the same in two tables, in their order."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in dict.fromkeys([*there, *here]):
            yield from differences(there.get(name), here.get(name), f"{path}.{name}".lstrip("."))
    elif _is_tables(there) and _is_tables(here) and len(there) == len(here):
        for index, (one, other) in enumerate(zip(there, here, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif there != here:
        yield path, _shown(there), _shown(here)


def as_tables(config: BaseModel) -> dict[str, Any]:
    """The settings as a run file has them."""
    return config.model_dump(mode="json", exclude_none=True)


def _matching(
    run: Path,
    checkpoint: Path | None,
    data: Mapping[str, Any],
    overrides: Sequence[str] = (),
    only: Collection[str] = (),
) -> Mapping[str, Any] | None:
    """The recorded settings that differ from ``data`` by no more than ``overrides``; None if none are."""
    refused: list[tuple[Path, list[Difference]]] = []
    recorded = _recorded(run, checkpoint)
    now = _resolved(with_overrides(data, overrides)) if recorded else {}
    for file, tables in recorded:
        try:
            then = _resolved(with_overrides(tables, overrides))
        except ConfigError as error:
            reason = str(error).splitlines()[0]
            logger.warning("%s cannot be compared with run.toml: %s", file, reason)
            continue
        changes = differences(_without_places(then), _without_places(now))
        found = [one for one in changes if not only or one[0].partition(".")[0] in only]
        if not found:
            return tables
        refused.append((file, found))
    if not refused:
        return None
    lines = [f"{name} was {old}, is {new}" for name, old, new in refused[0][1]]
    head = f"{run / 'run.toml'} is not what the run was trained with:"
    cure = f"put these values back ({refused[-1][0]} has them all), or change them with --set"
    raise ConfigError("\n".join([head, *lines, cure]))


def _recorded(run: Path, checkpoint: Path | None) -> Sequence[tuple[Path, Mapping[str, Any]]]:
    """Settings of the last start, then those of the checkpoint; before there is one, of the start before.

    The last start may have been killed after it recorded a change and before run.toml had it.
    """
    started = [(run / SESSIONS, one.settings) for one in read_sessions(run) if one.settings]
    newest = started[:-3:-1]
    if checkpoint is None:
        return newest
    try:
        return [*newest[:1], (checkpoint / SETTINGS, read_toml_file(checkpoint / SETTINGS))]
    except FileNotFoundError:  # of an older version
        return newest[:1]
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read: %s", checkpoint / SETTINGS, error)
        return newest[:1]


def _resolved(tables: Mapping[str, Any]) -> dict[str, Any]:
    """A run file with its defaults; compared, not run, so that no plug-in is imported for it."""
    return as_tables(parse_config(RunConfig, tables, imports_plugins=False))


def _without_places(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Plug-ins by their names: a run may be moved with them, and what they do needs consent anyway."""
    return {**tables, "plugins": [Path(name).name for name in tables.get("plugins", ())]}


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, Mapping) for one in value)


def _shown(value: Any) -> str:
    text = "not set" if value is None else repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
