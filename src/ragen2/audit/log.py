"""Reading a whole log into a bounded sample, and counting what could not be used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ragen2.audit.files import Advance, Broken, UnreadableFile, read_rows
from ragen2.audit.readers import READERS, LogReader, Row, columns_reader, detect, trl_reader
from ragen2.audit.reservoir import Reservoir, SampleLimits, StepSample
from ragen2.audit.rollouts import LoggedRollout, ReasoningRule, Unusable
from ragen2.audit.trl_rewards import RewardColumns, reward_columns
from ragen2.errors import ConfigError

FIRST_ROWS = 512
"""Rows of a TRL table that tell which of its columns are rewards."""
NO_STEP = 0
"""The step of rollouts whose log does not say."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a user may say about a log."""

    format: str | None = None
    """A format's name; left out, each file's first rows decide."""
    columns: Mapping[str, str] | None = None
    rule: ReasoningRule = field(default_factory=ReasoningRule)
    limits: SampleLimits = field(default_factory=SampleLimits)
    template_opens: bool = False
    """Whether the model's chat template opens replies with the tag; logs of chats do not show it."""
    keeps_tokens: bool = True
    """Whether token ids that a log holds are kept; only a local model scores them."""

    def reader(self) -> LogReader | None:
        """The reader that was asked for; None when the log is to decide."""
        if self.columns is not None:
            if self.format not in {None, "columns"}:
                raise ConfigError(f"--columns goes with --format columns, not {self.format}")
            return columns_reader(self.columns)
        if self.format is not None and self.format not in READERS:
            raise ConfigError(f"--format must be one of {', '.join(READERS)}, got {self.format!r}")
        return READERS[self.format] if self.format else None


@dataclass(slots=True)
class Log:
    """What was read."""

    steps: list[StepSample] = field(default_factory=list)
    num_steps: int = 0
    """Steps that the log has; more than were kept, if it has many."""
    formats: list[str] = field(default_factory=list)
    num_rows: int = 0
    num_used: int = 0
    unused: Counter[str] = field(default_factory=Counter)
    """Rows that gave no rollout, by reason."""
    no_trace: Counter[str] = field(default_factory=Counter)
    """Rollouts that gave no reasoning, by reason."""
    unreadable: dict[str, str] = field(default_factory=dict)
    trl_rewards: RewardColumns = field(default_factory=RewardColumns)


def read_log(files: Sequence[Path], settings: ReadSettings, advance: Advance) -> Log:
    """Read every file once, in order; memory depends on the limits, not on the log."""
    asked = settings.reader()
    log = Log()
    reservoir = Reservoir(
        settings.limits,
        settings.rule,
        template_opens=settings.template_opens,
        keeps_tokens=settings.keeps_tokens,
    )
    for path in files:
        file_step = _step_of_name(path) if len(files) > 1 else NO_STEP
        try:
            _read_file(path, asked, log, reservoir, file_step, advance)
        except UnreadableFile as error:
            log.unreadable[str(path)] = str(error)
    log.no_trace = reservoir.without
    log.steps = reservoir.steps()
    log.num_steps = len(log.steps) + reservoir.num_left_out
    if not any(step.num_traces for step in log.steps):
        raise ConfigError(_nothing(log, files))
    return log


def _read_file(
    path: Path, asked: LogReader | None, log: Log, reservoir: Reservoir, step: int, advance: Advance
) -> None:
    reader: LogReader | None = None
    for row in read_rows(path, advance):
        log.num_rows += 1
        if isinstance(row, Broken):
            log.unused[row.reason] += 1
            continue
        try:
            reader = reader or _reader_of(path, asked or _detected(row), log)
            for rollout in _rollouts(row, reader):
                reservoir.add(rollout, rollout.step if rollout.step is not None else step)
        except Unusable as reason:
            log.unused[str(reason)] += 1
        else:
            log.num_used += 1
            if reader.name not in log.formats:
                log.formats.append(reader.name)


def _reader_of(path: Path, reader: LogReader, log: Log) -> LogReader:
    """The reader for this file: a TRL table does not say which columns are rewards, its first rows tell."""
    if reader.name != "trl":
        return reader
    rows = islice(read_rows(path, lambda _: None), FIRST_ROWS)
    first = [row for row in rows if not isinstance(row, Broken) and reader.matches(row)]
    if first:
        log.trl_rewards = reward_columns(first, log.trl_rewards)
    return trl_reader(log.trl_rewards.names)


def _detected(row: Row) -> LogReader:
    reader = detect(row)
    if reader is None:
        names = ", ".join(sorted(map(str, row))[:8])
        raise UnreadableFile(f"format not recognised (columns {names}); say --columns or --format")
    return reader


def _rollouts(row: Row, reader: LogReader) -> list[LoggedRollout]:
    """A row's rollouts; whatever a row holds, it can at worst be counted."""
    if not reader.matches(row):
        raise Unusable(f"not a {reader.name} row")
    try:
        return reader.read(row)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Unusable(f"malformed {reader.name} row") from error


def _step_of_name(path: Path) -> int:
    """``completions_00012.parquet`` -> 12, for logs whose rows do not say."""
    found = re.search(r"(\d+)$", path.name.split(".")[0])
    return int(found[1]) if found else NO_STEP


def _nothing(log: Log, files: Sequence[Path]) -> str:
    """One line on why a log cannot be audited."""
    reasons = [f"{count} {reason}" for reason, count in (log.unused + log.no_trace).most_common(3)]
    reasons += [f"{Path(path).name}: {why}" for path, why in list(log.unreadable.items())[:2]]
    where = "say where it is, such as --reasoning all"
    cure = where if log.no_trace else "check --format and --columns"
    place = files[0] if len(files) == 1 else f"{len(files)} files"
    found = "; ".join(reasons) or "no rows"
    return f"nothing to audit in {place}: {log.num_rows} rows read ({found}); {cure}"
