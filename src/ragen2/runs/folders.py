"""Model folders that appear whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from ragen2.errors import RunError
from ragen2.runs.files import PARTIAL, flush_folder


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
