"""Rows of a log file, one at a time: JSONL (plain or gzip), parquet or CSV of any size."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from ragen2.errors import ConfigError, DependencyError

LONGEST_LINE = 64 * 2**20
"""Bytes of a line that is still read: a log without line ends must not fill the memory."""
BATCH = 64
"""Rows of a parquet file in memory at once."""
SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".parquet", ".csv")
OWN_RECORDS = frozenset({"steps.jsonl"})
"""Lines of a run directory that are not rollouts."""

Advance = Callable[[int], None]
"""Told how many more bytes of the file have been read."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A row that is not even a row, and why."""

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
