"""Reading a whole log into a bounded sample, and counting what could not be used.

Rows of JSONL (plain or gzip), parquet and CSV files are read one at a time, so a log may have any size.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from ragen2.audit.readers import READERS, LogReader, Row, columns_reader, detect
from ragen2.audit.reservoir import Reservoir, SampleLimits, StepSample
from ragen2.audit.rollouts import LoggedRollout, ReasoningRule, Unusable
from ragen2.errors import ConfigError, DependencyError

LONGEST_LINE = 64 * 2**20
"""Bytes of a line that is still read: a log without line ends must not fill the memory."""
BATCH = 64
"""Rows of a parquet file in memory at once."""
SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".parquet", ".csv")
OWN_RECORDS = frozenset({"steps.jsonl"})
"""Lines of a run directory that are not rollouts."""
Advance = Callable[[int], None]
"""Called with how many more bytes of the file have been read."""
NO_STEP = 0
"""The step of rollouts whose log does not say."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A line that is no row at all, and why."""

    reason: str


class UnreadableFile(Exception):
    """A whole file that cannot be read; its text says why."""


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The files to read for what a user named: files as they are, folders by what is in them."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += _in_folder(path)
        elif path.is_file():
            _refuse_unknown(path)
            found.append(path)
        else:
            raise ConfigError(f"{path} does not exist; give a log file or a run directory")
    return found


def read_rows(path: Path, advance: Advance) -> Iterator[dict[str, Any] | Broken]:
    """Every row of one file, in order."""
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path, advance)
        elif path.suffix == ".csv":
            yield from _csv(path, advance)
        else:
            yield from _jsonl(path, advance)
    except (OSError, EOFError, zlib.error) as error:  # the last two: gzip cut short or damaged
        raise UnreadableFile(getattr(error, "strerror", None) or str(error)) from error


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a user may say about a log."""

    format: str | None = None
    """A format's name; left out, each file's first rows decide."""
    columns: Mapping[str, str] | None = None
    rule: ReasoningRule = field(default_factory=ReasoningRule)
    limits: SampleLimits = field(default_factory=SampleLimits)

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


def read_log(files: Sequence[Path], settings: ReadSettings, advance: Advance) -> Log:
    """Read every file once, in order; memory depends on the limits, not on the log."""
    asked = settings.reader()
    log = Log()
    reservoir = Reservoir(settings.limits, settings.rule)
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


def _in_folder(folder: Path) -> list[Path]:
    """A run keeps its rollouts in a known place; any other folder is read whole."""
    for place in (folder / "rollouts", folder / "completions", folder):
        files = _logs(place.iterdir()) if place.is_dir() else []
        if files:
            return files
    files = _logs(folder.rglob("*"))
    if not files:
        raise ConfigError(f"{folder} holds no log ({', '.join(SUFFIXES)}); name the files to audit")
    return files


def _logs(paths: Iterator[Path]) -> list[Path]:
    chosen = [
        path
        for path in paths
        if path.name.endswith(SUFFIXES) and path.name not in OWN_RECORDS and path.is_file()
    ]
    return sorted(chosen, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts 9.jsonl before 10.jsonl."""
    return [
        (int(piece), "") if piece.isdigit() else (-1, piece)
        for piece in re.split(r"(\d+)", str(path))
    ]


def _refuse_unknown(path: Path) -> None:
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(f"{path} is none of {', '.join(SUFFIXES)}; convert or rename it")


def _jsonl(path: Path, advance: Advance) -> Iterator[dict[str, Any] | Broken]:
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        file: IO[bytes] = raw
        if path.suffix == ".gz":
            file = cast("IO[bytes]", stack.enter_context(gzip.GzipFile(fileobj=raw)))
        done = 0
        while line := file.readline(LONGEST_LINE):
            if not line.endswith(b"\n") and len(line) == LONGEST_LINE:
                while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                yield Broken("line longer than 64 MB")
            elif line.strip():
                yield _json_row(line)
            place = raw.tell()
            advance(place - done)
            done = place


def _json_row(line: bytes) -> dict[str, Any] | Broken:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return Broken("broken JSON")
    return row if isinstance(row, dict) else Broken("not a JSON object")


def _parquet(path: Path, advance: Advance) -> Iterator[dict[str, Any] | Broken]:
    try:
        pa, pq = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ModuleNotFoundError as error:
        raise DependencyError(
            f"{path} is parquet, which needs pyarrow; pip install 'ragen2[audit]'"
        ) from error
    size = path.stat().st_size
    try:
        with pq.ParquetFile(path) as file:
            total = max(1, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=BATCH):
                yield from batch.to_pylist()
                advance(size * batch.num_rows // total)
    except pa.ArrowException as error:
        raise UnreadableFile(f"not readable as parquet: {str(error).splitlines()[0]}") from error


@contextmanager
def _fields_up_to(size: int) -> Iterator[None]:
    """The csv module has one limit for the whole process; others find theirs again."""
    before = csv.field_size_limit(size)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _csv(path: Path, advance: Advance) -> Iterator[dict[str, Any] | Broken]:
    with path.open("rb") as raw:
        lines = _decoded(raw, advance)
        rows = csv.DictReader(lines)
        while True:
            try:
                with _fields_up_to(LONGEST_LINE):
                    row = next(rows, None)
            except csv.Error:
                yield Broken("broken CSV")
                continue
            if row is None:
                return
            yield {key: value for key, value in row.items() if key is not None}


def _decoded(raw: IO[bytes], advance: Advance) -> Iterator[str]:
    for index, line in enumerate(raw):
        advance(len(line))
        yield line.decode("utf-8-sig" if index == 0 else "utf-8", "replace")


def _read_file(
    path: Path, asked: LogReader | None, log: Log, reservoir: Reservoir, step: int, advance: Advance
) -> None:
    reader = asked
    for row in read_rows(path, advance):
        log.num_rows += 1
        if isinstance(row, Broken):
            log.unused[row.reason] += 1
            continue
        try:
            reader = reader or _detected(row)
            for rollout in _rollouts(row, reader):
                reservoir.add(rollout, rollout.step if rollout.step is not None else step)
        except Unusable as reason:
            log.unused[str(reason)] += 1
        else:
            log.num_used += 1
            if reader.name not in log.formats:
                log.formats.append(reader.name)


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
    cure = "check --reasoning" if log.no_trace else "check --format and --columns"
    place = files[0] if len(files) == 1 else f"{len(files)} files"
    found = "; ".join(reasons) or "no rows"
    return f"nothing to audit in {place}: {log.num_rows} rows read ({found}); {cure}"
