"""Writing files so that a crash leaves the old one or the new one, never half of either."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from ragen2.errors import RunError
from ragen2.reading import open_own
from ragen2.runs.lock import try_lock

MANIFEST = "manifest.json"
"""The file of a folder that holds the hashes of all its others."""
PARTIAL = ".partial-"
"""How the names of files and folders begin that are not whole yet; a kill leaves them behind."""


def files_by_step(folder: Path, suffix: str = "") -> list[tuple[int, Path]]:
    """What a folder holds of each step, earliest first: ``step_000012`` and the suffix.

    Other names were given by somebody else, and are left alone. A folder that is there and cannot be listed
    (no permission, a link to a disk that is not mounted) is an error: it is not an empty one.
    """
    if not os.path.lexists(folder):
        return []
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be listed: {error.strerror}; mend it first") from error
    found = []
    for name in names:
        number = name.removeprefix("step_").removesuffix(suffix)
        if name == f"step_{number}{suffix}" and number.isascii() and number.isdecimal():
            found.append((int(number), folder / name))
    return sorted(found)


def fill_folder(folder: Path, write: Callable[[Path], None], texts: Mapping[str, str]) -> None:
    """Let ``write`` fill a new folder, add small text files, and move it into place."""

    def write_all(partial: Path) -> None:
        write(partial)
        for name, text in texts.items():
            (partial / name).write_text(text, encoding="utf-8")

    try:
        build_folder(folder, write_all)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror or error}") from error


def build_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a folder beside, add its manifest, and move it into place, or leave nothing."""
    partial = folder.with_name(f"{PARTIAL}{folder.name}")
    partial.mkdir(parents=True, exist_ok=True)
    handle = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _take(partial, handle)
        _build(folder, partial, write)
    finally:
        os.close(handle)


def _take(partial: Path, handle: int) -> None:
    """Let nobody else fill the folder as long as ``handle`` is open; what a kill left in it is removed."""
    if not try_lock(handle):
        raise OSError(errno.EBUSY, "another process is writing it", str(partial))
    for left in partial.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


def _build(folder: Path, partial: Path, write: Callable[[Path], None]) -> None:
    try:
        write(partial)
        # The manifest comes last and the folder gets its name when all of it is on disk: a folder that can
        # be seen is whole, and one whose bytes change later fails its hashes.
        hashes = json.dumps(folder_hashes(partial), indent=1, sort_keys=True)
        write_atomically(partial / MANIFEST, hashes)
        flush_folder(partial)
        partial.replace(folder)
        _flush(folder.parent)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def folder_hashes(folder: Path) -> dict[str, str]:
    """The hash of every file but the manifest."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    return {path.name: file_hash(path) for path in files}


def file_hash(path: Path) -> str:
    """SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside, flush to disk, then move into place; of two writers at once the last one wins.

    Text is written as UTF-8.
    """
    if not path.name:
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
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


def append_line(path: Path, line: str) -> None:
    """Add a line; it is on disk when this returns. A last line that a crash cut short is ended first."""
    with os.fdopen(open_own(path, os.O_APPEND), "r+b") as file:
        start = b""
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            start = b"" if file.read(1) == b"\n" else b"\n"
        file.write(start + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make what was written into ``folder`` survive a power cut: each file, then the folder."""
    for path in [*folder.iterdir(), folder]:
        _flush(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_root() -> Path:
    """Where generated data is kept: ``RAGEN2_CACHE``, or ``ragen2`` in the user's cache folder."""
    named = os.environ.get("RAGEN2_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragen2"
