"""Writing files so that a crash leaves the old one or the new one, never half of either."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside, flush to disk, then move into place. Text is written as UTF-8."""
    partial = path.with_name(f".partial-{path.name}")
    try:
        with partial.open("wb") as file:
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
