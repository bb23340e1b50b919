"""Records for MLflow, wherever MLFLOW_TRACKING_URI points."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import ClassVar

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from ragen2.runs.loggers.base import LoggedRun, Logger, flat_settings

RUN_ID_TAG = "ragen2.run_id"
MOST_PARAMS = 100
MOST_METRICS = 1000
LONGEST_PARAM = 500
LONGEST_TAG = 5000
"""What MLflow takes in one call, and of one value."""


class MlflowLogger(Logger):
    """One MLflow run for a run and its continuations; notes are tags."""

    failures: ClassVar[tuple[type[Exception], ...]] = (MlflowException, OSError)

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        # A record that a server did not take is tried again at the next step: no need to wait long.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._client = MlflowClient()
        self._id = self._find(run) or self._create(run)

    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Numbers in one batch, texts as tags named after the step."""
        now = int(time.time() * 1000)
        metrics = [Metric(metric_name(name), value, now, step) for name, value in values.items()]
        tags = [
            RunTag(f"{name}.step_{step:06d}", text[:LONGEST_TAG]) for name, text in texts.items()
        ]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + MOST_METRICS])
        if tags:
            self._client.log_batch(self._id, tags=tags)

    def close(self, *, failed: bool) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")

    def _find(self, run: LoggedRun) -> str | None:
        """The run that this one continues."""
        experiment = self._client.get_experiment_by_name(run.project)
        if experiment is None:
            return None
        wanted = f"tags.`{RUN_ID_TAG}` = '{run.run_id}'"
        found = self._client.search_runs([experiment.experiment_id], wanted, max_results=1)
        if not found:
            return None
        known = str(found[0].info.run_id)
        self._client.update_run(known, status="RUNNING")
        return known

    def _create(self, run: LoggedRun) -> str:
        experiment = self._client.get_experiment_by_name(run.project)
        parent = experiment.experiment_id if experiment else None
        parent = parent or self._client.create_experiment(run.project)
        tags = {RUN_ID_TAG: run.run_id}
        created = str(self._client.create_run(parent, run_name=run.name, tags=tags).info.run_id)
        params = [Param(n, value[:LONGEST_PARAM]) for n, value in flat_settings(run.settings)]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(created, params=params[start : start + MOST_PARAMS])
        return created


def metric_name(name: str) -> str:
    """The name with what MLflow forbids spelled out: ``retrieval_accuracy_at_2``."""
    return name.replace("@", "_at_")
