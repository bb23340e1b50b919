"""What ``ragen2 eval --out`` leaves on disk: a run directory of one step that other verbs read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ragen2.backends.server_journal import JOURNAL_FILE
from ragen2.errors import RunError
from ragen2.runs.files import write_atomically
from ragen2.runs.record import StepRecord
from ragen2.runs.store import RunDirectory
from ragen2.runs.trajectories import group_lines, images_of

if TYPE_CHECKING:
    from ragen2.trainer.assess import Verdict

EVALUATED_FILE = "evaluation.jsonl"
"""Held-out tasks, one trajectory a line; ``rollouts/`` has the groups that were cross-scored."""
STEP = 0


def start_run(out: Path, run_toml: str) -> RunDirectory:
    """A new directory, or that of an evaluation of a served model, which is gone on with.

    Settings may have changed since: completions are found by all that decides them.
    """
    if not (out / JOURNAL_FILE).is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunError(f"--out {out} exists and is not empty; choose another folder")
        return RunDirectory.create(out, run_toml)
    try:
        write_atomically(out / "run.toml", run_toml)
    except OSError as error:
        raise RunError(f"--out {out} cannot be written: {error.strerror}") from error
    return RunDirectory(out)


def finish_run(run: RunDirectory, verdict: Verdict) -> None:
    """Trajectories and numbers, in place of those of an earlier evaluation there."""
    run.rewind(STEP - 1)
    run.save_rollouts(STEP, verdict.groups)
    run.images.save(STEP, (image for group in verdict.evaluated for image in images_of(group)))
    lines = [line for group in verdict.evaluated for line in group_lines(group, STEP)]
    file = run.path / EVALUATED_FILE
    try:
        write_atomically(file, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror}") from error
    record = StepRecord(
        step=STEP, metrics=verdict.metrics, absent=verdict.absent, regime=verdict.regime
    )
    run.append(record)
