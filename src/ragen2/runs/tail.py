"""Follow the records of a run that another process is writing."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pydantic import ValidationError

from ragen2.runs.record import StepRecord

logger = logging.getLogger(__name__)


class RecordTail:
    """Reads ``steps.jsonl`` as it grows; a file that was put in its place is read from the start."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.records: list[StepRecord] = []
        self._inode = -1
        self._offset = 0
        """Bytes read so far, up to the end of a line: a line half written is left for the next time."""

    def read(self) -> bool:
        """Take in what has been written since; whether the records have changed."""
        try:
            with self.file.open("rb") as file:
                is_new = self._start_over(os.fstat(file.fileno()))
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._offset += len(whole) + len(newline)
        found = [record for line in whole.splitlines() if (record := self._parse(line)) is not None]
        self.records += found
        return is_new or bool(found)

    def _start_over(self, now: os.stat_result) -> bool:
        """Forget all when this is another file, or a shorter one: a resumed run rewrites its records."""
        if now.st_ino == self._inode and now.st_size >= self._offset:
            return False
        had_records = bool(self.records)
        self.records, self._inode, self._offset = [], now.st_ino, 0
        return had_records

    def _parse(self, line: bytes) -> StepRecord | None:
        """A damaged line is told and left out: whoever watches a run cannot mend it."""
        try:
            return StepRecord.model_validate_json(line)
        except ValidationError:
            start = line[:80].decode(errors="replace")
            logger.warning("%s has a damaged line: %r", self.file, start)
            return None
