"""Checkpoints: complete or absent, checked by hash before they are trusted."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Callable, Collection
from pathlib import Path

from ragen2.errors import RunError
from ragen2.reading import read_json
from ragen2.runs.files import MANIFEST, PARTIAL, build_folder, files_by_step, folder_hashes
from ragen2.runs.lock import refuse_moved

logger = logging.getLogger(__name__)

STATE = "trainer_state.json"
ASIDE = "set_aside-"
"""How the names of checkpoints begin that a run went back behind."""
SETTINGS = "settings.toml"
"""The run file of the steps that a checkpoint ends; the manifest has its hash."""


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
    refuse_moved(run)
    final = checkpoint_folder(run, step)

    def write_anew(folder: Path) -> None:
        write(folder)
        if final.exists():
            _remove(final)

    try:
        build_folder(final, write_anew)
    except OSError as error:
        raise RunError(
            f"checkpoint of step {step} could not be saved: {error.strerror or error}; mend that and "
            f"continue with --resume {run}, which goes on from the one before"
        ) from error
    # A later step's folder is a damaged one that this run fell back from; it does not count.
    until_now = [old for old in list_checkpoints(run) if checkpoint_step(old) <= step]
    for old in until_now[:-keep]:
        if checkpoint_step(old) not in protected:
            _remove(old)
    return final


def _remove(folder: Path) -> None:
    """Remove a checkpoint; from its first file on it has no name under which it could be taken for whole."""
    partial = folder.with_name(f"{PARTIAL}old-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        folder.replace(partial)
    except OSError as error:
        logger.warning("checkpoint %s could not be removed: %s", folder.name, error.strerror)
        return
    shutil.rmtree(partial, ignore_errors=True)


def set_aside_after(run: Path, step: int) -> None:
    """Give whole checkpoints after ``step`` another name: the run goes on from ``step``, without them.

    Damaged ones stay; they are never opened, and replaced when the run gets there.
    """
    for folder in list_checkpoints(run):
        if checkpoint_step(folder) > step and not find_damage(folder):
            aside = folder.with_name(f"{ASIDE}{folder.name}-{uuid.uuid4().hex[:8]}")
            folder.replace(aside)
            logger.warning("checkpoint %s is kept as %s and no longer used", folder.name, aside)


def list_checkpoints(run: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    return [folder for _, folder in files_by_step(run / "checkpoints")]


def checkpoint_step(folder: Path) -> int:
    """The step a checkpoint folder was saved after."""
    return int(folder.name.removeprefix("step_"))


def newest_checkpoint(
    run: Path, find_problem: Callable[[Path], str] = lambda folder: ""
) -> Path | None:
    """The newest checkpoint whose files are all intact and that has no other problem.

    Each one that is passed over is named in a warning.
    """
    for folder in reversed(list_checkpoints(run)):
        kind, problem = "is damaged", find_damage(folder)
        if not problem:
            kind, problem = "cannot be gone on from", find_problem(folder)
        if not problem:
            return folder
        logger.warning("checkpoint %s %s (%s); trying the one before", folder.name, kind, problem)
    return None


def find_damage(folder: Path) -> str:
    """What is wrong with a checkpoint, or an empty string."""
    try:
        expected = read_json(folder / MANIFEST)
        found = folder_hashes(folder)
    except (OSError, ValueError) as error:
        return f"manifest unreadable: {error}"
    if not isinstance(expected, dict) or not expected:
        return "manifest unreadable: it holds no hashes"
    for name, digest in expected.items():
        if name not in found:
            return f"{name} is missing"
        if found[name] != digest:
            return f"{name} has changed"
    return ""
