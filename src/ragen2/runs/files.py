"""Writing files so that a crash leaves the old one or the new one, never half of either."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from ragen2.errors import RunError

PARTIAL = ".partial-"
"""How the names of files and folders begin that are not whole yet; a kill leaves them behind."""


def fill_folder(folder: Path, write: Callable[[Path], None], texts: Mapping[str, str]) -> None:
    """Let ``write`` fill a new folder, add small text files, and move it into place."""
    partial = folder.with_name(f"{PARTIAL}{folder.name}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        for name, text in texts.items():
            (partial / name).write_text(text, encoding="utf-8")
        flush_folder(partial)
        partial.replace(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RunError(f"{folder} cannot be written: {error.strerror or error}") from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside, flush to disk, then move into place; of two writers at once the last one wins.

    Text is written as UTF-8.
    """
    # What tells writers apart stands last, so that nobody takes half a .jsonl for one.
    partial = path.with_name(f"{PARTIAL}{path.name}-{uuid.uuid4().hex[:12]}")
    try:
        with partial.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Make what was written into ``folder`` survive a power cut: each file, then the folder."""
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
