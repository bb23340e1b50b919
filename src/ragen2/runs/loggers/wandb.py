"""Records for Weights & Biases, online or offline as its own settings say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import wandb

from ragen2.runs.loggers.base import LoggedRun, Logger

STEP = "step"


class WandbLogger(Logger):
    """Charts go over ``step``, not over the count of calls: a resumed run goes back a little."""

    failures: ClassVar[tuple[type[Exception], ...]] = (wandb.Error, OSError)

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        run.folder.mkdir(exist_ok=True)
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.run_id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.settings),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """One row of the history; texts are columns of it."""
        self._run.log({STEP: step, **values, **texts})

    def close(self, *, failed: bool) -> None:
        """Wait until everything is written or sent."""
        self._run.finish(exit_code=1 if failed else 0)
