"""Records of public data: read them in any common format; keep held-out tasks apart."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Generic, TextIO, TypeVar

from pydantic import Field

from ragen2.envs.base import HELD_OUT_SEEDS
from ragen2.errors import ConfigError, DependencyError, EnvError, RagenError
from ragen2.reading import UNPACKERS, open_unpacked, parse_json, refuse_bomb
from ragen2.seeding import stream_key

Task = TypeVar("Task")
Record = dict[str, Any]
NamesOf = Callable[[Task], tuple[str, ...]]
"""What makes two tasks the same: first the name of their group, last their own."""

HeldOutData = Annotated[str, Field(description="records for held-out seeds; empty: a part of data")]
HeldOutRatio = Annotated[
    float,
    Field(gt=0.0, lt=1.0, description="part of data for held-out seeds, without held_out_data"),
]

LIST_FIELDS = ("data", "examples", "records", "rows", "instances")
"""Where a JSON file that is one object may keep its records."""
HALF_CHARACTER = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
"""One of the two codes by which JSON may write a character of higher planes."""
_HUB_ID = re.compile(
    r"(?P<name>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?(?::(?P<split>[\w.+%\[\]:-]+))?", re.ASCII
)


def read_records(source: str) -> Iterator[Record]:
    """The records of ``source``, in order, as plain dicts.

    ``source`` is a file (``.jsonl``, ``.json``, ``.csv``, ``.tsv``, each also with ``.gz``,
    ``.bz2`` or ``.xz`` behind it, or ``.parquet``), a folder of such files (read in order of name),
    or a hub data set ``owner/name[/config][:split]``, split ``train`` unless named. A JSON file
    holds a list of objects, an object with such a list under ``data`` (or another of
    ``LIST_FIELDS``), or an object that is itself the only record. A wrong source is reported at
    once, a bad record when it is reached.
    """
    path = Path(os.path.expanduser(source.removeprefix("hub:")))
    if source and not source.startswith("hub:"):
        if path.is_dir():
            return _read_folder(path)
        if path.is_file():
            return _reader_of(path)(path)
    hub = _HUB_ID.fullmatch(source.removeprefix("hub:"))
    if hub and (source.startswith("hub:") or not _format_of(path)):
        return _read_hub(hub["name"], hub["config"], hub["split"] or "train")
    raise ConfigError(
        f"data source {source!r} is neither a file, nor a folder, nor a hub id like "
        "owner/name:split; check the path"
    )


def require_fields(record: Record, fields: tuple[str, ...], source: str) -> None:
    """Raise ``EnvError`` when ``record`` lacks one of ``fields``, naming those it has."""
    missing = [field for field in fields if field not in record]
    if missing:
        raise EnvError(
            f"a record of {source} has no field {missing[0]!r}, only {', '.join(sorted(record))}; "
            "name the fields as the environment's page shows"
        )


@contextmanager
def record_errors(place: str) -> Iterator[None]:
    """Turn what a record of another form raises into an ``EnvError`` that names its ``place``."""
    try:
        yield
    except RagenError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise EnvError(
            f"{place} cannot be read ({type(error).__name__}: {_first_line(error)}); "
            "correct or remove it"
        ) from error


@dataclass(frozen=True, slots=True)
class TaskSet(Generic[Task]):
    """A finite set of tasks in two parts that share nothing."""

    training: tuple[Task, ...]
    held_out: tuple[Task, ...]

    def pick(self, seed: int) -> Task:
        """The task of ``seed``; consecutive seeds go through a part once before any repeats."""
        part = self.held_out if seed < HELD_OUT_SEEDS else self.training
        return part[seed % len(part)]


def require_training_data(data: str, held_out_data: str) -> None:
    """Raise ``ValueError`` where records are held out of nothing; for validators of settings."""
    if held_out_data and not data:
        raise ValueError("held_out_data needs data to train on; set data too")


def load_task_set(
    read: Callable[[str], Iterable[Task]],
    names_of: NamesOf[Task],
    *,
    data: str,
    held_out_data: str,
    held_out_ratio: float,
) -> TaskSet[Task]:
    """Tasks of record files in two parts; a task of both files is held out, whatever the order."""
    if held_out_data:
        return separate_tasks(read(data), read(held_out_data), names_of)
    return split_tasks(read(data), names_of, held_out_ratio)


def split_tasks(
    tasks: Iterable[Task], names_of: NamesOf[Task], held_out_ratio: float
) -> TaskSet[Task]:
    """Hold out ``held_out_ratio`` of the tasks' first names, at least one, drawn by a fixed hash.

    All tasks with one first name (say, of one original question) land in one part.
    """
    tasks = list(tasks)
    groups = sorted({names_of(task)[0] for task in tasks}, key=_rank)
    held_out = set(groups[: max(1, round(held_out_ratio * len(groups)))])
    is_held_out = [names_of(task)[0] in held_out for task in tasks]
    return separate_tasks(
        (task for task, held in zip(tasks, is_held_out, strict=True) if not held),
        (task for task, held in zip(tasks, is_held_out, strict=True) if held),
        names_of,
    )


def separate_tasks(
    training: Iterable[Task],
    held_out: Iterable[Task],
    names_of: NamesOf[Task],
) -> TaskSet[Task]:
    """Shuffle both parts by a fixed hash; training tasks with a held-out name are dropped."""
    kept = sorted(held_out, key=lambda task: _rank(names_of(task)[-1]))
    taken = {name for task in kept for name in names_of(task)}
    rest = sorted(
        (task for task in training if taken.isdisjoint(names_of(task))),
        key=lambda task: _rank(names_of(task)[-1]),
    )
    if not kept or not rest:
        raise EnvError(
            f"{len(rest)} tasks to train on and {len(kept)} held out; both need at least one, and "
            "none may be in both: give more data"
        )
    return TaskSet(tuple(rest), tuple(kept))


def _rank(name: str) -> int:
    return stream_key("task", name)


def _format_of(path: Path) -> str:
    """The format suffix under any compression suffix; empty when it is not one we read."""
    suffix = path.suffix.lower()
    if suffix in UNPACKERS:
        suffix = Path(path.stem).suffix.lower()
        return suffix if suffix in _TEXT_READERS else ""
    return suffix if suffix in _TEXT_READERS or suffix == ".parquet" else ""


def _reader_of(path: Path) -> Callable[[Path], Iterator[Record]]:
    suffix = _format_of(path)
    if suffix == ".parquet":
        return _read_parquet
    if suffix:
        return _read_text
    raise ConfigError(
        f"data file {path} has no known suffix; known: .parquet, {', '.join(_TEXT_READERS)}, "
        f"the latter also with {', '.join(UNPACKERS)}"
    )


def _read_folder(folder: Path) -> Iterator[Record]:
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and _format_of(path)]
    if not files:
        raise ConfigError(
            f"data folder {folder} holds no file of a known format; name a file in it"
        )
    return (record for path in files for record in _reader_of(path)(path))


def _read_text(path: Path) -> Iterator[Record]:
    try:
        # utf-8-sig: spreadsheet programs put a byte-order mark before the first field.
        with io.TextIOWrapper(open_unpacked(path), "utf-8-sig", newline="") as file:
            yield from _TEXT_READERS[_format_of(path)](path, file)
    except (OSError, UnicodeDecodeError) as error:
        raise EnvError(f"data file {path} cannot be read: {error}; fetch it again") from error


def _read_jsonl(path: Path, file: TextIO) -> Iterator[Record]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield _as_record(_parse(line, f"{path} line {number}"), f"{path} line {number}")


def _read_json(path: Path, file: TextIO) -> Iterator[Record]:
    content = _parse(file.read(), str(path))
    if isinstance(content, dict):
        held = [content[name] for name in LIST_FIELDS if isinstance(content.get(name), list)]
        content = held[0] if held else [content]
    if not isinstance(content, list):
        raise EnvError(f"{path} holds a JSON {_name(content)}; it must hold a list of objects")
    for number, item in enumerate(content, start=1):
        yield _as_record(item, f"{path} item {number}")


def _read_table(path: Path, file: TextIO, delimiter: str) -> Iterator[Record]:
    rows = csv.DictReader(file, delimiter=delimiter)
    try:
        for row in rows:
            if None in row or None in row.values():
                raise EnvError(
                    f"{path} line {rows.line_num} has not as many fields as the header line; "
                    "quote fields that hold the delimiter"
                )
            yield dict(row)
    except csv.Error as error:
        raise EnvError(
            f"{path} line {rows.line_num} is not a table row ({error}); save it as .jsonl"
        ) from error


def _read_csv(path: Path, file: TextIO) -> Iterator[Record]:
    return _read_table(path, file, ",")


def _read_tsv(path: Path, file: TextIO) -> Iterator[Record]:
    return _read_table(path, file, "\t")


_TEXT_READERS: dict[str, Callable[[Path, TextIO], Iterator[Record]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
}


def _read_parquet(path: Path) -> Iterator[Record]:
    pyarrow = _package("pyarrow", f"reading {path} needs pyarrow", "convert it to .jsonl")
    return _parquet_rows(path, pyarrow, _package("pyarrow.parquet", "", ""))


def _parquet_rows(path: Path, pyarrow: Any, parquet: Any) -> Iterator[Record]:
    try:
        with parquet.ParquetFile(path) as file:
            refuse_bomb(path, file.metadata)
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = _first_line(error)
        raise EnvError(f"data file {path} cannot be read: {reason}; fetch it again") from error


def _read_hub(name: str, config: str | None, split: str) -> Iterator[Record]:
    why = f"{name!r} is no file here, and reading it from the hub needs the package datasets"
    # Its older versions ask on a terminal whether to run a script that a data set brings.
    os.environ.setdefault("HF_DATASETS_TRUST_REMOTE_CODE", "0")
    datasets: Any = _package("datasets", why, "give a path")
    try:
        rows = datasets.load_dataset(name, config, split=split)
    except (
        Exception
    ) as error:  # the hub client raises errors of many packages; all mean "not loaded"
        raise EnvError(
            f"hub data set {name!r}, split {split!r}, cannot be loaded: {_first_line(error)}; "
            "check the id, the split and the network, or give a path"
        ) from error
    return (dict(row) for row in rows)


def _package(name: str, why: str, otherwise: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DependencyError(f"{why}; pip install 'ragen2[data]', or {otherwise}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _parse(text: str, place: str) -> Any:
    try:
        found = parse_json(text)
        if HALF_CHARACTER.search(text):  # of a pair it is whole; alone no file or model can hold it
            json.dumps(found, ensure_ascii=False).encode()
    except ValueError as error:
        raise EnvError(f"{place} is not JSON ({error}); correct or remove it") from error
    return found


def _as_record(item: Any, place: str) -> Record:
    if not isinstance(item, dict):
        raise EnvError(f"{place} is a JSON {_name(item)}, not an object; one record is one object")
    return item


def _name(item: Any) -> str:
    return {list: "list", str: "string", bool: "boolean", type(None): "null"}.get(
        type(item), "number"
    )
