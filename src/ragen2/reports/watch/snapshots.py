"""Run directories as they are now, and a page's data of them: built once per change of the files."""

from __future__ import annotations

import gzip
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ragen2.errors import RunError
from ragen2.reports.load import AUDIT, RUN_FILE, Run, load, load_audit, read_settings
from ragen2.reports.page import script_json
from ragen2.runs.files import PARTIAL
from ragen2.runs.store import RecordTail

logger = logging.getLogger(__name__)

POLL_S = 0.5
"""Seconds between a page's questions: with the time to build, a step shows well within two."""
RETRY_S = 2.0
"""Seconds after which files that could not be read are tried again."""
WATCHED = (RUN_FILE, "steps.jsonl", "sessions.jsonl", "checkpoints", AUDIT)
"""What changes when there is something new: a step's rollouts and scores are there before its record."""
Data = dict[str, Any]
Blocks = Mapping[str, Callable[[], Any]]
"""Heavy parts by name, each made when it is asked for."""


class Followed:
    """Directories that are read again and again; of each only what was added."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._tails = {path: RecordTail(path / "steps.jsonl") for path in paths}
        for path in paths:
            check(path)

    def runs(self) -> list[Run]:
        """Each as it is now; one that is not there yet is a run without settings and records."""
        return [self._read(path, tail) for path, tail in self._tails.items()]

    def _read(self, path: Path, tail: RecordTail) -> Run:
        if (path / RUN_FILE).is_file():
            return Run(path, read_settings(path / RUN_FILE), tail.records())
        if (path / AUDIT).is_file():
            return load_audit(path)
        return Run(path, {}, ())


def is_there(path: Path) -> bool:
    """Whether there is a run or an audit to show; if not, one may still come."""
    return (path / RUN_FILE).is_file() or (path / AUDIT).is_file()


def check(path: Path) -> None:
    """Raise when ``path`` is something else already, so that no run can come to be there."""
    if not path.exists() or is_there(path):
        return
    if not path.is_dir() or not all(_is_being_made(one.name) for one in path.iterdir()):
        load(path)  # says what is wrong


@dataclass(frozen=True)
class Snapshot:
    """The data at one state of the files, ready to be sent."""

    since: str
    packed: bytes
    """The data as gzipped JSON."""
    blocks: Blocks
    _made: dict[str, bytes] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def block(self, name: str) -> bytes | None:
        """A block as gzipped JSON, made once; None when there is none of that name, or no longer."""
        if name not in self.blocks:
            return None
        with self._lock:
            if name not in self._made:
                try:
                    self._made[name] = pack(self.blocks[name]())
                except (RunError, OSError) as error:
                    logger.warning("%s", error)
                    return None
            return self._made[name]


class Snapshots:
    """The newest snapshot of some directories."""

    def __init__(self, paths: Sequence[Path], build: Callable[[], tuple[Data, Blocks]]) -> None:
        self._paths = tuple(paths)
        self._build = build
        self._lock = threading.Lock()
        self._state: object = None
        self._count = 0
        self._newest: Snapshot | None = None
        self._data: Data | None = None
        self._problem = ""
        self._failed_at = 0.0
        # Tokens of another server's life must not pass for this one's.
        self._life = os.urandom(6).hex()

    def newest(self) -> Snapshot:
        """The data of the files as they are; built only if they have changed since the last call."""
        with self._lock:
            state = file_state(self._paths)
            is_retry = self._problem and time.monotonic() - self._failed_at > RETRY_S
            if self._newest is None or state != self._state or is_retry:
                self._newest = self._next()
                # Of before the build: what changed during it is seen by the next call.
                self._state = state
            return self._newest

    def _next(self) -> Snapshot:
        """The next snapshot; where files cannot be read, the last good one and a note that says so.

        They are read again a little later: a run that is being rewound is between two states.
        """
        try:
            data, blocks = self._build()
        except (RunError, OSError) as error:
            if self._newest is None or self._data is None:
                raise
            self._failed_at = time.monotonic()
            if str(error) == self._problem:
                return self._newest
            self._problem = str(error)
            note = f"Not up to date: {error}"
            data = {**self._data, "notes": [*self._data["notes"], note]}
            return self._named(data, self._newest.blocks)
        self._problem = ""
        self._data = data
        return self._named(data, blocks)

    def _named(self, data: Data, blocks: Blocks) -> Snapshot:
        self._count += 1
        since = f"{self._life}-{self._count}"
        return Snapshot(since, pack({**data, "live": {"since": since, "every_s": POLL_S}}), blocks)


def file_state(paths: Sequence[Path]) -> tuple[object, ...]:
    """Something that differs whenever the watched files do."""
    return tuple(_state(path / name) for path in paths for name in WATCHED)


def pack(value: Any) -> bytes:
    """JSON for the page, gzipped: quick rather than small, since it seldom leaves the machine."""
    return gzip.compress(script_json(value).encode(), compresslevel=1, mtime=0)


def _is_being_made(name: str) -> bool:
    """Whether a run directory may hold this before its settings are there."""
    return name == "rollouts" or name.startswith(f"{PARTIAL}{RUN_FILE}")


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
