"""What every logger is, and opening the loggers that a run asks for without letting their failures end it."""

from __future__ import annotations

import importlib
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ragen2.errors import DependencyError, RunError
from ragen2.reading import read_text
from ragen2.runs.files import write_atomically
from ragen2.runs.record import Sink, StepRecord

FOLDER = "logs"
"""Folder of a run directory for what loggers keep there."""
RUN_ID = "run_id"
logger = logging.getLogger(__name__)
LoggerName = Literal["tensorboard", "wandb", "trackio", "mlflow"]
LOGGERS: Mapping[LoggerName, str] = {
    "tensorboard": "TensorBoardLogger",
    "wandb": "WandbLogger",
    "trackio": "TrackioLogger",
    "mlflow": "MlflowLogger",
}
"""Class of each logger, in the module of the logger's name."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """What a logger learns about the run."""

    directory: Path
    project: str
    """What runs are filed under, where the package has such a thing."""
    settings: Mapping[str, Any]
    run_id: str
    """The same for a run and for its continuations, different for every other run."""
    next_step: int
    """The step that comes next. What an earlier log has of it and of later ones is void."""

    @classmethod
    def of(
        cls, directory: Path, project: str, settings: Mapping[str, Any], next_step: int
    ) -> LoggedRun:
        """A run by its directory, which remembers the id from the first time on."""
        file = directory / FOLDER / RUN_ID
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            write_atomically(file, uuid.uuid4().hex)
        try:
            return cls(directory, project, settings, read_text(file), next_step)
        except (OSError, ValueError) as error:
            raise RunError(f"{file} cannot be read: {error}; remove it") from error

    @property
    def name(self) -> str:
        """What a person calls the run: the name of its directory."""
        return self.directory.resolve().name

    @property
    def folder(self) -> Path:
        """Where a logger may keep files."""
        return self.directory / FOLDER

    @property
    def is_continued(self) -> bool:
        """Some of it was logged before."""
        return self.next_step > 0


class Logger(ABC):
    """A sink that writes records with some package. The package is imported by its module."""

    failures: ClassVar[tuple[type[Exception], ...]]
    """What the package raises when it cannot start or cannot take a record."""

    def __init__(self, run: LoggedRun) -> None:
        """Open the log of ``run``, or go on with it."""
        self.run = run
        self._regime: str | None = None

    def record(self, record: StepRecord) -> None:
        """Write a record's numbers, its note, and its regime where that has changed."""
        texts = {"note": record.note} if record.note else {}
        if record.regime and record.regime != self._regime:
            texts["regime"] = record.regime.replace("_", " ")
        self.write(record.step, numbers(record), texts)
        self._regime = record.regime or self._regime

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Write what one step gave; when this returns, a kill of the process loses little or nothing."""

    @abstractmethod
    def close(self, *, failed: bool) -> None:
        """Write what is still held back. ``failed``: the run was ended by an error or at once."""


def numbers(record: StepRecord) -> dict[str, float]:
    """A record's metrics under their own names, and its timings as ``seconds/PHASE``."""
    timings = {f"seconds/{phase}": value for phase, value in record.seconds.items()}
    return {**record.metrics, **timings}


def flat_settings(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their paths, ``filter.mass``; a list of tables by its numbers."""
    for name, value in settings.items():
        path = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{path}.")
        elif isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
            yield from flat_settings({str(i): one for i, one in enumerate(value)}, f"{path}.")
        else:
            yield path, str(value)


def require_loggers(names: Sequence[LoggerName]) -> None:
    """Raise when a package is missing: worth knowing before a model is opened."""
    for name in names:
        _find(name)


@contextmanager
def open_loggers(names: Sequence[LoggerName], run: LoggedRun) -> Iterator[list[Sink]]:
    """The loggers of a run; however the block ends, each is closed.

    A logger that cannot start is an error before anything is trained. One that fails later is a warning,
    and it is tried again: it must not end a run.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(_RetryingLogger(name, _open(name, run))) for name in names]


class _RetryingLogger:
    """A logger whose failures cost no run: what it could not take is kept and tried again."""

    def __init__(self, name: LoggerName, inner: Logger) -> None:
        self.name = name
        self.inner = inner
        self.waiting: list[StepRecord] = []

    def record(self, record: StepRecord) -> None:
        """Pass on all that waits, oldest first."""
        is_first = not self.waiting
        self.waiting.append(record)
        problem = self._pass_on()
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
        """Try once more, then close; a warning says what is lost."""
        try:
            problem = self._pass_on()
        finally:
            self._close(failed=error is not None)
        if problem:
            steps = f"{len(self.waiting)} steps from step {self.waiting[0].step} on"
            logger.warning("%s lacks %s (%s); steps.jsonl has them", self.name, steps, problem)

    def _close(self, *, failed: bool) -> None:
        try:
            self.inner.close(failed=failed)
        except self.inner.failures as error:
            logger.warning("%s could not be closed: %s", self.name, _one_line(error))

    def _pass_on(self) -> str:
        """What went wrong, or an empty text once nothing waits any more."""
        try:
            while self.waiting:
                self.inner.record(self.waiting[0])
                self.waiting.pop(0)
        except self.inner.failures as error:
            return _one_line(error)
        return ""


def _open(name: LoggerName, run: LoggedRun) -> Logger:
    cls = _find(name)
    try:
        return cls(run)
    except cls.failures as error:
        raise RunError(
            f"logging.to: {name} cannot start: {_one_line(error)}; "
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


def _one_line(error: Exception) -> str:
    """An error in one line."""
    return " ".join(str(error).split()) or type(error).__name__
