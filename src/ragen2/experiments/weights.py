"""Make room: weights of runs that are finished, where only their records are wanted."""

from __future__ import annotations

from ragen2.runs.checkpoints import MANIFEST, STATE, list_checkpoints
from ragen2.trainer.jobs import Job, is_finished

KEPT = (STATE, MANIFEST)
"""What says that a run is finished, and what its last checkpoint held."""


def drop_weights(job: Job) -> None:
    """Remove the weights of a finished run; one that is not finished needs them and keeps them."""
    if not is_finished(job):
        return
    for folder in list_checkpoints(job.folder):
        for path in folder.iterdir():
            if path.is_file() and path.name not in KEPT:
                path.unlink()
