"""Opening the loggers that a run asks for, and keeping their troubles away from the run."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, Self

from ragen2.errors import DependencyError, RunError
from ragen2.runs.loggers.base import LoggedRun, Logger
from ragen2.runs.record import Sink, StepRecord

logger = logging.getLogger(__name__)

LoggerName = Literal["tensorboard", "wandb", "trackio", "mlflow"]
LOGGERS: Mapping[LoggerName, str] = {
    "tensorboard": "TensorBoardLogger",
    "wandb": "WandbLogger",
    "trackio": "TrackioLogger",
    "mlflow": "MlflowLogger",
}
"""Class of each logger, in the module of the logger's name."""


def require_loggers(names: Sequence[LoggerName]) -> None:
    """Raise when a package is missing: worth knowing before a model is opened."""
    for name in names:
        _find(name)


@contextmanager
def open_loggers(names: Sequence[LoggerName], run: LoggedRun) -> Iterator[list[Sink]]:
    """The loggers of a run; however the block ends, each is closed.

    A logger that cannot start is an error, told before anything is trained. One that fails later is
    told and tried again: it must not end a run.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(_Patient(name, _open(name, run))) for name in names]


class _Patient:
    """A logger whose failures cost no run: what it could not take is kept and tried again."""

    def __init__(self, name: LoggerName, inner: Logger) -> None:
        self.name = name
        self.inner = inner
        self.waiting: list[StepRecord] = []

    def record(self, record: StepRecord) -> None:
        """Hand on all that waits, oldest first."""
        is_first = not self.waiting
        self.waiting.append(record)
        problem = self._hand_on()
        if problem and is_first:
            logger.warning(
                "%s did not take step %d (%s); the run goes on, and later steps try again",
                self.name,
                record.step,
                problem,
            )

    def phase(self, name: str) -> None:
        """Loggers show records only."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Try once more, then close; what is lost is told."""
        try:
            problem = self._hand_on()
        finally:
            self._close(failed=error is not None)
        if problem:
            steps = f"{len(self.waiting)} steps from step {self.waiting[0].step} on"
            logger.warning("%s lacks %s (%s); steps.jsonl has them", self.name, steps, problem)

    def _close(self, *, failed: bool) -> None:
        try:
            self.inner.close(failed=failed)
        except self.inner.failures as error:
            logger.warning("%s could not be closed: %s", self.name, _told(error))

    def _hand_on(self) -> str:
        """What went wrong, or an empty text once nothing waits any more."""
        try:
            while self.waiting:
                self.inner.record(self.waiting[0])
                self.waiting.pop(0)
        except self.inner.failures as error:
            return _told(error)
        return ""


def _open(name: LoggerName, run: LoggedRun) -> Logger:
    cls = _find(name)
    try:
        return cls(run)
    except cls.failures as error:
        raise RunError(
            f"logging.to: {name} cannot start: {_told(error)}; "
            f"cure that, then go on with --resume {run.directory}"
        ) from error


def _find(name: LoggerName) -> type[Logger]:
    try:
        module = importlib.import_module(f"ragen2.runs.loggers.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ragen2"):
            raise
        missing = (error.name or name).partition(".")[0]
        raise DependencyError(
            f"logging.to asks for {name}, but {missing} is not installed; "
            f"pip install 'ragen2[{name}]' or take {name} out of logging.to"
        ) from error
    found: type[Logger] = getattr(module, LOGGERS[name])
    return found


def _told(error: Exception) -> str:
    """An error in one line."""
    return " ".join(str(error).split()) or type(error).__name__
