"""Checkpoints: complete or absent, checked by hash before they are trusted."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from ragen2.errors import RunError
from ragen2.runs.files import PARTIAL, flush_folder, write_atomically

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
STATE = "trainer_state.json"


def checkpoint_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of ``step`` lies."""
    return run / "checkpoints" / f"step_{step:06d}"


def save_checkpoint(
    run: Path,
    step: int,
    write: Callable[[Path], None],
    *,
    keep: int,
    protected: Collection[int] = (),
) -> Path:
    """Let ``write`` fill a folder, then make it the checkpoint of ``step`` in one move.

    Older checkpoints beyond ``keep`` are removed afterwards, but for those of ``protected`` steps. When
    anything fails (a full disk, say) the half-written folder is removed and every older checkpoint is
    still there.
    """
    final = checkpoint_folder(run, step)
    partial = final.with_name(f"{PARTIAL}{final.name}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        # The manifest comes last and the folder gets its name when all of it is on disk: a checkpoint that
        # can be seen is whole, and one whose bytes change later fails its hashes.
        write_atomically(partial / MANIFEST, json.dumps(_hashes(partial), indent=1, sort_keys=True))
        flush_folder(partial)
        if final.exists():
            shutil.rmtree(final)
        partial.replace(final)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RunError(
            f"checkpoint of step {step} could not be saved: {error.strerror or error}; earlier "
            f"checkpoints are intact, make room and continue with --resume {run}"
        ) from error
    # A later step's folder can only be a damaged one that this run fell back from; it does not count.
    until_now = [old for old in list_checkpoints(run) if checkpoint_step(old) <= step]
    for old in until_now[:-keep]:
        if checkpoint_step(old) not in protected:
            shutil.rmtree(old)
    return final


def list_checkpoints(run: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    return sorted((run / "checkpoints").glob("step_*"))


def checkpoint_step(folder: Path) -> int:
    """The step a checkpoint folder was saved after."""
    return int(folder.name.removeprefix("step_"))


def newest_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint whose files are all intact; a damaged one is skipped with a warning."""
    for folder in reversed(list_checkpoints(run)):
        problem = find_damage(folder)
        if not problem:
            return folder
        logger.warning("checkpoint %s is damaged (%s); trying the one before", folder.name, problem)
    return None


def find_damage(folder: Path) -> str:
    """What is wrong with a checkpoint, or an empty string."""
    try:
        expected = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        found = _hashes(folder)
    except (OSError, ValueError) as error:
        return f"manifest unreadable: {error}"
    if not isinstance(expected, dict):
        return "manifest unreadable: it holds no hashes"
    for name, digest in expected.items():
        if name not in found:
            return f"{name} is missing"
        if found[name] != digest:
            return f"{name} has changed"
    return ""


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    digests = {}
    for path in files:
        with path.open("rb") as file:
            digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests
