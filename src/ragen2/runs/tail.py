"""Reading steps.jsonl while it is written: only what was added, and all again when it was rewound."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from ragen2.errors import RunError
from ragen2.runs.record import StepRecord


class RecordTail:
    """The records of one file, whether it is there yet or not."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._forget()

    def records(self) -> tuple[StepRecord, ...]:
        """All whole records there are now.

        A line that is still being written is left for the next call. A file that is not the one read
        before (a resumed run rewinds by replacing it) is read from its start.
        """
        try:
            with self.file.open("rb") as file:
                fresh = self._fresh(file)
                if fresh is None:
                    self._forget()
                    fresh = self._fresh(file) or b""
        except FileNotFoundError:
            self._forget()
            return ()
        except OSError as error:
            raise RunError(f"{self.file} cannot be read: {error.strerror or error}") from error
        self._take(fresh)
        return tuple(self._records)

    def _forget(self) -> None:
        self._records: list[StepRecord] = []
        self._inode = -1
        self._end = 0
        self._last_line = b""
        """The line that ends at ``_end``: while it stands there, what is before it was not changed."""

    def _fresh(self, file: BinaryIO) -> bytes | None:
        """What stands after the part that is known; None when that part is no longer there."""
        found = os.fstat(file.fileno())
        if self._inode not in (-1, found.st_ino) or found.st_size < self._end:
            return None
        self._inode = found.st_ino
        file.seek(self._end - len(self._last_line))
        data = file.read()
        if not data.startswith(self._last_line):
            return None
        return data[len(self._last_line) :]

    def _take(self, fresh: bytes) -> None:
        """Add whole lines; a bad one may be the last, where a crash cut it, and nowhere else."""
        lines = fresh.split(b"\n")[:-1]
        for index, line in enumerate(lines):
            try:
                record = StepRecord.model_validate_json(line)
            except ValidationError as error:
                if index == len(lines) - 1:
                    return
                number = len(self._records) + 1
                start = line[:80].decode(errors="replace")
                raise RunError(f"{self.file} line {number} is damaged: {start!r}") from error
            self._records.append(record)
            self._last_line = line + b"\n"
            self._end += len(self._last_line)
