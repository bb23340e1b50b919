"""The rows of a log's files, one at a time, whatever they are written in.

JSONL, CSV (also with ``;`` or tabs) and parquet are read row by row, so that a log may have any size; a JSON
document is read whole. Text is UTF-8, UTF-16 or UTF-32, plain or gzip.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, TextIO

from ragen2.audit.readers import Row, detect
from ragen2.errors import ConfigError, DependencyError
from ragen2.reading import open_file, parse_json, refuse_bomb, unpacked

LONGEST_LINE = 64 * 2**20
"""Characters of a line that is still read: a log without line ends must not fill the memory."""
LARGEST_JSON = 256 * 2**20
"""Characters of a JSON document, which is read whole."""
BATCH = 64
"""Rows of a parquet file in memory at once."""
TEXT = (".jsonl", ".ndjson", ".csv", ".tsv", ".json")
SUFFIXES = (*TEXT, *(f"{one}.gz" for one in TEXT), ".parquet")
DOCUMENTS = (".json", ".json.gz")
"""Taken out of a folder only where it has nothing else: most of them are settings."""
OWN_RECORDS = frozenset({"steps.jsonl"})
"""Lines of a run directory that are not rollouts."""
DELIMITERS = (",", ";", "\t")
NOT_TEXT = "not UTF-8 text; save it as UTF-8"
_ESCAPED = re.compile("[\udc80-\udcff]")
"""Bytes that are not UTF-8, as ``surrogateescape`` has them."""
Advance = Callable[[int], None]
"""Called with how many more bytes of the file have been read."""


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


def read_rows(path: Path, advance: Advance) -> Iterator[Row | Broken]:
    """Every row of one file, in order."""
    kind = Path(path.name.removesuffix(".gz")).suffix
    readers = {".parquet": _parquet, ".csv": _csv, ".tsv": _csv, ".json": _json}
    try:
        yield from readers.get(kind, _jsonl)(path, advance)
    except OSError as error:
        raise UnreadableFile(getattr(error, "strerror", None) or str(error)) from error
    except UnicodeError as error:
        raise UnreadableFile(f"text cannot be decoded: {error}") from error


def _in_folder(folder: Path) -> list[Path]:
    """A run keeps its rollouts in a known place; any other folder is read whole."""
    places = [folder / "rollouts", folder / "completions", folder]
    for suffixes in (tuple(one for one in SUFFIXES if one not in DOCUMENTS), DOCUMENTS):
        for place in places:
            files = _logs(place.iterdir(), suffixes) if place.is_dir() else []
            if files:
                return files
        if files := _logs(folder.rglob("*"), suffixes):
            return files
    raise ConfigError(f"{folder} holds no log ({', '.join(SUFFIXES)}); name the files to audit")


def _logs(paths: Iterator[Path], suffixes: tuple[str, ...]) -> list[Path]:
    chosen = [
        path
        for path in paths
        if path.name.endswith(suffixes) and path.name not in OWN_RECORDS and path.is_file()
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


@contextmanager
def _text(path: Path) -> Iterator[tuple[TextIO, IO[bytes]]]:
    """A file's text, and the bytes it comes from; bytes that are no text come as surrogates."""
    raw = open_file(path)
    with unpacked(path, raw) as file:
        encoding = json.detect_encoding(file.peek(4)[:4])
        yield io.TextIOWrapper(file, encoding, "surrogateescape", newline="\n"), raw


def _lines(path: Path, advance: Advance) -> Iterator[str]:
    """Lines with their ends; one longer than ``LONGEST_LINE`` comes in pieces without."""
    with _text(path) as (text, raw):
        done = 0
        while line := text.readline(LONGEST_LINE):
            yield line
            place = raw.tell()
            advance(place - done)
            done = place


def _jsonl(path: Path, advance: Advance) -> Iterator[Row | Broken]:
    is_within = False
    for line in _lines(path, advance):
        is_cut = len(line) == LONGEST_LINE and not line.endswith("\n")
        if is_cut and not is_within:
            yield Broken("line longer than 64 MB")
        elif not is_within and line.strip():
            yield _json_row(line)
        is_within = is_cut or (is_within and not line.endswith("\n"))


def _json_row(line: str) -> Row | Broken:
    if not line.isascii() and _ESCAPED.search(line):
        return Broken(NOT_TEXT)
    try:
        row = parse_json(line.lstrip("\ufeff"))
    except ValueError:
        return Broken("broken JSON")
    return _object(row)


def _object(row: Any) -> Row | Broken:
    return row if isinstance(row, dict) else Broken("not a JSON object")


def _json(path: Path, advance: Advance) -> Iterator[Row | Broken]:
    """Rows of a document: a list of them, an object that holds one list of them, or a single row."""
    with _text(path) as (file, _):
        text = file.read(LARGEST_JSON + 1)
    if len(text) > LARGEST_JSON:
        raise UnreadableFile("JSON document of more than 256 MB; write one row per line as .jsonl")
    if _ESCAPED.search(text):
        raise UnreadableFile(NOT_TEXT)
    try:
        rows = _listed(parse_json(text))
    except ValueError as error:
        if getattr(error, "msg", "") != "Extra data":
            raise UnreadableFile(f"broken JSON: {error}") from error
        yield from (_json_row(line) for line in text.split("\n") if line.strip())
    else:
        yield from map(_object, rows)
    advance(path.stat().st_size)


def _listed(document: Any) -> list[Any]:
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        raise UnreadableFile("not a JSON object or a list of them")
    if detect(document) is not None:
        return [document]
    lists = {
        name: value
        for name, value in document.items()
        if isinstance(value, list) and any(isinstance(one, dict) for one in value)
    }
    if len(lists) != 1:
        found = f"the lists {', '.join(lists)}" if lists else "no list of rows"
        raise UnreadableFile(f"a JSON object with {found}; write one row per line as .jsonl")
    return next(iter(lists.values()))


def _parquet(path: Path, advance: Advance) -> Iterator[Row | Broken]:
    try:
        pa, pq = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ModuleNotFoundError as error:
        raise DependencyError(
            f"{path} is parquet, which needs pyarrow; pip install 'ragen2[audit]'"
        ) from error
    size = path.stat().st_size
    try:
        with pq.ParquetFile(path) as file:
            refuse_bomb(path, file.metadata)
            total = max(1, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=BATCH):
                yield from batch.to_pylist()
                advance(size * batch.num_rows // total)
    except (
        pa.ArrowException,
        ValueError,
        OverflowError,
    ) as error:  # the last two: of single values
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UnreadableFile(f"not readable as parquet: {reason}") from error


@contextmanager
def _fields_up_to(size: int) -> Iterator[None]:
    """The csv module has one limit for the whole process; others find theirs again."""
    before = csv.field_size_limit(size)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _csv(path: Path, advance: Advance) -> Iterator[Row | Broken]:
    lines = _lines(path, advance)
    header = next(lines, "")
    rows = csv.DictReader(chain([header], lines), delimiter=_delimiter(header))
    while True:
        try:
            with _fields_up_to(LONGEST_LINE):
                row = next(rows, None)
        except csv.Error:
            yield Broken("broken CSV")
            continue
        if row is None:
            return
        if any(isinstance(one, str) and _ESCAPED.search(one) for one in row.values()):
            yield Broken(NOT_TEXT)
        else:
            yield {key: value for key, value in row.items() if key is not None}


def _delimiter(header: str) -> str:
    """What separates the names of the columns; a comma where there is nothing to separate."""
    bare = re.sub(r'"[^"]*"', "", header)
    return max(DELIMITERS, key=bare.count)
