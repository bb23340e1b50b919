"""The run directory: run.toml, steps.jsonl, rollouts/, images/, scores/, checkpoints/, report.html.

Each start of a run is a line of sessions.jsonl, with the code and the machine it ran on.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, ValidationError

from ragen2.errors import RunError
from ragen2.reading import LARGEST, open_file, read_bytes, too_large
from ragen2.runs.checkpoints import set_aside_after
from ragen2.runs.files import (
    PARTIAL,
    append_line,
    file_hash,
    files_by_step,
    write_atomically,
)
from ragen2.runs.lock import LOCK, refuse_moved
from ragen2.runs.record import StepRecord, records_digest
from ragen2.runs.scores import ScopeScores, ScoreRecord, list_scores, scores_file, write_scores
from ragen2.runs.trajectories import ImageStore, group_lines, images_of
from ragen2.types import Group

logger = logging.getLogger(__name__)


class RunDirectory:
    """One run on disk. Create a new one, or open one that is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.images = ImageStore(path)

    @classmethod
    def create(cls, path: Path, run_toml: str) -> RunDirectory:
        """A new directory; one that holds anything already is never touched."""
        cls.refuse_taken(path)
        try:
            (path / "rollouts").mkdir(parents=True)
            write_atomically(path / "run.toml", run_toml)
        except OSError as error:
            raise RunError(
                f"run directory {path} cannot be written: {error.strerror}; choose another with --out"
            ) from error
        return cls(path)

    @staticmethod
    def refuse_taken(path: Path) -> None:
        """Raise when ``path`` cannot become a new run because something is there; a lock is nothing."""
        if path.exists() and (not path.is_dir() or any(p.name != LOCK for p in path.iterdir())):
            raise RunError(
                f"run directory {path} exists and is not empty; choose another with --out, "
                f"or continue it with --resume {path}"
            )

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run."""
        if not (path / "run.toml").is_file():
            raise RunError(f"{path} is not a run directory (no run.toml in it); check the path")
        return cls(path)

    @property
    def steps_file(self) -> Path:
        """One record per line."""
        return self.path / "steps.jsonl"

    def append(self, record: StepRecord) -> None:
        """Add one record; it is on disk when this returns."""
        refuse_moved(self.path)
        try:
            append_line(self.steps_file, record.model_dump_json())
        except OSError as error:
            raise RunError(f"{self.steps_file} cannot be written: {error.strerror}") from error

    def records(self) -> list[StepRecord]:
        """All whole records; a last line that a crash cut short, before its end, is left out."""
        *lines, rest = self._lines()
        found = list(_records_of(lines, self.steps_file, known=0))
        with suppress(ValidationError):
            found.append(StepRecord.model_validate_json(rest))
        return found

    def _lines(self) -> list[bytes]:
        """Those of the records; what stands after the last newline is the last of them."""
        try:
            return read_bytes(self.steps_file).split(b"\n")
        except FileNotFoundError:
            return [b""]
        except OSError as error:
            raise RunError(f"{self.steps_file} cannot be read: {error.strerror}") from error

    def sound_records(self) -> tuple[list[StepRecord], str]:
        """The records before the first line that cannot be one, and what is wrong with that line.

        A record that is there twice, as two writers of an older version could leave it, counts once.
        """
        found: list[StepRecord] = []
        lines = self._lines()
        whole = [*lines[:-1], *filter(None, lines[-1:])]
        for number, line in enumerate(whole, 1):
            try:
                record = StepRecord.model_validate_json(line)
            except ValidationError:
                is_torn = number == len(lines)  # the last one, without its newline
                return found, "" if is_torn else f"line {number} of steps.jsonl is damaged"
            if found and record.step <= found[-1].step:
                if records_digest([record]) == records_digest(found[-1:]):
                    continue
                return (
                    found,
                    f"line {number} of steps.jsonl is another record of step {record.step}",
                )
            found.append(record)
        return found, ""

    def rewind(self, step: int) -> None:
        """Forget everything after ``step``, so that it can be done again.

        What is kept and is no longer as it was recorded is named in a warning.
        """
        # Records first: a kill in between leaves files of steps without a record, which nothing reads and
        # which are written anew when the step is done again.
        kept = [record for record in self.sound_records()[0] if record.step <= step]
        lines = [record.model_dump_json() for record in kept]
        try:
            write_atomically(self.steps_file, "".join(f"{line}\n" for line in lines))
            self._remove_after(step)
            set_aside_after(self.path, step)
            if changed := self.changed_files(kept):
                logger.warning("%s", changed)
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be brought back to step {step}: {error.strerror or error}"
            ) from error

    def _remove_after(self, step: int) -> None:
        for played, file in files_by_step(self.path / "rollouts", ".jsonl"):
            if played > step:
                file.unlink()
        for scored, file in list_scores(self.path):
            if scored > step:
                file.unlink()
        self.images.rewind(step)
        self._clear_partials()

    def save_rollouts(
        self, step: int, groups: Iterable[Group], *, knows_success: bool = True
    ) -> None:
        """One trajectory per line, in one file per step; the images that they name stand beside them.

        ``solved`` is null where success is not known.
        """
        refuse_moved(self.path)
        played = list(groups)
        self.images.save(step, (image for group in played for image in images_of(group)))
        lines = [line for group in played for line in group_lines(group, step, knows_success)]
        path = self._files(step)["rollouts"]
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, "".join(f"{line}\n" for line in lines))
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error

    def save_scores(self, step: int, scopes: Iterable[ScopeScores]) -> None:
        """The score matrices of a step, in one file; nothing when there are none."""
        refuse_moved(self.path)
        found = list(scopes)
        self.images.save(step, (image for scope in found for image in scope.images))
        if found:
            write_scores(self.path, ScoreRecord(step=step, scopes=found))

    def digests(self, step: int) -> dict[str, str]:
        """What ``StepRecord.files`` holds of a step whose files are written."""
        found = self._files(step).items()
        return {kind: file_hash(path) for kind, path in found if path.is_file()}

    def changed_files(self, records: Iterable[StepRecord]) -> str:
        """One line about files that are no longer what these records say; empty where all are."""
        changed = [
            f"{path} {'has changed' if path.is_file() else 'is missing'}"
            for record in records
            for kind, path in self._files(record.step).items()
            if kind in record.files and not (path.is_file() and _has_hash(path, record.files[kind]))
        ]
        more = f", and {len(changed) - 1} more files" if len(changed) > 1 else ""
        return f"{changed[0]} since its step was recorded{more}; put it back" if changed else ""

    def missing_records(self, records: Sequence[StepRecord]) -> str:
        """One line if the run has got further than these, all of its records; empty if it has not."""
        last = records[-1].step if records else 0
        saved = [step for step, _ in files_by_step(self.path / "checkpoints")]
        played = [step - 1 for step, _ in files_by_step(self.path / "rollouts", ".jsonl")]
        reached = max([*saved, *played], default=0)  # rollouts come before their step's record
        if reached <= last:
            return ""
        ends = f"ends with step {last}" if records else "holds no record"
        return (
            f"{self.steps_file} {ends}, but the run reached step {reached}: records are missing; put the "
            "file back"
        )

    def _files(self, step: int) -> dict[str, Path]:
        return {
            "rollouts": self.path / "rollouts" / f"step_{step:06d}.jsonl",
            "scores": scores_file(self.path, step),
            "images": self.images.archive(step),
        }

    def _clear_partials(self) -> None:
        """Remove what a kill left half written; elsewhere in the directory others may be writing."""
        places = (self.path / name for name in ("checkpoints", "rollouts", "scores", "images"))
        found = [partial for place in places for partial in place.glob(f"{PARTIAL}*")]
        for partial in [*found, *self.path.glob(f"{PARTIAL}{self.steps_file.name}*")]:
            if partial.is_dir():
                shutil.rmtree(partial)
            else:
                partial.unlink()


def _has_hash(path: Path, digest: str) -> bool:
    """Whether a file is as it was; one that nothing would read is not, whatever it holds."""
    return path.stat().st_size <= LARGEST and file_hash(path) == digest


class RecordTail:
    """The records of one file, whether it is there yet or not."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._forget()

    def records(self) -> tuple[StepRecord, ...]:
        """All whole records there are now.

        A line that is still being written is left for the next call. A file that is not the one read
        before (a resumed run rewinds by replacing it) is read from its start.
        """
        try:
            with open_file(self.file) as file:
                fresh = self._fresh(file)
                if fresh is None:
                    self._forget()
                    fresh = self._fresh(file) or b""
        except FileNotFoundError:
            self._forget()
            return ()
        except OSError as error:
            raise RunError(f"{self.file} cannot be read: {error.strerror or error}") from error
        self._take(fresh)
        return tuple(self._records)

    def _forget(self) -> None:
        self._records: list[StepRecord] = []
        self._inode = -1
        self._end = 0
        self._last_line = b""
        """The line that ends at ``_end``: while it stands there, what is before it was not changed."""

    def _fresh(self, file: BinaryIO) -> bytes | None:
        """What stands after the part that is known; None when that part is no longer there."""
        found = os.fstat(file.fileno())
        if self._inode not in (-1, found.st_ino) or found.st_size < self._end:
            return None
        self._inode = found.st_ino
        file.seek(self._end - len(self._last_line))
        if found.st_size - self._end > LARGEST:
            raise too_large(self.file, f"it holds more than {LARGEST // 2**20} MB")
        data = file.read()
        if not data.startswith(self._last_line):
            return None
        return data[len(self._last_line) :]

    def _take(self, fresh: bytes) -> None:
        """Add the records of whole lines."""
        lines = fresh.split(b"\n")[:-1]
        records = _records_of(lines, self.file, known=len(self._records))
        for record, line in zip(records, lines, strict=False):
            self._records.append(record)
            self._last_line = line + b"\n"
            self._end += len(self._last_line)


def _records_of(lines: Sequence[bytes], file: Path, known: int) -> Iterator[StepRecord]:
    """The records of these whole lines, which come after ``known`` others in the file."""
    for number, line in enumerate(lines, 1):
        try:
            yield StepRecord.model_validate_json(line)
        except ValidationError as error:
            start = line[:80].decode(errors="replace")
            raise RunError(f"{file} line {known + number} is damaged: {start!r}") from error


SECONDS = 10.0
COMMIT = "RAGEN2_COMMIT"
"""Environment variable with the commit, for machines that have the code without its history."""
DRIVER = Path("/proc/driver/nvidia/gpus")
PROCESSOR = Path("/proc/cpuinfo")
FILE = "sessions.jsonl"
PACKAGES = ("torch", "transformers", "tokenizers", "peft", "numpy")
"""Whose versions a result may depend on."""


class Machine(BaseModel):
    """What a number may depend on besides the code."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processor: str
    cores: int
    gpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join([*self.gpus, f"{self.cores} cores of {self.processor}"])


def this_machine() -> Machine:
    """Processor, cores and GPUs of this machine."""
    return Machine(processor=_processor(), cores=os.cpu_count() or 1, gpus=tuple(_gpus()))


def code_commit() -> tuple[str, bool | None]:
    """The commit of the code that runs, and whether that is changed; empty and None where nothing tells."""
    given = os.environ.get(COMMIT)
    if given:
        return given, None
    here = str(Path(__file__).parents[1])
    commit = _output_lines(["git", "-C", here, "rev-parse", "HEAD"])
    if not commit:
        return "", None
    return commit[0], bool(_output_lines(["git", "-C", here, "status", "--porcelain", "."]))


class Session(BaseModel):
    """One start of the program on a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    """The last step that was done before; 0 for a new run."""
    started: str
    """Local time with its zone, ISO 8601."""
    versions: dict[str, str]
    commit: str = ""
    """Of the code; empty where nothing tells."""
    machine: Machine | None = None
    settings: dict[str, Any] = {}
    """Of the run, from this start on; empty where an older version recorded none."""
    changed: list[str] = []
    """What this start was asked to change in them."""


def record_session(
    run: Path, step: int, settings: Mapping[str, Any] | None = None, changed: Sequence[str] = ()
) -> None:
    """Add a line for a start after ``step``."""
    session = Session(
        step=step,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        versions=installed_versions(),
        commit=code_commit()[0],
        machine=this_machine(),
        settings=dict(settings or {}),
        changed=list(changed),
    )
    try:
        append_line(run / FILE, session.model_dump_json())
    except OSError as error:
        raise RunError(f"{run / FILE} cannot be written: {error.strerror}") from error


def read_sessions(run: Path) -> list[Session]:
    """All sessions; none for a run that recorded none. A line that a crash cut short is left out."""
    try:
        data = read_bytes(run / FILE)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{run / FILE} cannot be read: {error.strerror}") from error
    found = []
    for line in data.splitlines():
        try:
            found.append(Session.model_validate_json(line))
        except ValidationError:
            continue
    return found


def installed_versions() -> dict[str, str]:
    """Of ragen2, Python and the packages that are there, without importing them."""
    from ragen2 import __version__

    found = {
        "ragen2": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """The model of the processor, or its architecture."""
    return _named(PROCESSOR, "model name") or platform.machine()


def _gpus() -> list[str]:
    """From the driver's files, which are read at once; its program is asked where they are missing."""
    names = [_named(file, "Model") for file in sorted(DRIVER.glob("*/information"))]
    found = [name for name in names if name]
    return found or _output_lines(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])


def _named(file: Path, name: str) -> str:
    """What stands behind the first ``name :`` of a file; nothing where there is none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(found, "")


def _output_lines(command: list[str]) -> list[str]:
    """Lines that a program prints; none where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            command, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
